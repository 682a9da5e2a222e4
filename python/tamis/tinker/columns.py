"""Columns and waves of tamis-learner/1 as arrays of Python's own."""

from array import array
from dataclasses import dataclass
from itertools import pairwise

from ..learner.messages import Column, Refused, RequestError, refuse_columns

_CODES = {"I32": "i", "I64": "q", "F32": "f", "F64": "d"}


def column(dtype, values):
    """A column of one dimension."""
    return Column(dtype, [len(values)], array(_CODES[dtype], values).tobytes())


def take(columns, name, dtype):
    """Takes a column of one dimension out of `columns`, as an array."""
    if name not in columns:
        raise RequestError(f"the column `{name}` is missing")
    found = columns.pop(name)
    if found.dtype != dtype or len(found.shape) != 1:
        raise RequestError(f"column `{name}` must be {dtype} of one dimension, and is {found.dtype} {found.shape}")
    values = array(_CODES[dtype])
    values.frombytes(found.data)
    return values


def take_rows(columns, what):
    """Takes `what_token` and `what_offset` out of `columns`: the tokens of each row, at least one."""
    tokens, offsets = take(columns, f"{what}_token", "I32"), take(columns, f"{what}_offset", "I64")
    if not offsets or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise RequestError(f"`{what}_offset` must begin with 0 and end with the {len(tokens)} tokens that are there")
    if any(end <= begin for begin, end in pairwise(offsets)):
        raise RequestError(f"`{what}_offset` must rise: each {what} has at least one token")
    return [tokens[begin:end] for begin, end in pairwise(offsets)]


def take_places(columns, name, num_rows, num_targets):
    """Takes the index of each of `num_rows` rows among `num_targets` others."""
    places = take(columns, name, "I32")
    if len(places) != num_rows:
        raise RequestError(f"`{name}` has {len(places)} numbers, and must have {num_rows}")
    if any(not 0 <= place < num_targets for place in places):
        raise RequestError(f"`{name}` must lie between 0 and {num_targets - 1}")
    return places


@dataclass(frozen=True)
class Sequence:
    """A prompt and its completion, each of at least one token."""

    prompt: array
    completion: array

    def tokens(self):
        """Both, one after the other."""
        return self.prompt + self.completion

    @property
    def num_targets(self):
        """All tokens but the first: those that are predicted."""
        return len(self.prompt) + len(self.completion) - 1


def take_wave(columns, limits):
    """The `Sequence`s of a wave; takes all of its columns. `limits`: the model's."""
    prompts, completions = take_rows(columns, "prompt"), take_rows(columns, "completion")
    prompt_of = take_places(columns, "prompt_of", len(completions), len(prompts))
    ranks = take_places(columns, "rank", len(completions), 1)
    for name, places in (("prompt_of", prompt_of), ("rank", ranks)):
        if any(after < before for before, after in pairwise(places)):
            raise RequestError(f"`{name}` must not fall")
    refuse_columns(columns)
    wave = [Sequence(prompts[place], tokens) for place, tokens in zip(prompt_of, completions, strict=True)]
    for at, sequence in enumerate(wave):
        limits.check(sequence.tokens(), f"sequence {at}")
    return wave


@dataclass(frozen=True)
class Limits:
    """Limits of a sequence: ids below `vocab_size`, at most `max_positions` tokens (`None`: any number)."""

    vocab_size: int
    max_positions: int | None

    def check(self, tokens, what):
        """Refuses tokens outside the vocabulary, and too many of them."""
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise RequestError(f"{what} holds {token}, and the vocabulary has {self.vocab_size} tokens")
        if self.max_positions is not None and len(tokens) > self.max_positions:
            message = f"{what} has {len(tokens)} tokens, and the model {self.max_positions} positions"
            raise Refused(message, "shorten prompts or completions")
