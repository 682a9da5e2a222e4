"""Attention within each sequence of a pack, as functions that transformers calls by name.

    tamis_varlen     torch's `varlen_attn` (flash kernels): CUDA, bf16 or f16
    tamis_sequences  one causal `scaled_dot_product_attention` after another: any device, any type
    tamis_exact      numbers that do not depend on what is computed together (`tiles`)

None builds a mask of M x M. The first two get the beginnings of sequences from the keyword arguments that transformers passes
to its own flash kernels (`cu_seq_lens_q`, `max_length_q`), which reach every layer, recomputed ones included. If
sequences share prompts, the argument is the pack's `Layout`: a completion's queries see the keys and values of its
prompt, which are computed once, and its own. A sequence's numbers are then those of its own copy of the prompt up to
rounding (1e-5 in f32), which depends on the rest of the pack.

Other keyword arguments of flash kernels (a sliding window, soft-capping, sinks) are honoured or refused. Models that
express them only by masks do not get these functions (`model.choose_attention`).
"""

import inspect
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from .packing import Layout, add_rows, take_rows

VARLEN = "tamis_varlen"
SEQUENCES = "tamis_sequences"
EXACT = "tamis_exact"
FLASH = "flash_attention_2"
# Names of attentions in which sequences may share a prompt's rows.
SHARING = (VARLEN, SEQUENCES, EXACT)

# Keyword arguments that change nothing in a causal training pass.
_HARMLESS = {
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sliding_window", "position_ids", "use_cache",
    "cache_position", "output_attentions", "output_hidden_states", "return_dict", "is_causal", "layer_idx",
    "past_key_values", "position_embeddings", "target_dtype", "implementation", "output_router_logits",
}  # fmt: skip


# Windows that layers passed to these functions, in the context of `telling_windows`.
_told = None


class AttentionRefused(Exception):
    """The model asks for something that these functions do not compute."""


@contextmanager
def telling_windows():
    """A list to which every call of these functions adds its window, or `None`."""
    global _told
    _told = []
    try:
        yield _told
    finally:
        _told = None


def windowed_layers(config):
    """Number of layers in which a sequence of the model's greatest length sees less than everything before it."""
    kinds = getattr(config, "layer_types", None)
    window, longest = getattr(config, "sliding_window", None), getattr(config, "max_position_embeddings", None)
    if window is not None and longest is not None and window >= longest:
        window = None
    if kinds:
        return sum(
            kind == "chunked_attention" or (kind == "sliding_attention" and window is not None) for kind in kinds
        )
    return config.num_hidden_layers if window is not None and getattr(config, "use_sliding_window", True) else 0


def candidates(decoder, device_type, dtype):
    """Attentions that may work with a decoder, the best first; `choose_attention` tries them."""
    found = []
    # Models that flash kernels know pass windows and the like by keyword, which ours need.
    if getattr(decoder, "_supports_flash_attn", False):
        if device_type == "cuda" and dtype != torch.float32:
            found = [VARLEN, *([FLASH] if is_flash_attn_2_available() else [])]
        else:
            found = [SEQUENCES]
    return [*found, "sdpa", "eager"]


def keywords(pack, attention):
    """A decoder's keyword arguments besides tokens and positions."""
    if attention in ("eager", "sdpa", "flex_attention"):
        return {}
    if pack.layout is not None:
        assert attention in SHARING, attention
        return dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), pack.layout)
    longest = max(pack.lengths)
    # `tamis_sequences` cuts on the host: it takes lengths; the others take offsets on the device.
    offsets = pack.lengths if attention == SEQUENCES else pack.offsets
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


def check(name, query, key, attention_mask, dropout, more):
    """Refuses what these functions do not compute; notes the window (`telling_windows`)."""
    if _told is not None:
        _told.append(more.get("sliding_window"))
    if attention_mask is not None or dropout or more.get("is_causal") is False or query.shape[0] != 1:
        raise AttentionRefused(f"{name} is causal, without mask and dropout, over one row")
    if query.shape[2] != key.shape[2]:
        raise AttentionRefused(f"{name} takes as many keys as queries")
    if more.get("cu_seq_lens_q") is None:
        raise AttentionRefused(f"the model does not give {name} the beginnings of sequences")
    for argument, value in more.items():
        if argument not in _HARMLESS and value is not None and value is not False:
            raise AttentionRefused(f"{name} does not compute `{argument}`")


