"""Samples as rows of a preallocated cache.

    begin -> waiting -> the prompt, once for all its samples -> a row of the cache for each -> ended
             (no room)   (`PromptStates`, a slot)               (`RowCache`, one token a step)

A step stays on the device: its inputs are columns there (`_Columns`), each draw is keyed there, and drawn tokens are the
next inputs. The host reads the drawn tokens only every few steps (`_LOOK`), and drops those after a sample's end. Rows
that end are freed, and waiting samples take their places.
"""

from collections import deque
from dataclasses import dataclass

import torch
import transformers

from . import attention
from .drawing import Drawing, Drawings, draw
from .model import made_up
from .one_query import Groups, has_kernel
from .protocol import Refused
from .random_keys import uniform
from .row_cache import CACHED, COLUMNS, CacheRefused, PromptStates, RowCache
from .samples import MEMORY_PART, PREFILL_TOKENS, Prompt, Sample, Samples, pack_tokens, seen_tokens
from .step_graphs import StepGraphs
from .tiles import CacheTile, compute, whole_blocks

# The supported release of transformers' continuous batching, whose private parts are called.
CONTINUOUS_RELEASE = "5.23."
# Steps between two looks of the host at what was drawn. A GPU would wait for each look; on a CPU a look costs nothing,
# and tokens after an end would.
_LOOK = {"cuda": 16}


@dataclass(eq=False)
class Slot:
    """A prompt's place in the cache. `num_holders` counts the samples that read it, and the prompt if others wait."""

    number: int
    num_holders: int = 1


@dataclass(eq=False)
class _Prompt(Prompt):
    """A prompt, and what its samples share until the last of them has begun."""

    slot: Slot | None = None
    logits: torch.Tensor | None = None


@dataclass(eq=False)
class _Row(Sample):
    """A sample that has begun, and the slot of its prompt."""

    slot: Slot | None = None


