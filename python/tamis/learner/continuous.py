"""Samples by transformers' continuous batching: a paged cache, in which a sample takes as many pages as its length
needs.

    begin -> waiting -> a request for a prompt and some of its samples -> its samples, forked from it -> ended
             (no room)   (computed but for its last token)                 (a token a step)

transformers schedules requests, keeps keys and values in pages, and computes prompts and single tokens in one batch.
Samples of a request share the pages that their prompt fills. Not used are: its thread (a step is taken only when a call
needs one, so weights never change during it), its draws (ours are keyed, `_Draw`), its reuse of pages by content (which
ignores that weights change), CUDA graphs and batches ahead of time (draws wait for the host), and requests that give up
their pages for others (a request begins only if there is room for its samples at their longest).

It calls private parts of transformers, so it works with one release (`generate.CONTINUOUS_RELEASE`).
"""

import importlib.util
import itertools
from collections import deque
from dataclasses import dataclass, field
from math import lcm
from types import SimpleNamespace

import torch
from transformers import GenerationConfig
from transformers.generation import LogitsProcessorList
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache, group_layers_by_attn_type
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus, ContinuousBatchProcessor
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.initialization import (
    resolve_continuous_batching_config,
    update_cb_config_after_cache_creation,
)
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import FIFOScheduler
from transformers.generation.continuous_batching.utils import find_head_dim, find_num_key_value_heads
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from .device import is_out_of_memory
from .drawing import Drawing
from .model import made_up
from .protocol import Refused
from .samples import MEMORY_PART, PREFILL_TOKENS, DrawInputs, Prompt, Sample, Samples, pack_tokens

# Tokens of a page: flash kernels want 256; elsewhere small pages waste less.
_FLASH_PAGE, _SDPA_PAGE = 256, 16
# Tokens of a batch in which each has a row in a mask over the whole cache.
_SDPA_TOKENS = 256
# The size of a sector is a multiple of this.
_ALIGNMENT = 128
# Least growth of a cache, because growing copies it.
_GROWTH = 1.5


def paged_attention(device, dtype):
    """The attention that reads pages on a device."""
    if device.type != "cuda":
        if importlib.util.find_spec("psutil") is None:
            raise Refused("continuous batching on a CPU needs psutil, which is not installed", "pip install psutil")
        return "sdpa"
    for name, is_there in (("flash_attention_3", is_flash_attn_3_available), ("flash_attention_2", is_flash_attn_2_available)):
        if is_there():
            if dtype == torch.float32:
                raise Refused(
                    "continuous batching on a GPU goes by flash-attention, which does not compute in f32",
                    "set `learner.dtype` to bf16, or `learner.continuous_batching` to false",
                )
            return name
    raise Refused(
        "continuous batching on a GPU needs flash-attention, which is not installed",
        "install flash-attn for this PyTorch and this GPU, or set `learner.continuous_batching` to false",
    )


@dataclass(eq=False)
class _Request:
    """A prompt that is computed once, and the samples that are forked from it.

    `shared` and `own` are the blocks of each allocator that all samples take together, and that each takes at its
    longest.
    """

    prompt: Prompt
    rows: list
    name: str
    shared: list
    own: list
    names: dict = field(default_factory=dict)

    def blocks(self):
        """Blocks of each allocator."""
        return [together + len(self.rows) * each for together, each in zip(self.shared, self.own, strict=True)]