def attend_varlen(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    """Query [1, H, M, D], key and value [1, K, M, D] to [1, M, H, D]."""
    from torch.nn.attention.varlen import varlen_attn

    check(VARLEN, query, key, attention_mask, dropout, more)
    offsets, window = more["cu_seq_lens_q"], more.get("sliding_window")
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    # A window of w tokens is the token itself and w - 1 before it.
    left = -1 if window is None else window - 1
    has_gqa = "enable_gqa" in inspect.signature(varlen_attn).parameters

    def attend(query, key, value, *places):
        gqa = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        if gqa and not has_gqa:
            # Older releases want a key and a value for each query head.
            num_queries = query.shape[1] // key.shape[1]
            key, value, gqa = (*(states.repeat_interleave(num_queries, 1) for states in (key, value)), {})
        # One kernel for all passes. By itself, torch takes cuDNN's or the flash kernel by GPU, head width, longest
        # sequence, and whether there is a backward pass. Log-probabilities with and without a graph, which are
        # compared, would then differ.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return varlen_attn(query, key, value, *places, scale=scaling, window_size=(left, 0), **gqa)

    if isinstance(offsets, Layout):
        attended = _attend_shared(attend, offsets, query, key, value)
    else:
        # Q and K must get the same offsets as one object: only then each sequence has its own causal diagonal with
        # every kernel.
        attended = attend(query, key, value, offsets, offsets, more["max_length_q"], more["max_length_q"])
    return attended.unsqueeze(0), None


def _attend_shared(attend, layout, query, key, value):
    """Branches of a layout with the keys and values that each sees, gathered: [M, H, D]."""
    if len(layout.blocks) > 1:
        return _AttendInBlocks.apply(attend, layout, query, key, value)
    seen = (take_rows(states, layout.key_rows) for states in (key, value))
    return attend(query, *seen, *_places(layout))


def _places(layout):
    return layout.query_offsets, layout.key_offsets, layout.longest_query, layout.longest_key


class _AttendInBlocks(torch.autograd.Function):
    """Attention block by block, recomputed in the backward pass, so that only one block is gathered at a time."""

    @staticmethod
    def forward(ctx, attend, layout, query, key, value):
        ctx.attend, ctx.layout = attend, layout
        ctx.save_for_backward(query, key, value)
        return torch.cat([attend(*_parts(block, query, key, value), *_places(block)) for block in layout.blocks])

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        of_query, of_seen = torch.empty_like(saved[0]), [torch.zeros_like(one, dtype=torch.float32) for one in saved[1:]]
        for block in ctx.layout.blocks:
            parts = [part.detach().requires_grad_() for part in _parts(block, *saved)]
            with torch.enable_grad():
                attended = ctx.attend(*parts, *_places(block))
            own, *seen = torch.autograd.grad(attended, parts, gradient[block.rows])
            of_query[block.rows] = own
            for summed, part in zip(of_seen, seen, strict=True):
                add_rows(summed, block.key_rows, part)
        return None, None, of_query, *(one.to(of_query.dtype) for one in of_seen)


def _parts(block, query, key, value):
    return query[block.rows], key[block.key_rows], value[block.key_rows]


def attend_sequences(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    """Query [1, H, M, D], key and value [1, K, M, D] to [1, M, H, D]."""
    check(SEQUENCES, query, key, attention_mask, dropout, more)
    window = more.get("sliding_window")
    pieces = more["cu_seq_lens_q"]
    gqa = query.shape[1] != key.shape[1]
    if isinstance(pieces, Layout):
        pieces = [(*branch.prompt, branch.begin, branch.end) for branch in pieces.branches]
    else:
        ends = list(accumulate(pieces))
        pieces = [(end, end, end - length, end) for length, end in zip(pieces, ends, strict=True)]
    attended = []
    for prompt, prompt_end, begin, end in pieces:
        before, length = prompt_end - prompt, end - begin
        q, k, v = (states[:, :, begin:end] for states in (query, key, value))
        if before:
            k, v = (
                torch.cat([states[:, :, prompt:prompt_end], own], 2) for states, own in ((key, k), (value, v))
            )
        mask = None
        if before or (window is not None and window < length):
            mask = torch.ones(length, before + length, dtype=torch.bool, device=q.device).tril(before)
            mask = mask if window is None else mask.triu(before + 1 - window)
        one = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=gqa
        )
        attended.append(one.transpose(1, 2))
    return torch.cat(attended, 1), None


# The mask interface does not know these names, so it makes no masks for them.
AttentionInterface.register(VARLEN, attend_varlen)
AttentionInterface.register(SEQUENCES, attend_sequences)
