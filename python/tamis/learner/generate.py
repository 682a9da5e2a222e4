"""Samples as rows of a preallocated cache.

    begin -> waiting -> the prompt, once for all its samples -> a row of the cache for each -> ended
             (no room)   (`PromptStates`)                        (`RowCache`, one token a step)

Rows that end are freed, and waiting samples take their places.
"""

from collections import deque
from dataclasses import dataclass

import torch
import transformers

from . import attention
from .drawing import Drawing, Drawings
from .model import made_up
from .protocol import Refused
from .row_cache import CACHED, COLUMNS, CacheRefused, PromptStates, RowCache
from .samples import MEMORY_PART, PREFILL_TOKENS, DrawInputs, Prompt, Sample, Samples, pack_tokens, seen_tokens

# The supported release of transformers' continuous batching, whose private parts are called.
CONTINUOUS_RELEASE = "5.23."


@dataclass(eq=False)
class _Prompt(Prompt):
    """A prompt, and what its samples share until the last of them has begun."""

    states: dict | None = None
    logits: torch.Tensor | None = None


class Generation(Samples):
    """Samples that are computed together, a row of keys and values each."""

    prompt_kind = _Prompt

    def _clear(self):
        super()._clear()
        self._cache = RowCache()
        self._inputs = None

    def forget_prompts(self):
        """Makes waiting samples begin with the present weights: results of earlier weights for their prompts are
        dropped.
        """
        for prompt in self._prompts:
            prompt.states = prompt.logits = None

    def _columns(self, prompt):
        """Columns that a row may take."""
        return -(-(len(prompt.tokens) + prompt.most) // COLUMNS) * COLUMNS

    def _admit(self):
        """Begins waiting samples if there is room; returns those of them that have ended."""
        num_waiting = sum(len(prompt.waiting) for prompt in self._prompts)
        if not num_waiting:
            return []
        columns = max(self._columns(prompt) for prompt in {id(p): p for p in self._open.values()}.values())
        columns = max(columns, self._cache.num_columns)
        room = min(self.max_sequences, self._affordable_rows(columns)) - len(self._rows)
        # A few at a time, because a single prompt is a small product.
        if room <= 0 or (self._rows and room < min(num_waiting, self.max_sequences // 8)):
            return []
        self._compute_prompts(room)
        begun = []
        while self._prompts and len(begun) < room and self._prompts[0].states is not None:
            prompt = self._prompts[0]
            while prompt.waiting and len(begun) < room:
                sample, key = prompt.waiting.popleft()
                begun.append(Sample(sample, key, prompt))
            if not prompt.waiting:
                self._prompts.popleft()
        self._cache.reserve(begun[0].prompt.states, len(self._rows) + len(begun), columns)
        first = len(self._rows)
        for place, row in enumerate(begun):
            self._cache.place(first + place, row.prompt.states, len(row.prompt.tokens))
        self._rows += begun
        self._inputs = None
        drawings = Drawings([row.prompt.drawing for row in begun], self.network.options.device)
        logits_of = torch.stack([row.prompt.logits for row in begun])
        self._extend(begun, drawings, [logits_of], seen_tokens(begun, drawings, logits_of.shape[1], logits_of.device))
        for row in begun:
            if not row.prompt.waiting:
                row.prompt.states = row.prompt.logits = None
        return self._leave([row for row in begun if row.end])

    def _affordable_rows(self, columns):
        """Number of rows of so many columns that fit into memory; a row's size is known once there is one."""
        cache, of_column = self._cache, self._bytes_per_column
        held = cache.num_rows * cache.num_columns * of_column
        # A growing cache is copied.
        fits = int(MEMORY_PART * (self._free_memory() + held)) // (columns * of_column)
        return max(1, cache.num_rows if columns <= cache.num_columns else 1, fits)

    def _compute_prompts(self, room):
        """Computes the next prompts, of as many samples as there is room for."""
        chosen, num_tokens = [], 0
        for prompt in self._prompts:
            new = 0 if prompt.states is not None else len(prompt.tokens)
            if room <= 0 or (num_tokens and num_tokens + new > PREFILL_TOKENS):
                break
            room -= len(prompt.waiting)
            num_tokens += new
            if new:
                chosen.append(prompt)
        network = self.network
        self._attend(network.attention)
        is_packed = network.is_packed and network.attention in (attention.VARLEN, attention.SEQUENCES)
        packs = [chosen] if is_packed else [[prompt] for prompt in chosen]
        for prompts in packs if chosen else []:
            one = pack_tokens([prompt.tokens for prompt in prompts], network.options.device)
            states = PromptStates()
            hidden = network.hidden(one, states=states)
            begins = torch.tensor(one.lengths).cumsum(0)
            found = self._logits(hidden[(begins - 1).to(hidden.device)])
            for place, (prompt, end) in enumerate(zip(prompts, begins.tolist(), strict=True)):
                prompt.states = states.part(end - len(prompt.tokens), end)
                prompt.logits = found[place]

    def _step(self):
        """Computes one more token of each row; returns those that ended."""
        if self._inputs is None:
            self._inputs = _Inputs(self._rows, self.network.head.vocab_size, self.network.options.device)
        inputs = self._inputs
        hidden = self._decode(inputs.tokens, inputs.lengths, inputs.longest)
        inputs.advance()
        chunk = self.network.head.chunk
        parts = (self._logits(hidden[begin : begin + chunk]) for begin in range(0, len(self._rows), chunk))
        inputs.take(self._extend(self._rows, inputs.drawings, parts, inputs.seen))
        return self._leave([row for row in self._rows if row.end])

    def _decode(self, tokens, lengths, longest):
        """Last hidden states [n, D] of one token of each row, after what the cache holds of it."""
        network = self.network
        self._attend(CACHED)
        output = network.decoder(
            input_ids=tokens[:, None],
            position_ids=lengths[:, None],
            past_key_values=self._cache,
            use_cache=True,
            **self._cache.step(lengths, longest),
        )
        return output.last_hidden_state[:, 0]

    def _leave(self, leaving):
        """Removes rows; the last ones take their places."""
        for row in leaving:
            self._open.pop(row.sample, None)
            place = next(at for at, one in enumerate(self._rows) if one is row)
            last = self._rows.pop()
            if last is not row:
                self._rows[place] = last
                self._cache.move(len(self._rows), place, last.length)
            self._inputs = None
        return leaving

    def _try(self, num_steps):
        network, device = self.network, self.network.options.device
        lengths = (3, 6)
        tokens = [made_up(network.vocab_size, [length + num_steps]).input_ids[0].tolist() for length in lengths]
        drawing = Drawing(1.0, 0, 1.0, 0.0, 1.0, num_steps, frozenset())
        whole = [network.hidden(pack_tokens([one], device)) for one in tokens]
        prompts = [_Prompt(one[:length], drawing, num_steps, deque([(0, 0)])) for one, length in zip(tokens, lengths, strict=True)]
        self._prompts.extend(prompts)
        self._compute_prompts(len(prompts))
        states = prompts[0].states
        if not states:
            raise CacheRefused("it keeps no keys and values")
        self._bytes_per_column = sum(one.shape[0] * one.shape[2] * one.element_size() for pair in states.values() for one in pair)
        self._cache.reserve(states, len(prompts), COLUMNS)
        for row, prompt in enumerate(prompts):
            self._cache.place(row, prompt.states, len(prompt.tokens))
        found = []
        for step in range(num_steps):
            at = torch.tensor([length + step for length in lengths], device=device)
            given = torch.tensor([one[place] for one, place in zip(tokens, at.tolist(), strict=True)], device=device)
            found.append(self._decode(given, at, int(at.max())).float())
        truth = torch.cat([one[length:].float() for one, length in zip(whole, lengths, strict=True)])
        return truth, torch.stack(found, 1).flatten(0, 1)


class _Inputs(DrawInputs):
    """Inputs of the rows' next step, on the device, while the rows stay the same."""

    def __init__(self, rows, vocab_size, device):
        super().__init__(rows, vocab_size, device)
        self.tokens = torch.tensor([row.tokens[-1] for row in rows]).to(device)
        lengths = [row.length for row in rows]
        self.lengths, self.longest = torch.tensor(lengths).to(device), max(lengths)

    def advance(self):
        """Each row is one token longer."""
        self.lengths = self.lengths + 1
        self.longest += 1

    def take(self, tokens):
        """The drawn tokens, i64 [n], are the next inputs."""
        super().take(tokens)
        self.tokens = tokens


def make_generation(network, max_sequences, is_continuous):
    """A sampler for a network: rows, or transformers' continuous batching."""
    if not is_continuous:
        return Generation(network, max_sequences)
    if not transformers.__version__.startswith(CONTINUOUS_RELEASE):
        raise Refused(
            f"continuous batching is known of transformers {CONTINUOUS_RELEASE}*, and this is {transformers.__version__}",
            "install the release of python/requirements-torch.txt, or set `learner.continuous_batching` to false",
        )
    from .continuous import ContinuousGeneration

    return ContinuousGeneration(network, max_sequences)


__all__ = ["Generation", "make_generation"]
