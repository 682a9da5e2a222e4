"""Kernels of flash-attention 2 as transformers calls them for continuous batching, computed by hand on any device."""

import contextlib
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
import support  # noqa: F401

import torch
import transformers
from tamis.learner import continuous
from transformers.generation.continuous_batching import input_outputs


def _by_hand(query, keys, values, scale, window):
    """The last of the keys, which see what is before them within a window: query [n, H, D], keys [m, K, D]."""
    queries, places = query.shape[0], torch.arange(keys.shape[0], device=query.device)
    ends = places[-queries:, None]
    is_seen = places <= ends
    if window[0] >= 0:
        is_seen = is_seen & (places >= ends - window[0])
    query, keys, values = query.float(), *(one.float().repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~is_seen, float("-inf")).softmax(-1), values)


@contextlib.contextmanager
def playing_flash(page=16):
    """In this context flash-attention exists, with pages of so many tokens. Returns how often each kernel was
    called."""
    calls = {"varlen": 0, "with_kvcache": 0}

    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, window_size=(-1, -1)):
        calls["varlen"] += 1
        assert causal
        ends = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
        assert max_seqlen_q >= max(end - begin for (begin, _), (end, _) in zip(ends, ends[1:], strict=False))
        assert max_seqlen_k >= max(end - begin for (_, begin), (_, end) in zip(ends, ends[1:], strict=False))
        return torch.cat([
            _by_hand(q[begin:end], k[first:last], v[first:last], softmax_scale, window_size)
            for (begin, first), (end, last) in zip(ends, ends[1:], strict=False)
        ]).to(q.dtype)  # fmt: skip

    def with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1)):
        calls["with_kvcache"] += 1
        assert causal and k_cache.shape[1] == page and block_table.dtype == cache_seqlens.dtype == torch.int32
        found = []
        for row, length in enumerate(cache_seqlens.tolist()):
            table = block_table[row].long()
            for cache, new in ((k_cache, k), (v_cache, v)):
                cache[table[length // page], length % page] = new[row, 0]
            keys, values = (cache[table[: length // page + 1]].flatten(0, 1)[: length + 1] for cache in (k_cache, v_cache))
            found.append(_by_hand(q[row], keys, values, softmax_scale, window_size))
        return torch.stack(found).to(q.dtype)

    flash = transformers.modeling_flash_attention_utils
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (flash, "_lazy_imports", lambda *_, **__: (None, varlen, with_kvcache, None, None)),
            (flash, "_loaded_implementation", None),
            (transformers.PreTrainedModel, "_check_and_adjust_attn_implementation", lambda _, name, *__, **___: name),
            (continuous, "paged_attention", lambda *_: "flash_attention_2"),
            (continuous, "_FLASH_PAGE", page),
            # One is made of a GPU, and not used.
            (input_outputs, "create_device_stream", lambda _: None),
        ):
            stack.enter_context(unittest.mock.patch.object(target, name, value))
        yield calls