class Generation(Samples):
    """Samples that are computed together, a row of keys and values each."""

    prompt_kind = _Prompt

    def _clear(self):
        super()._clear()
        self._cache = RowCache()
        self._columns, self._free_slots, self._num_slots = None, [], 0
        self._graphs = StepGraphs(self._advance) if _can_capture(self.network.options) else None

    def describe(self):
        """How it samples, in lines for a log, if it is not the usual way."""
        if self._graphs is None or self._graphs.refused is None:
            return []
        return [f"steps of sampling are not captured as CUDA graphs: {self._graphs.refused}"]

    def call(self, settings, columns):
        """Aborts, begins and samples (`Samples.call`)."""
        if self._graphs is not None and self._graphs.check(self.network.module.parameters()):
            self._columns = None
        return super().call(settings, columns)

    def forget_prompts(self):
        """Makes waiting samples begin with the present weights: results of earlier weights for their prompts are
        dropped.
        """
        for prompt in self._prompts:
            self._forget(prompt)

    def _forget(self, prompt):
        if prompt.slot is not None:
            self._release(prompt.slot)
        prompt.slot = prompt.logits = None

    def _take_slot(self):
        if not self._free_slots:
            self._free_slots.append(self._num_slots)
            self._num_slots += 1
        # The first ones, because a step computes all up to the last one in use.
        number = min(self._free_slots)
        self._free_slots.remove(number)
        return Slot(number)

    def _release(self, slot):
        slot.num_holders -= 1
        if not slot.num_holders:
            self._free_slots.append(slot.number)

    def _admit(self):
        """Begins waiting samples if there is room; returns those of them that have ended."""
        num_waiting = sum(len(prompt.waiting) for prompt in self._prompts)
        room = self.max_sequences - len(self._rows)
        # A few at a time, because a single prompt is a small product.
        least = max(1, min(num_waiting, self.max_sequences // 8)) if self._rows else 1
        if not num_waiting or room < least:
            return []
        prompts = {id(p): p for p in self._open.values()}.values()
        longest = max(len(prompt.tokens) for prompt in prompts), max(prompt.most for prompt in prompts)
        columns = tuple(-(-length // COLUMNS) * COLUMNS for length in longest)
        if self.network.options.exact:
            # A row has its prompt, too.
            columns = columns[0], whole_blocks(max(len(prompt.tokens) + prompt.most for prompt in prompts))
        room = min(room, self._num_fitting(*columns))
        if room < least:
            return []
        self._compute_prompts(room, columns[0])
        begun = []
        while self._prompts and len(begun) < room and self._prompts[0].slot is not None:
            prompt = self._prompts[0]
            while prompt.waiting and len(begun) < room:
                begun.append(_Row(*prompt.waiting.popleft(), prompt, slot=prompt.slot))
                prompt.slot.num_holders += 1
            if not prompt.waiting:
                self._prompts.popleft()
        self._rows += begun
        self._reserve_rows(self._width(len(self._rows)), columns[1])
        self._place_prompts(begun)
        self._columns = None
        num_idle = 0 if self.network.head.tile is None else -len(begun) % self.network.head.tile
        filled = begun + begun[:1] * num_idle
        drawings = Drawings([row.prompt.drawing for row in filled], self.network.options.device)
        logits_of = torch.stack([row.prompt.logits for row in filled])
        seen = seen_tokens(filled, drawings, logits_of.shape[1], logits_of.device)
        self._extend(filled, drawings, logits_of.split(self.network.head.tile or len(filled)), seen, num_idle)
        for prompt in {id(row.prompt): row.prompt for row in begun}.values():
            if not prompt.waiting:
                self._forget(prompt)
        return self._leave([row for row in begun if row.end])

    def _place_prompts(self, begun):
        """Puts the prompts of the last rows, which have begun, into these rows, if passes go by tiles."""
        if self.network.options.exact:
            for place, row in enumerate(begun, len(self._rows) - len(begun)):
                self._cache.take_prompt(place, row.slot.number, len(row.prompt.tokens))

    def _width(self, num_rows):
        """Rows that a step computes for so many: captured steps have few widths, exact ones whole tiles."""
        tile = self.network.head.tile
        if tile is not None:
            return -(-num_rows // tile) * tile
        if self._graphs is None:
            return num_rows
        step = 1 << max(0, num_rows.bit_length() - 3)
        return -(-num_rows // step) * step

    def _num_fitting(self, prompt_columns, own_columns):
        """How many more samples fit into memory; the first always begins."""
        prompts, rows = self._cache.prompts, self._cache.rows
        of_column = self._bytes_per_column
        held = (prompts.num_rows * prompts.num_columns + rows.num_rows * rows.num_columns) * of_column
        # A growing cache is copied.
        fits = int(MEMORY_PART * (self._free_memory() + held)) // of_column
        of_prompt, of_row = max(prompt_columns, prompts.num_columns), max(own_columns, rows.num_columns)
        num_rows, num_slots, begun = len(self._rows), self._num_slots - len(self._free_slots), 0
        for prompt in self._prompts:
            num_slots += prompt.slot is None
            # What is reserved already is held whether or not it is used.
            left = fits - max(num_slots, prompts.num_rows) * of_prompt
            new = min(len(prompt.waiting), max(left // of_row, rows.num_rows if left >= 0 else 0) - num_rows - begun)
            if new <= 0:
                break
            begun += new
            if new < len(prompt.waiting):
                break
        return begun or int(not self._rows)

    def _reserve_rows(self, num_rows, num_columns):
        if self._cache.rows.reserve(self._shapes, num_rows, num_columns) and self._graphs is not None:
            self._graphs.forget()

    def _compute_prompts(self, room, num_columns):
        """Computes the next prompts, of as many samples as there is room for, into slots of so many columns."""
        chosen, num_tokens = [], 0
        for prompt in self._prompts:
            new = 0 if prompt.slot is not None else len(prompt.tokens)
            if room <= 0 or (num_tokens and num_tokens + new > PREFILL_TOKENS):
                break
            room -= len(prompt.waiting)
            num_tokens += new
            if new:
                chosen.append(prompt)
        network = self.network
        self._attend(network.attention)
        is_packed = network.is_packed and network.attention in attention.SHARING
        packs = [chosen] if is_packed else [[prompt] for prompt in chosen]
        for prompts in packs if chosen else []:
            one = pack_tokens([prompt.tokens for prompt in prompts], network.options.device)
            states = PromptStates()
            hidden = network.hidden(one, states=states)
            begins = torch.tensor(one.lengths).cumsum(0)
            found = self._logits(hidden[(begins - 1).to(hidden.device)])
            self._shapes = {layer: tuple(one[0, :, :0] for one in pair) for layer, pair in states.states.items()}
            slots = [self._take_slot() for _ in prompts]
            if self._cache.prompts.reserve(self._shapes, self._num_slots, num_columns) and self._graphs is not None:
                self._graphs.forget()
            for place, (prompt, slot, end) in enumerate(zip(prompts, slots, begins.tolist(), strict=True)):
                self._cache.prompts.place(slot.number, states.part(end - len(prompt.tokens), end))
                prompt.slot, prompt.logits = slot, found[place]

    def _step(self):
        """Computes the next tokens of each row, as many as the host looks at together; returns those that ended."""
        if self._columns is None:
            device = self.network.options.device
            look, width = _LOOK.get(device.type, 1), self._width(len(self._rows))
            self._columns = _Columns(self._rows, width, look, self.network.head.vocab_size, device)
            if self._graphs is not None:
                self._columns = self._graphs.load(self._columns)
        columns = self._columns
        columns.at.zero_()
        for _ in range(len(columns.drawn)):
            (self._advance if self._graphs is None else self._graphs.advance)(columns)
        for tokens, logprobs, entropies in columns.drawn[:, :, : len(self._rows)].tolist():
            for row, *drawn in zip(self._rows, tokens, logprobs, entropies, strict=True):
                # What is drawn after an end does not count.
                if row.end is None:
                    row.take(*drawn)
        return self._leave([row for row in self._rows if row.end])

    def _advance(self, columns):
        """Computes and draws a token of each row. Nothing waits for the host, and no shape depends on what is drawn."""
        hidden = self._decode(columns)
        uniforms, chunk, parts = uniform(columns.keys, columns.counts), self.network.head.chunk, []
        for begin in range(0, hidden.shape[0], chunk):
            part = slice(begin, begin + chunk)
            seen = None if columns.seen is None else columns.seen[part]
            parts.append(draw(self._logits(hidden[part]), columns.drawings.part(begin, begin + chunk), uniforms[part], seen))
        tokens, logprobs, entropies = (torch.cat(one) if len(one) > 1 else one[0] for one in zip(*parts, strict=True))
        columns.take(tokens, logprobs, entropies)

    def _decode(self, columns):
        """Last hidden states [n, D] of one token of each row, after what the cache holds of it."""
        if self.network.options.exact:
            return self._decode_tiles(columns)
        self._attend(CACHED)
        given = self._cache.step(columns.lengths, columns.prompt_lengths, columns.groups, columns.longest)
        return self.network.decoder(input_ids=columns.tokens[:, None], **given).last_hidden_state[:, 0]

    def _decode_tiles(self, columns):
        """As `_decode`, by tiles of rows."""
        self._attend(attention.EXACT)
        rows, found = self.network.head.tile, []
        tokens, positions = columns.tokens[None], (columns.prompt_lengths + columns.lengths)[None]
        for first in range(0, len(columns.tokens), rows):
            # Idle rows are in the last tile, and see nothing.
            busy = slice(first, min(first + rows, columns.num_rows))
            tile = CacheTile(self._cache, first, positions[0, busy], columns.longest_row + columns.advanced + 1)
            part = slice(first, first + rows)
            found.append(compute(self.network, tokens[:, part], positions[:, part], tile))
        return torch.cat(found) if len(found) > 1 else found[0]

    def _leave(self, leaving):
        """Removes rows; the last ones take their places."""
        for row in leaving:
            self._open.pop(row.sample, None)
            self._release(row.slot)
            place = next(at for at, one in enumerate(self._rows) if one is row)
            last = self._rows.pop()
            if last is not row:
                self._rows[place] = last
                own = len(last.prompt.tokens) if self.network.options.exact else 0
                self._cache.rows.move(len(self._rows), place, own + len(last.tokens) - 1)
            self._columns = None
        return leaving

    def _abort(self, sample):
        prompt = self._open.get(sample)
        super()._abort(sample)
        if prompt is not None and not prompt.waiting:
            self._forget(prompt)

    def _try(self, num_steps):
        network, device = self.network, self.network.options.device
        # Two samples of the first prompt, so that one is shared.
        lengths, rows_of = (3, 6), (0, 0, 1)
        tokens = [made_up(network.vocab_size, [length + num_steps]).input_ids[0].tolist() for length in lengths]
        drawing = Drawing(1.0, 0, 1.0, 0.0, 1.0, num_steps + 1, frozenset())
        whole = [network.hidden(pack_tokens([one], device)) for one in tokens]
        prompts = [_Prompt(one[:length], drawing, num_steps, deque([(0, 0)])) for one, length in zip(tokens, lengths, strict=True)]
        self._prompts.extend(prompts)
        self._compute_prompts(len(prompts), COLUMNS)
        if not self._shapes:
            raise CacheRefused("it keeps no keys and values")
        self._bytes_per_column = sum(one.shape[0] * one.shape[2] * one.element_size() for pair in self._shapes.values() for one in pair)
        width = self._width(len(rows_of)) if network.options.exact else len(rows_of)
        self._reserve_rows(width, whole_blocks(COLUMNS) if network.options.exact else COLUMNS)
        rows = self._rows = [_Row(0, 0, prompts[place], slot=prompts[place].slot) for place in rows_of]
        self._place_prompts(rows)
        found = []
        for step in range(num_steps):
            for row, place in zip(rows, rows_of, strict=True):
                row.take(tokens[place][lengths[place] + step], 0.0, 0.0)
            found.append(self._decode(_Columns(rows, width, 1, network.head.vocab_size, device))[: len(rows)].float())
        truth = torch.cat([whole[place][lengths[place] :].float() for place in rows_of])
        return truth, torch.stack(found, 1).flatten(0, 1)


def _can_capture(options):
    """Whether steps may be captured: without the kernel, and in tiles, shapes depend on the rows' lengths."""
    return options.device.type == "cuda" and options.ranks is None and has_kernel() and not options.exact


class _Columns:
    """The inputs of the next steps, on the device, while the rows stay the same. Idle rows fill them up to a width."""

    def __init__(self, rows, width, look, vocab_size, device):
        idle = width - len(rows)

        def column(values):
            return torch.tensor([*values, *[0] * idle], dtype=torch.int64).to(device)

        self.tokens = column(row.tokens[-1] for row in rows)
        # Tokens of a completion in the cache. No further than its end: what a row computes after it is not used.
        self.lengths, self.limits = column(len(row.tokens) - 1 for row in rows), column(row.prompt.most - 1 for row in rows)
        self.num_rows, self.longest = len(rows), max(len(row.tokens) - 1 for row in rows)
        self.longest_row, self.advanced = max(row.length for row in rows), 0
        self.prompt_lengths = column(len(row.prompt.tokens) for row in rows)
        self.keys, self.counts = column(row.key for row in rows), column(len(row.tokens) for row in rows)
        filled = [*rows, *rows[:1] * idle]
        self.groups = Groups([row.slot.number for row in filled], device)
        self.drawings = Drawings([row.prompt.drawing for row in filled], device)
        self.seen = seen_tokens(filled, self.drawings, vocab_size, device)
        self.drawn, self.at = torch.zeros(look, 3, width, dtype=torch.float64, device=device), self.tokens.new_zeros(1)

    @property
    def kind(self):
        """Columns of one kind can take each other's places in a captured step."""
        return len(self.tokens), self.drawings.kind

    def copy_(self, other):
        """Takes over other rows, in place."""
        for name in ("tokens", "lengths", "limits", "prompt_lengths", "keys", "counts", "seen"):
            if getattr(self, name) is not None:
                getattr(self, name).copy_(getattr(other, name))
        self.longest = other.longest
        self.groups.slots.copy_(other.groups.slots)
        self.drawings.copy_(other.drawings)

    def take(self, tokens, logprobs, entropies):
        """What was drawn, [n] each, is kept for the host; the tokens are the next inputs."""
        # One transfer: a token is exact as a double.
        drawn = torch.stack([tokens.double(), logprobs.double(), entropies.double()])
        self.drawn.index_copy_(0, self.at, drawn[None])
        self.tokens.copy_(tokens)
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        for counter in (self.at, self.counts, self.lengths):
            counter.add_(1)
        torch.minimum(self.lengths, self.limits, out=self.lengths)
        self.longest += 1
        self.advanced += 1


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