class ContinuousGeneration(Samples):
    """Samples that transformers' continuous batching computes."""

    hint = "set `learner.continuous_batching` to false: the other way to sample in the learner may do"

    def __init__(self, network, max_sequences):
        options = network.options
        self._paged = paged_attention(options.device, options.dtype)
        self._is_flash = self._paged != "sdpa"
        self._page = _FLASH_PAGE if self._is_flash else _SDPA_PAGE
        self._names = itertools.count()
        # Hidden states from which samples were drawn, if they are recorded.
        self._told = None
        super().__init__(network, max_sequences)

    def _clear(self):
        super()._clear()
        self._batches, self._requests, self._row_of = None, [], {}
        self._inputs = self._drawing = None

    def forget_prompts(self):
        """Restarts requests without tokens, with the present weights.

        Pages of other weights are read only by the samples that own them.
        """
        early = [row for row in self._rows if not row.tokens]
        self._wait_again(self._stop(early))

    def describe(self):
        """How it samples, in lines for a log."""
        return [f"samples by transformers' continuous batching: {self._paged} over pages of {self._page} tokens"]

    # Requests

    def _admit(self):
        """Makes requests for waiting samples if there is room; none of them has a token yet."""
        num_waiting = sum(len(prompt.waiting) for prompt in self._prompts)
        room = self.max_sequences - len(self._rows)
        # A few at a time: with a prompt beside them, pages are read less directly.
        if room <= 0 or not num_waiting or (self._rows and room < min(num_waiting, self.max_sequences // 8)):
            return []
        while self._prompts and len(self._rows) < self.max_sequences:
            prompt = self._prompts[0]
            wanted = min(len(prompt.waiting), self.max_sequences - len(self._rows))
            num_samples = self._num_fitting(prompt, wanted)
            if num_samples < wanted and self._grow():
                num_samples = self._num_fitting(prompt, wanted)
            if not num_samples and not self._rows:
                raise RuntimeError("continuous batching has no room for one sample")
            if not num_samples:
                break
            # A prompt of one token has nothing to share.
            self._start(prompt, num_samples if len(prompt.tokens) > 1 else 1)
            if not prompt.waiting:
                self._prompts.popleft()
        return []

    def _start(self, prompt, num_samples):
        rows = [Sample(*prompt.waiting.popleft(), prompt) for _ in range(num_samples)]
        request = _Request(prompt, rows, str(next(self._names)), *self._parts(prompt, num_samples))
        names = [request.name] + [f"{request.name}__child#{place}" for place in range(num_samples - 1)]
        for name, row in zip(names, rows, strict=True):
            request.names[row] = name
            self._row_of[name] = row
        self._requests.append(request)
        self._rows += rows
        state = RequestState(
            request.name, list(prompt.tokens), max_new_tokens=prompt.most, num_children=num_samples - 1,
            eos_token_id=sorted(prompt.drawing.end_tokens),
        )  # fmt: skip
        self._batches.scheduler.add_waiting_request(state)

    def _stop(self, rows):
        """Removes samples from the computation, with those that were to be forked from them."""
        stopped, scheduler = [], self._batches and self._batches.scheduler
        for request in list(self._requests):
            leaving = [row for row in request.rows if row in rows]
            if not leaving:
                continue
            state = scheduler.active_requests.get(request.name) or scheduler.waiting_requests.get(request.name)
            if state is not None and state.num_children:
                leaving = list(request.rows)
            for row in leaving:
                name = request.names.pop(row)
                del self._row_of[name]
                # transformers does not know those that have ended.
                scheduler.set_request_cancellation(name)
            request.rows = [row for row in request.rows if row not in leaving]
            stopped += leaving
            if not request.rows:
                self._requests.remove(request)
        if stopped:
            scheduler.clear_cancelled_requests()
        self._rows = [row for row in self._rows if row not in stopped]
        return stopped

    def _wait_again(self, rows):
        for row in reversed(rows):
            row.prompt.waiting.appendleft((row.sample, row.key))
            if row.prompt not in self._prompts:
                self._prompts.appendleft(row.prompt)

    def _leave(self, leaving):
        for row in leaving:
            self._open.pop(row.sample, None)
        self._wait_again([row for row in self._stop(leaving) if row not in leaving])
        return leaving

    # Memory

    def _parts(self, prompt, num_samples):
        """Blocks of each allocator that so many samples of a prompt take together, and each of them, at their longest.
        """
        shared, own = [], []
        for allocator in self._batches.cache.cache_allocators.values():
            blocks = allocator.needs_new_blocks("", 0, len(prompt.tokens) + prompt.most)
            is_shared = num_samples > 1 and allocator.use_block_sharing
            shared.append((len(prompt.tokens) - 1) // allocator.tokens_per_page if is_shared else 0)
            own.append(blocks - shared[-1])
        return shared, own

    def _num_fitting(self, prompt, wanted):
        """How many of so many samples of a prompt have room."""
        if self._batches is None:
            return 0
        cache = self._batches.cache
        taken = [request.blocks() for request in self._requests]
        while wanted:
            num_sectors = 0
            # A prompt of one token has as many requests as samples.
            together, each = self._parts(prompt, wanted if len(prompt.tokens) > 1 else 1)
            for place, allocator in enumerate(cache.cache_allocators.values()):
                blocks = sum(of[place] for of in taken) + together[place] + wanted * each[place]
                num_sectors += -(-blocks // allocator.blocks_per_sector)
            if num_sectors <= cache.num_sectors:
                break
            wanted -= 1
        return wanted

    def _grow(self):
        """Makes room for open samples, as far as there is memory. Returns whether there is more than before."""
        prompts = {id(prompt): prompt for prompt in self._open.values()}.values()
        longest = max(len(prompt.tokens) + prompt.most for prompt in prompts)
        of_one = -(-longest // self._page)
        held = 0 if self._batches is None else self._batches.cache.num_blocks
        if not self._rows:
            # Nothing is held, so nothing must be copied.
            self._batches, held = None, 0
        spare = self._spare_blocks()
        wanted = min(self.max_sequences, len(self._open)) * of_one
        wanted = max(wanted, min(int(held * _GROWTH), self.max_sequences * of_one)) + spare
        fits = int(MEMORY_PART * self._free_memory()) // self._bytes_of_block()
        wanted = max(min(wanted, fits), of_one + spare if not self._rows else 0)
        if wanted <= held:
            return False
        # A page table is as wide as the longest sample that may come.
        limit = self.network.max_positions
        try:
            batches = self._make(wanted, of_one if limit is None else -(-limit // self._page))
        except Exception as error:
            if self._rows and is_out_of_memory(error):
                # Samples that are being computed free room when they end.
                return False
            raise
        if self._batches is not None:
            _move(self._batches, batches)
        self._batches = batches
        return True

    def _bytes_of_block(self):
        """Bytes of a page in every layer, with temporary memory."""
        config, options = self.network.config, self.network.options
        heads, width, size = find_num_key_value_heads(config), find_head_dim(config), options.dtype.itemsize
        of_token = 2 * heads * width * size * config.num_hidden_layers
        # Gathered for a layer if a prompt is computed beside it; the indices.
        of_token += 2 * heads * width * size + 8 * len(group_layers_by_attn_type(config))
        if not self._is_flash:
            of_token += (2 * config.num_attention_heads * width + 2 * self._max_tokens) * size
        return of_token * self._page

    def _spare_blocks(self):
        """Blocks beyond those of samples: layers with a window, and others, get whole sectors."""
        config = self.network.config
        of_token = 2 * find_num_key_value_heads(config) * find_head_dim(config) * self.network.options.dtype.itemsize
        of_page = of_token * self._page
        blocks = [of_page * len(layers) for layers in group_layers_by_attn_type(config).values()]
        return len(blocks) * -(-lcm(*blocks, _ALIGNMENT) // sum(blocks))

    @property
    def _max_tokens(self):
        """Tokens of a batch."""
        return max(PREFILL_TOKENS if self._is_flash else _SDPA_TOKENS, self.max_sequences)

    def _make(self, num_blocks, of_one):
        """transformers' batch processor over a cache of so many blocks, of which a sample takes at most `of_one`."""
        options, config = self.network.options, self.network.config
        self._attend(self._paged)
        # Its page tables know no windows.
        has_windows = "sliding_attention" in group_layers_by_attn_type(config)
        settings = resolve_continuous_batching_config(
            config,
            ContinuousBatchingConfig(
                page_size=self._page, num_blocks=num_blocks, max_batch_tokens=self._max_tokens, max_memory_percent=1.0,
                max_requests_per_batch=self.max_sequences, allow_block_sharing=True, use_async_batching=False,
                use_cuda_graph=False, safety_margin=0.0, auto_switch_to_flash=False, cpu_offload_space=0.0, seed=0,
                max_blocks_per_request=of_one if self._is_flash and not has_windows else 0,
            ),
            None, True, options.device,
        )  # fmt: skip
        helper = DistributedHelper(None, None)
        cache = PagedAttentionCache(config, settings, options.device, helper, options.dtype, model_supports_logits_to_keep=True)
        # Forks share pages. Prompts do not find the pages of others by content, because these may be of other weights.
        cache.use_prefix_sharing = False
        update_cb_config_after_cache_creation(settings, cache.num_blocks, cache.max_batch_tokens)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([_Draw(self)]))
        # The arguments that it expects.
        processors.tensors_required = 1
        # It seeds PyTorch's generator. A GPU's generator is not used in a learner.
        with torch.random.fork_rng(devices=[]):
            batches = ContinuousBatchProcessor(
                cache, config, GenerationConfig(do_sample=False), settings, processors, None, None, _Nobody(),
                BackgroundThreadStatus(), options.device, options.dtype,
                FIFOScheduler(cache, settings.safety_margin, settings.max_requests_per_batch), helper,
            )  # fmt: skip
        # Sampling follows learning on one stream.
        batches.inputs_and_outputs.compute_stream = batches.offloading_manager._compute_stream = None
        return batches

    # Sampling

    def _step(self):
        """Computes one more token of each sample, or a part of a prompt; returns those that ended."""
        self._attend(self._paged)
        try:
            if not self._batches.prepare_next_batch():
                raise RuntimeError(f"continuous batching computes none of {len(self._rows)} samples")
            self._batches._generation_step(_Policy(self))
            self._batches.update_batch()
        except BaseException:
            # Requests already count this batch as computed, so nothing can continue from them.
            self._clear()
            raise
        return self._leave([row for row in self._rows if row.end])

    def _prepare(self, names):
        """Records the samples (by their requests' names) that are drawn next, in the order of their logits."""
        self._drawing = [self._row_of[name] for name in names]

    def _compute(self, places, keywords):
        """Logits at some positions of a batch, f32 [n, V]."""
        hidden = self.network.decoder(**keywords).last_hidden_state[0, places.long()]
        if self._told is not None:
            self._told += zip(self._drawing, hidden.float(), strict=False)
        return self._logits(hidden)

    def _draw(self, logits):
        """Draws a token from each sample's logits; further logits are unused. Returns the tokens, i64 [n]."""
        rows, network = self._drawing, self.network
        if not rows:
            return torch.zeros(0, dtype=torch.int64, device=logits.device)
        if self._inputs is None or self._inputs.rows != rows:
            self._inputs = DrawInputs(rows, network.head.vocab_size, network.options.device)
        inputs, chunk = self._inputs, network.head.chunk
        parts = (logits[begin : min(begin + chunk, len(rows))] for begin in range(0, len(rows), chunk))
        tokens = self._extend(rows, inputs.drawings, parts, inputs.seen)
        inputs.take(tokens)
        return tokens

    def _try(self, num_steps):
        network, device = self.network, self.network.options.device
        longest = self._page + 5
        if network.max_positions is not None:
            longest = max(2, min(longest, network.max_positions - num_steps))
        drawing = Drawing(1.0, 0, 1.0, 0.0, 1.0, num_steps, frozenset())
        # One prompt that fills a page and has two samples that share it, beside one that does not.
        for length, samples in ((3, (0,)), (longest, (1, 2))):
            tokens = made_up(network.vocab_size, [length]).input_ids[0].tolist()
            self._begin(Prompt(tokens, drawing, num_steps, deque((sample, sample) for sample in samples)))
        self._told, rows = [], set()
        try:
            while self._open:
                self._admit()
                rows |= set(self._rows)
                self._step()
            told = self._told
        finally:
            self._told = None
        self._attend(network.attention)
        truth, found = [], []
        for row in sorted(rows, key=lambda row: row.sample):
            found += [hidden for one, hidden in told if one is row]
            whole = row.prompt.tokens + row.tokens[:-1]
            truth.append(network.hidden(pack_tokens([whole], device))[len(row.prompt.tokens) - 1 :].float())
        return torch.cat(truth), torch.stack(found)


class _Policy:
    """The network in the form in which transformers' batches call a model."""

    def __init__(self, generation):
        self._generation = generation

    def _supports_logits_to_keep(self):
        return True

    def __call__(self, *, logits_to_keep, logits_indices, logits_processor_args, **keywords):
        return SimpleNamespace(logits=self._generation._compute(logits_to_keep, keywords)[None])


class _Draw(ContinuousBatchingLogitsProcessor):
    """Draws tokens, and returns scores in which each drawn token has the largest."""

    supported_kwargs, ignored_kwargs = {}, ()

    def __init__(self, generation):
        self._generation = generation

    def fill_defaults(self, int32_tensor):
        """Unused."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token):
        """Records whose logits come next."""
        names = [request.state.request_id for request in requests_with_new_token]
        self._generation._prepare(names)
        return torch.zeros(len(names), dtype=torch.int32)

    def __call__(self, scores, tensor_arg):
        """Scores [n, V], in place."""
        tokens = self._generation._draw(scores)
        return scores.fill_(float("-inf")).scatter_(1, tokens[:, None], 0.0)


class _Nobody:
    """Receives results of ended requests: the samples know them already."""

    def deliver_batch(self, outputs):
        """Ignores them."""


def _move(old, new):
    """Moves the data of batches into a larger cache; sectors keep their numbers."""
    was, cache = old.cache, new.cache
    cache.cache_tensor[: was.cache_tensor.numel()] = was.cache_tensor
    added = range(was.num_sectors, cache.num_sectors)
    cache.pool.free_sectors = was.pool.free_sectors + [cache.pool.num_reserved_sectors + place for place in added]
    cache.pool._free_blocks = was.pool._free_blocks
    for name, allocator in cache.cache_allocators.items():
        allocator.block_table, allocator.ledger = was.cache_allocators[name].block_table, was.cache_allocators[name].ledger
    for name in ("active_requests", "waiting_requests", "waiting_requests_order", "block_new_requests"):
        setattr(new.scheduler, name, getattr(old.scheduler, name))


__all__ = ["ContinuousGeneration"]
