"""Samples that a controller begins, that grow call by call, and that are removed when they have ended.

    begin -> waiting -> computed, a token at a time -> ended
             (no room)

Subclasses compute them: `generate` with rows of a cache, `continuous` with transformers' continuous batching. A
sample's tokens are drawn with its own key (`random_keys`), so they depend on its prompt and the weights, and on its
neighbours only by rounding.
"""

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

import torch

from . import attention, rotary
from .device import free_memory
from .drawing import Drawing, Drawings, draw
from .messages import first_line
from .model import pass_on
from .packing import Pack
from .protocol import Refused, RequestError, refuse_columns, take_column
from .random_keys import uniform
from .row_cache import CacheRefused

# Tokens of prompts computed at once.
PREFILL_TOKENS = 8192
# Share of the free memory for keys and values.
MEMORY_PART = 0.8
_ENDS = {"stop": 1, "length": 2}
_CANNOT = (
    CacheRefused, attention.AttentionRefused, AttributeError, ImportError, IndexError, KeyError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(eq=False)
class Prompt:
    """A prompt, and its samples that have not begun: `(number, key)`."""

    tokens: list
    drawing: Drawing
    most: int
    waiting: deque


@dataclass(eq=False)
class Sample:
    """A sample that has begun. Tokens that the controller has received are not kept."""

    sample: int
    key: int
    prompt: Prompt
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    entropies: list = field(default_factory=list)
    num_told: int = 0
    end: str | None = None

    @property
    def length(self):
        """Tokens in the cache: all but the last, which is computed next."""
        return len(self.prompt.tokens) + len(self.tokens) - 1

    def take(self, token, logprob, entropy):
        """Adds a token."""
        self.tokens.append(int(token))
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        if self.tokens[-1] in self.prompt.drawing.end_tokens:
            self.end = "stop"
        elif len(self.tokens) >= self.prompt.most:
            self.end = "length"


class Samples(ABC):
    """Samples of one network with its present weights; a subclass computes them.

    `_prompts` have waiting samples, `_rows` are the samples that have begun, and `_open` has the prompt of each sample
    that has not ended.
    """

    prompt_kind = Prompt
    hint = "sample at servers, or on the built-in engine if it supports the model"

    def __init__(self, network, max_sequences):
        self.network, self.max_sequences = network, max_sequences
        self._attention = network.attention
        self._check()
        self._clear()

    def _clear(self):
        """Drops all samples, and frees their memory."""
        self._prompts, self._rows, self._open = deque(), [], {}

    def describe(self):
        """How it samples, in lines for a log, if it is not the usual way."""
        return []

    @abstractmethod
    def forget_prompts(self):
        """Makes waiting samples begin with the present weights: results of earlier weights for their prompts are
        dropped.
        """

    @abstractmethod
    def _admit(self):
        """Begins waiting samples if there is room; returns those of them that have ended."""

    @abstractmethod
    def _step(self):
        """Computes one more token of each begun sample, or a part of a prompt; returns those that ended."""

    @abstractmethod
    def _leave(self, leaving):
        """Removes samples, and returns them."""

    @abstractmethod
    def _try(self, num_steps):
        """Last hidden states of made-up sequences, computed whole and as here, f32 [N, D] each."""

    # Calls

    def call(self, settings, columns):
        """Gives samples up, begins samples, and samples: `(settings, columns)` of the answer."""
        seconds = settings.number("seconds", least=0.0)
        drawings = [Drawing.read(one) for one in settings.objects("drawing", [])]
        settings.finish()
        prompts, aborted = self._read(columns, drawings)
        for sample in aborted:
            self._abort(sample)
        refused = [one for prompt in prompts for one in self._begin(prompt)]
        ended = self._sample(time.monotonic() + seconds)
        grown = ended + [row for row in self._rows if row.num_told < len(row.tokens)]
        answer = self._tell(grown)
        if not self._open:
            # Learning can use its memory.
            self._clear()
            if self.network.options.device.type == "cuda":
                torch.cuda.empty_cache()
        return {"num_open": len(self._open), "refused": refused}, answer

    def _read(self, columns, drawings):
        tokens, offsets = take_column(columns, "prompt_token", torch.int32), take_column(columns, "prompt_offset", torch.int64)
        drawn_by = take_column(columns, "prompt_drawing", torch.int32).tolist()
        prompt_of = take_column(columns, "prompt_of", torch.int32).tolist()
        samples = take_column(columns, "sample", torch.int64).tolist()
        keys = take_column(columns, "key", torch.int64).tolist()
        aborted = take_column(columns, "abort", torch.int64).tolist()
        refuse_columns(columns)
        tokens, offsets = tokens.tolist(), offsets.tolist()
        if not offsets or offsets[0] != 0 or offsets[-1] != len(tokens) or offsets != sorted(set(offsets)):
            raise RequestError(f"`prompt_offset` must begin with 0, end with {len(tokens)} and rise")
        if len(drawn_by) != len(offsets) - 1 or not len(prompt_of) == len(samples) == len(keys):
            raise RequestError("`prompt_drawing` has a number for each prompt; `prompt_of` and `key` for each `sample`")
        for name, places, end in (("prompt_drawing", drawn_by, len(drawings)), ("prompt_of", prompt_of, len(drawn_by))):
            if any(not 0 <= place < end for place in places):
                raise RequestError(f"`{name}` must lie between 0 and {end - 1}")
        vocab_size = self.network.vocab_size
        outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if outside is not None:
            raise RequestError(f"`prompt_token` holds {outside}, and the vocabulary has {vocab_size} tokens")
        taken = [sample for sample in samples if sample in self._open]
        if taken or len(set(samples)) < len(samples):
            raise RequestError(f"sample {(taken or samples)[0]} is open already, or repeated")
        prompts = [
            self.prompt_kind(tokens[begin:end], drawings[place], self._most(drawings[place], end - begin), deque())
            for begin, end, place in zip(offsets, offsets[1:], drawn_by, strict=False)
        ]
        for place, sample, key in zip(prompt_of, samples, keys, strict=True):
            prompts[place].waiting.append((sample, key))
        return [prompt for prompt in prompts if prompt.waiting], aborted

    def _begin(self, prompt):
        """Queues a prompt's samples, or refuses them."""
        limit = self.network.max_positions
        if limit is not None and len(prompt.tokens) >= limit:
            reason = f"the prompt has {len(prompt.tokens)} tokens, which leaves no room within {limit} positions"
            return [{"sample": sample, "reason": reason} for sample, _ in prompt.waiting]
        self._prompts.append(prompt)
        self._open.update((sample, prompt) for sample, _ in prompt.waiting)
        return []

    def _abort(self, sample):
        prompt = self._open.pop(sample, None)
        if prompt is None:
            return
        prompt.waiting = deque(one for one in prompt.waiting if one[0] != sample)
        if not prompt.waiting and prompt in self._prompts:
            self._prompts.remove(prompt)
        self._leave([row for row in self._rows if row.sample == sample])

    def _tell(self, grown):
        parts = [slice(row.num_told, len(row.tokens)) for row in grown]

        def flat(name, dtype):
            numbers = [number for row, part in zip(grown, parts, strict=True) for number in getattr(row, name)[part]]
            return torch.tensor(numbers, dtype=dtype)

        lengths = torch.tensor([0] + [part.stop - part.start for part in parts])
        columns = {
            "sample": torch.tensor([row.sample for row in grown], dtype=torch.int64),
            "end": torch.tensor([_ENDS.get(row.end, 0) for row in grown], dtype=torch.int32),
            "token": flat("tokens", torch.int32),
            "token_offset": lengths.cumsum(0),
            "logprob": flat("logprobs", torch.float32),
            "entropy": flat("entropies", torch.float32),
        }
        for row in grown:
            row.num_told = len(row.tokens)
        return columns

    # Sampling

    @torch.no_grad()
    def _sample(self, until):
        """Samples until one ends or the time is over; returns those that ended, in order."""
        ended = []
        with self._computing():
            while not ended and self._open and time.monotonic() < until:
                ended += self._admit()
                if not ended and self._rows:
                    ended += self._step()
        return ended

    @contextlib.contextmanager
    def _computing(self):
        """In this context layers keep keys and values, which layers that recompute would not."""
        layers = [layer for layer in self.network.decoder.modules() if getattr(layer, "gradient_checkpointing", False)]
        was = [layer.training for layer in layers]
        for layer in layers:
            layer.training = False
        try:
            yield
        finally:
            for layer, training in zip(layers, was, strict=True):
                layer.training = training
            self._attend(self.network.attention)

    def _attend(self, name):
        if self._attention != name:
            self.network.decoder.set_attn_implementation(name)
            self._attention = name

    def _most(self, drawing, num_tokens):
        """Longest completion of a prompt of this length."""
        limit = self.network.max_positions
        return drawing.max_tokens if limit is None else min(drawing.max_tokens, limit - num_tokens)

    def _logits(self, hidden):
        return self.network.head.logits(hidden)

    def _extend(self, rows, drawings, parts, seen, num_idle=0):
        """Draws a token for each row, from its logits [V]; they come in parts of several rows. Returns the tokens, i64
        [n]. The last `num_idle` rows take none.
        """
        uniforms = _uniforms(rows).to(self.network.options.device)
        found, begin = [], 0
        for part in parts:
            end = begin + part.shape[0]
            known = None if seen is None else seen[begin:end]
            tokens, logprobs, entropies = draw(part, drawings.part(begin, end), uniforms[begin:end], known)
            # One transfer: a token is exact as a double.
            found.append(torch.stack([tokens.double(), logprobs.double(), entropies.double()]))
            begin = end
        found = torch.cat(found, 1)
        for row, drawn in zip(rows[: len(rows) - num_idle], zip(*found.tolist(), strict=True), strict=num_idle == 0):
            row.take(*drawn)
        return found[0].long()

    def _free_memory(self):
        """Free bytes of the memory in which it computes."""
        return free_memory() if self.network.options.device.type == "cuda" else _available_memory()

    # Whether it can be done

    @torch.no_grad()
    def _check(self):
        """Refuses a network whose tokens one by one, over the cache, differ from those in a whole sequence."""
        network, name = self.network, type(self.network.decoder).__name__
        if not getattr(network.decoder, "_supports_flash_attn", False):
            raise Refused(f"{name} cannot be sampled from here: its attention gets windows only by masks", self.hint)
        if rotary.depends_on_length(network.decoder):
            raise Refused(
                f"{name} cannot be sampled from here: its rotary positions depend on the length of the whole sequence "
                "(longrope, dynamic), and tokens that the cache holds would have those of a shorter one", self.hint,
            )  # fmt: skip
        self._clear()
        try:
            with self._computing():
                truth, found = self._try(3)
        except _CANNOT as error:
            pass_on(error)
            raise Refused(f"{name} cannot be sampled from here: {first_line(error)}", self.hint) from None
        is_same = torch.equal(truth, found) if network.options.exact else network.agrees(truth, found)
        if not is_same:
            raise Refused(f"{name} cannot be sampled from here: its tokens one by one are not those of a whole sequence", self.hint)


class DrawInputs:
    """Inputs of some samples' draws besides logits, on the device, while the samples stay the same."""

    def __init__(self, rows, vocab_size, device):
        self.rows = list(rows)
        self.drawings = Drawings([row.prompt.drawing for row in rows], device)
        self.seen = seen_tokens(rows, self.drawings, vocab_size, device)

    def take(self, tokens):
        """Adds drawn tokens, i64 [n], to those that the penalty applies to."""
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)


def _available_memory():
    """Free bytes of main memory; pages that hold files count, if the system reports them."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def pack_tokens(sequences, device):
    """Prompts in one row."""
    lengths = [len(tokens) for tokens in sequences]
    begins = torch.tensor([0, *lengths]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in lengths])
    tokens = torch.tensor([token for tokens in sequences for token in tokens])
    return Pack(tokens[None].to(device), positions[None].to(device), begins.int().to(device), lengths, None, None)


def _uniforms(rows):
    """The number that each row draws with, f64 [n]."""
    keys = torch.tensor([row.key for row in rows])
    return uniform(keys, torch.tensor([len(row.tokens) for row in rows]))


def seen_tokens(rows, drawings, vocab_size, device):
    """Tokens of prompt and completion, bool [n, V] on the device; `None` if no row has a penalty."""
    if drawings.penalty is None:
        return None
    seen = torch.zeros(len(rows), vocab_size, dtype=torch.bool, device=device)
    held = [row.prompt.tokens + row.tokens for row in rows]
    places = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(tokens) for tokens in held]))
    seen[places.to(device), torch.tensor([token for tokens in held for token in tokens]).to(device)] = True
    return seen
