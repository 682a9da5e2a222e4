"""Bodies of the wire with tensors: columns and settings in, columns and settings out.

`messages` reads and writes bodies and defines the errors, which this module exports too. All input is checked, so that
the rest of the package can trust it: what breaks docs/learner-protocol.md raises `RequestError` (400), what this
learner cannot do `Refused` (422).
"""

from dataclasses import dataclass, field

import torch

from . import messages
from .messages import (
    JSON,
    MAX_JSON_BYTES,
    PROTOCOL,
    SAFETENSORS,
    Column,
    DiskError,
    Failed,
    FilesError,
    IncarnationError,
    LearnerError,
    Lost,
    MethodError,
    PageError,
    PathError,
    Refused,
    RequestError,
    SequenceError,
    Settings,
    SlowError,
    StateError,
    TokenError,
    TooLongError,
    parse_json,
    refuse_columns,
)

__all__ = [
    "DTYPES",
    "DTYPE_NAMES",
    "JSON",
    "MAX_JSON_BYTES",
    "PROTOCOL",
    "SAFETENSORS",
    "Column",
    "DiskError",
    "Failed",
    "FilesError",
    "IncarnationError",
    "LearnerError",
    "Lost",
    "MethodError",
    "PageError",
    "PathError",
    "Refused",
    "RequestError",
    "SequenceError",
    "Settings",
    "SlowError",
    "StateError",
    "TokenError",
    "TooLongError",
    "parse_json",
    "refuse_columns",
    "Wave",
    "decode",
    "encode",
    "take_column",
    "take_derivatives",
]

DTYPES = {
    "I32": torch.int32,
    "I64": torch.int64,
    "F32": torch.float32,
    "F64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def decode(content_type, body):
    """A body as `(settings, columns)`: a dict, and tensors by name that own their memory."""
    values, columns = messages.decode(content_type, body)
    return values, {name: _tensor(column) for name, column in columns.items()}


def _tensor(column):
    dtype = DTYPES[column.dtype]
    if not column.data:
        return torch.empty(column.shape, dtype=dtype)
    return torch.frombuffer(bytearray(column.data), dtype=dtype).reshape(column.shape)


def encode(values, columns=None):
    """An answer as `(content type, body)`; `columns`: tensors by name."""
    return messages.encode(values, {name: _column(tensor) for name, tensor in (columns or {}).items()})


def _column(tensor):
    data = tensor.detach().to("cpu").contiguous()
    part = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return Column(DTYPE_NAMES[data.dtype], list(data.shape), part)


@dataclass
class Wave:
    """Whole sequences that pass through the learner at once: N completion tokens in S sequences of P prompts.

    The fields are the columns of the page, on the CPU; `images` are the paths of each prompt's images, `None` if no
    prompt has any; `candidates`: i32 [N, k], other tokens at each place whose log-probabilities are wanted, `None`
    without any; `num_tokens` is N.
    """

    prompt_token: torch.Tensor
    prompt_offset: torch.Tensor
    prompt_of: torch.Tensor
    completion_token: torch.Tensor
    completion_offset: torch.Tensor
    rank: torch.Tensor
    images: list | None = None
    candidates: torch.Tensor | None = None
    num_tokens: int = field(init=False)

    def __post_init__(self):
        self.num_tokens = self.completion_token.numel()

    @classmethod
    def from_columns(cls, columns, num_ranks=1, images=None):
        """Takes the wave's columns out of `columns` and checks that they fit together."""
        wave = cls(**{name: take_column(columns, name, dtype) for name, dtype in _WAVE.items()}, images=images)
        _check_offsets("prompt", wave.prompt_offset, wave.prompt_token.numel())
        _check_offsets("completion", wave.completion_offset, wave.completion_token.numel())
        num_prompts, num_sequences = wave.prompt_offset.numel() - 1, wave.completion_offset.numel() - 1
        _check_places("prompt_of", wave.prompt_of, num_sequences, num_prompts)
        _check_places("rank", wave.rank, num_sequences, num_ranks)
        if "candidate_token" in columns:
            tokens = take_column(columns, "candidate_token", torch.int32)
            if not wave.num_tokens or tokens.numel() % wave.num_tokens:
                raise RequestError(f"`candidate_token` has {tokens.numel()} numbers, not as many for each of {wave.num_tokens} tokens")
            if tokens.numel():
                wave.candidates = tokens.reshape(wave.num_tokens, -1)
        if images is not None:
            if len(images) != num_prompts:
                raise RequestError(f"`images` has {len(images)} lists, and there are {num_prompts} prompts")
            for path in (path for paths in images for path in paths):
                if not path.startswith("/"):
                    raise RequestError(f"the path {path} of an image is not absolute")
            if not any(images):
                wave.images = None
        return wave

    @classmethod
    def of_one_token(cls, num_candidates=0):
        """One made-up sequence with one completion token, with so many candidates."""
        columns = {"prompt_token": [0], "prompt_offset": [0, 1], "prompt_of": [0], "completion_token": [0]}
        columns |= {"completion_offset": [0, 1], "rank": [0]}
        wave = cls(**{name: torch.tensor(values, dtype=_WAVE[name]) for name, values in columns.items()})
        if num_candidates:
            wave.candidates = torch.zeros(1, num_candidates, dtype=torch.int32)
        return wave

    def of_rank(self, rank):
        """The sequences of one rank, and the range of their completion tokens in the whole wave."""
        begin, end = (int(torch.searchsorted(self.rank, value)) for value in (rank, rank + 1))
        tokens = slice(int(self.completion_offset[begin]), int(self.completion_offset[end]))
        places = self.prompt_of[begin:end]
        first, last = (int(places[0]), int(places[-1]) + 1) if end > begin else (0, 0)
        prompts = slice(int(self.prompt_offset[first]), int(self.prompt_offset[last]))
        part = Wave(
            prompt_token=self.prompt_token[prompts],
            prompt_offset=self.prompt_offset[first : last + 1] - prompts.start,
            prompt_of=places - first,
            completion_token=self.completion_token[tokens],
            completion_offset=self.completion_offset[begin : end + 1] - tokens.start,
            rank=torch.zeros_like(places),
            images=None if self.images is None else self.images[first:last],
            candidates=None if self.candidates is None else self.candidates[tokens],
        )
        return part, tokens

    @property
    def num_sequences(self):
        """S."""
        return self.prompt_of.numel()

    @property
    def num_candidates(self):
        """k."""
        return 0 if self.candidates is None else self.candidates.shape[1]

    def lengths(self):
        """Tokens of each sequence, prompt and completion together, i64 [S]."""
        prompts = self.prompt_offset.diff()[self.prompt_of.long()]
        return prompts + self.completion_offset.diff()

    def check_fits(self, vocab_size, max_positions):
        """Refuses tokens outside the vocabulary, and sequences longer than the model has positions for."""
        for name in ("prompt_token", "completion_token", "candidates"):
            tokens = getattr(self, name)
            if tokens is not None and tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
                outside = next(token for token in tokens.flatten().tolist() if not 0 <= token < vocab_size)
                raise RequestError(f"`{name}` holds {outside}, and the vocabulary has {vocab_size} tokens")
        if max_positions is not None and self.num_sequences:
            longest, at = self.lengths().max(0)
            if longest > max_positions:
                message = f"sequence {int(at)} has {int(longest)} tokens, and the model {max_positions} positions"
                raise Refused(message, "shorten prompts or completions")


_WAVE = {
    "prompt_token": torch.int32,
    "prompt_offset": torch.int64,
    "prompt_of": torch.int32,
    "completion_token": torch.int32,
    "completion_offset": torch.int64,
    "rank": torch.int32,
}


def take_column(columns, name, dtype):
    """Takes a column of one dimension out of `columns`."""
    if name not in columns:
        raise RequestError(f"the column `{name}` is missing")
    column = columns.pop(name)
    if column.dtype != dtype or column.dim() != 1:
        expected, found = DTYPE_NAMES[dtype], DTYPE_NAMES[column.dtype]
        raise RequestError(f"column `{name}` must be {expected} of one dimension, and is {found} {list(column.shape)}")
    return column


def take_derivatives(columns, name, num_tokens, required=True, per_token=1):
    """The column `name`, f32 [N], or [N, k] for a column of candidates; `None` if it is absent and optional."""
    if not required and name not in columns:
        return None
    column = take_column(columns, name, torch.float32)
    if column.numel() != num_tokens * per_token:
        of_each = "" if per_token == 1 else f" with {per_token} candidates each"
        raise RequestError(f"column `{name}` has {column.numel()} numbers, and the held pass {num_tokens} tokens{of_each}")
    return column if name != "candidate" else column.reshape(num_tokens, per_token)


def _check_offsets(what, offsets, num_tokens):
    if not offsets.numel() or offsets[0] != 0 or offsets[-1] != num_tokens:
        raise RequestError(f"`{what}_offset` must begin with 0 and end with the {num_tokens} tokens that are there")
    # Compared, not subtracted: a difference of two distant numbers could overflow.
    if bool((offsets[1:] <= offsets[:-1]).any()):
        raise RequestError(f"`{what}_offset` must rise: each {what} has at least one token")


def _check_places(name, places, num_sequences, num_targets):
    if places.numel() != num_sequences:
        raise RequestError(f"`{name}` has {places.numel()} numbers, and there are {num_sequences} sequences")
    if bool((places[1:] < places[:-1]).any()):
        raise RequestError(f"`{name}` must not fall")
    if num_sequences and not 0 <= int(places[0]) <= int(places[-1]) < num_targets:
        raise RequestError(f"`{name}` must lie between 0 and {num_targets - 1}")
