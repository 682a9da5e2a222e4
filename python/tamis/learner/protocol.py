"""Bodies of the wire: columns and settings in, columns and settings out, errors with their status.

A body is JSON, or a safetensors file whose metadata hold the JSON under `json`. Everything that comes in is
checked here, so that the rest of the package may trust it: what breaks docs/learner-protocol.md raises
`RequestError` (400), what this learner cannot do `Refused` (422).
"""

import difflib
import json
import math
import struct
from dataclasses import dataclass, field

import torch

PROTOCOL = "tamis-learner/1"
JSON = "application/json"
SAFETENSORS = "application/x-safetensors"

DTYPES = {
    "I32": torch.int32,
    "I64": torch.int64,
    "F32": torch.float32,
    "F64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class LearnerError(Exception):
    """What ends a call without its answer: `message` completes "failed to ...", `hint` says what to do."""

    status = 500
    kind = "failed"

    def __init__(self, message, hint=None, **more):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.more = more

    def __reduce__(self):
        # Other ranks send theirs to the first: classes are made in many ways, and what they hold is enough.
        return _as_it_was, (type(self), self.args, self.__dict__)

    def body(self):
        """The error as the wire has it."""
        return {"error": {"kind": self.kind, "message": self.message, "hint": self.hint, **self.more}}


def _as_it_was(kind, args, held):
    error = kind.__new__(kind, *args)
    error.__dict__.update(held)
    return error


class RequestError(LearnerError):
    """The request breaks the protocol."""

    status, kind = 400, "request"


class TooLongError(RequestError):
    """A body is longer than this learner takes."""

    status = 413


class SlowError(RequestError):
    """A body was not there in time."""

    status = 408


class MethodError(RequestError):
    """A request is neither `GET` nor `POST`."""

    status = 405


class PageError(RequestError):
    """A web page asks, through the browser of somebody on this machine."""

    status = 403


class TokenError(LearnerError):
    """No bearer token, or a wrong one."""

    status, kind = 401, "token"


class PathError(LearnerError):
    """There is no such call."""

    status, kind = 404, "path"


class SequenceError(LearnerError):
    """A gap in the sequence numbers."""

    status, kind = 409, "sequence"


class Lost(LearnerError):
    """The learner is gone, or a part of it: it ends, and is to be started again."""

    status, kind = 503, "lost"


class StateError(LearnerError):
    """The call does not fit what the learner holds."""

    status, kind = 409, "state"


class IncarnationError(LearnerError):
    """The learner is not the one that was opened."""

    status, kind = 410, "incarnation"


class Refused(LearnerError):
    """The learner cannot do this."""

    status, kind = 422, "refused"


class FilesError(Refused):
    """A folder does not hold what it must: files are missing or damaged, or of another shape."""

    kind = "files"

    def __init__(self, message, path, hint=None):
        super().__init__(message, hint, path=str(path))


class Failed(LearnerError):
    """It broke off."""


class DiskError(Failed):
    """A file or folder could not be written or read: `operation` is the page's name for what failed with it."""

    kind = "disk"

    def __init__(self, operation, path, error, hint=None):
        reason = error.strerror or str(error)
        message = f"failed to {operation.replace('_', ' ')} {path}: {reason}"
        more = {} if error.errno is None else {"errno": error.errno}
        super().__init__(message, hint, operation=operation, path=str(path), **more)


# Most bytes of JSON in a request: of a body without columns, or of the header of one with columns.
MAX_JSON_BYTES = 4 << 20


def _strict_object(pairs):
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key `{twice}` stands twice in one object")
    return values


def _not_json(text):
    raise ValueError(f"{text} is not JSON")


def parse_json(text, what):
    """A JSON object; NaN, infinities and keys that stand twice are refused."""
    try:
        values = json.loads(text, object_pairs_hook=_strict_object, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise RequestError(f"{what} must be a JSON object")
    return values


_REQUIRED = object()


class Settings:
    """A JSON object that is read key by key; `finish` refuses the keys that nobody asked for."""

    def __init__(self, values, what="the request"):
        self._values = dict(values)
        self._what = what
        self._known = []

    def _take(self, name, default, expected, accepts):
        self._known.append(name)
        value = self._values.pop(name, default)
        if value is _REQUIRED:
            raise RequestError(f"{self._what} has no `{name}` ({expected})")
        if value is default or accepts(value):
            return value
        found = json.dumps(value)
        found = found if len(found) <= 60 else found[:57] + "..."
        raise RequestError(f"`{name}` of {self._what} must be {expected}, and is {found}")

    def others_than(self, *names):
        """What it holds, without these keys."""
        return {name: value for name, value in self._values.items() if name not in names}

    def text(self, name, default=_REQUIRED):
        """A text."""
        return self._take(name, default, "a text", lambda value: isinstance(value, str))

    def choice(self, name, choices, default=_REQUIRED):
        """One of these texts."""
        return self._take(name, default, "one of " + ", ".join(choices), lambda value: value in choices)

    def flag(self, name, default=_REQUIRED):
        """True or false."""
        return self._take(name, default, "true or false", lambda value: isinstance(value, bool))

    def count(self, name, default=_REQUIRED, least=0):
        """A whole number."""
        expected = f"a whole number from {least} on"

        def accepts(value):
            return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63

        return self._take(name, default, expected, accepts)

    def number(self, name, default=_REQUIRED, least=None, above=None, below=None):
        """A finite number within bounds, as a float."""
        bounds = [("from", least), ("above", above), ("below", below)]
        expected = " ".join(["a number", *(f"{word} {bound}" for word, bound in bounds if bound is not None)])

        def accepts(value):
            try:
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    return False
            except OverflowError:
                return False
            inside = least is None or value >= least
            return inside and (above is None or value > above) and (below is None or value < below)

        value = self._take(name, default, expected, accepts)
        return float(value) if isinstance(value, int) else value

    def object(self, name, default=_REQUIRED):
        """Settings of their own; `default` where there are none."""
        values = self._take(name, default, "an object", lambda value: isinstance(value, dict))
        return Settings(values, f"`{name}`") if isinstance(values, dict) else values

    def texts(self, name, default=_REQUIRED):
        """A list of texts, not empty."""

        def accepts(value):
            return isinstance(value, list) and value and all(isinstance(item, str) for item in value)

        return self._take(name, default, "a list of texts", accepts)

    def counts(self, name, default=_REQUIRED):
        """A list of whole numbers."""

        def accepts(value):
            return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)

        return self._take(name, default, "a list of whole numbers", accepts)

    def objects(self, name, default=_REQUIRED):
        """A list of settings of their own."""

        def accepts(value):
            return isinstance(value, list) and all(isinstance(item, dict) for item in value)

        values = self._take(name, default, "a list of objects", accepts)
        return [Settings(item, f"`{name}[{place}]`") for place, item in enumerate(values)]

    def lists_of_texts(self, name, default=_REQUIRED):
        """A list of lists of texts, any of them empty."""

        def accepts(value):
            lists = value if isinstance(value, list) else [None]
            return all(isinstance(one, list) and all(isinstance(item, str) for item in one) for one in lists)

        return self._take(name, default, "a list of lists of texts", accepts)

    def finish(self):
        """Refuses keys that are left over."""
        for name in self._values:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else None
            raise RequestError(f"{self._what} has the unknown key `{name}`", hint)


def decode(content_type, body):
    """A body as `(settings, columns)`: a dict, and tensors by name that own their memory.

    Any content type but that of safetensors is read as JSON, so that `curl -d` works; no body is `{}`.
    """
    if content_type.split(";")[0].strip().lower() == SAFETENSORS:
        return _decode_safetensors(body)
    return (parse_json(body, "the body") if body else {}), {}


def _decode_safetensors(body):
    wrong = "the body is not a safetensors file: "
    if len(body) < 8:
        raise RequestError(wrong + "it is shorter than the length of its header")
    (length,) = struct.unpack_from("<Q", body)
    if length > len(body) - 8:
        raise RequestError(wrong + f"its header would have {length} bytes, and {len(body) - 8} follow")
    if length > MAX_JSON_BYTES:
        raise TooLongError(f"the header has {length} bytes of JSON, and at most {MAX_JSON_BYTES} are taken")
    header = parse_json(bytes(body[8 : 8 + length]), "the header of the body")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise RequestError(wrong + "`__metadata__` is not an object")
    text = metadata.get("json", "{}")
    if not isinstance(text, str):
        raise RequestError(wrong + "`json` in its metadata is not a text")
    data = memoryview(body)[8 + length :]
    columns = {name: _column(name, entry, data) for name, entry in header.items()}
    return parse_json(text, "`json` of the body's metadata"), columns


def _column(name, entry, data):
    def whole(value):
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62

    def wrong(why):
        return RequestError(f"column `{name}` {why}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("has no dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise wrong(f"is not of one of the types {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not (isinstance(shape, list) and len(shape) <= 8 and all(map(whole, shape))):
        raise wrong("has no shape")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(whole, offsets))):
        raise wrong("has no data_offsets")
    begin, end = offsets
    if begin > end or end > len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise wrong(f"has the offsets {begin} and {end}, which fit neither its shape nor the body")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(shape)


def encode(values, columns=None):
    """An answer as `(content type, body)`."""
    text = json.dumps(values, allow_nan=False, ensure_ascii=False)
    if not columns:
        return JSON, text.encode()
    header = {"__metadata__": {"json": text}}
    parts, begin = [], 0
    # The widest types first, so that each column begins at a multiple of its own width.
    for name, column in sorted(columns.items(), key=lambda item: -item[1].element_size()):
        data = column.detach().to("cpu").contiguous()
        part = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
        shape, end = list(data.shape), begin + len(part)
        header[name] = {"dtype": DTYPE_NAMES[data.dtype], "shape": shape, "data_offsets": [begin, end]}
        parts.append(part)
        begin = end
    head = json.dumps(header, ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return SAFETENSORS, b"".join([struct.pack("<Q", len(head)), head, *parts])


@dataclass
class Wave:
    """Whole sequences that pass through the learner at once: N completion tokens in S sequences of P prompts.

    The fields are the columns of the page, on the CPU; `images` are the paths of each prompt's images, `None`
    where no prompt has any; `num_tokens` is N.
    """

    prompt_token: torch.Tensor
    prompt_offset: torch.Tensor
    prompt_of: torch.Tensor
    completion_token: torch.Tensor
    completion_offset: torch.Tensor
    rank: torch.Tensor
    images: list | None = None
    num_tokens: int = field(init=False)

    def __post_init__(self):
        self.num_tokens = self.completion_token.numel()

    @classmethod
    def from_columns(cls, columns, num_ranks=1, images=None):
        """Takes the wave's columns out of `columns` and checks how they fit together."""
        wave = cls(**{name: take_column(columns, name, dtype) for name, dtype in _WAVE.items()}, images=images)
        _check_offsets("prompt", wave.prompt_offset, wave.prompt_token.numel())
        _check_offsets("completion", wave.completion_offset, wave.completion_token.numel())
        num_prompts, num_sequences = wave.prompt_offset.numel() - 1, wave.completion_offset.numel() - 1
        _check_places("prompt_of", wave.prompt_of, num_sequences, num_prompts)
        _check_places("rank", wave.rank, num_sequences, num_ranks)
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
    def of_one_token(cls):
        """One made-up sequence with one completion token."""
        columns = {"prompt_token": [0], "prompt_offset": [0, 1], "prompt_of": [0], "completion_token": [0]}
        columns |= {"completion_offset": [0, 1], "rank": [0]}
        return cls(**{name: torch.tensor(values, dtype=_WAVE[name]) for name, values in columns.items()})

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
        )
        return part, tokens

    @property
    def num_sequences(self):
        """S."""
        return self.prompt_of.numel()

    def lengths(self):
        """Tokens of each sequence, prompt and completion together, i64 [S]."""
        prompts = self.prompt_offset.diff()[self.prompt_of.long()]
        return prompts + self.completion_offset.diff()

    def check_fits(self, vocab_size, max_positions):
        """Refuses tokens outside the vocabulary, and sequences longer than the model has positions for."""
        for name in ("prompt_token", "completion_token"):
            tokens = getattr(self, name)
            if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
                outside = next(token for token in tokens.tolist() if not 0 <= token < vocab_size)
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


def take_derivatives(columns, name, num_tokens, required=True):
    """The column `name`, f32 [N]; `None` where it is not there and need not be."""
    if not required and name not in columns:
        return None
    column = take_column(columns, name, torch.float32)
    if column.numel() != num_tokens:
        raise RequestError(f"column `{name}` has {column.numel()} numbers, and the held pass {num_tokens} tokens")
    return column


def refuse_columns(columns):
    """Refuses columns that nobody asked for."""
    for name in columns:
        raise RequestError(f"the call has no column `{name}`")


def _check_offsets(what, offsets, num_tokens):
    if not offsets.numel() or offsets[0] != 0 or offsets[-1] != num_tokens:
        raise RequestError(f"`{what}_offset` must begin with 0 and end with the {num_tokens} tokens that are there")
    # Compared, not subtracted: a difference of two far numbers could overflow.
    if bool((offsets[1:] <= offsets[:-1]).any()):
        raise RequestError(f"`{what}_offset` must rise: each {what} has at least one token")


def _check_places(name, places, num_sequences, num_targets):
    if places.numel() != num_sequences:
        raise RequestError(f"`{name}` has {places.numel()} numbers, and there are {num_sequences} sequences")
    if bool((places[1:] < places[:-1]).any()):
        raise RequestError(f"`{name}` must not fall")
    if num_sequences and not 0 <= int(places[0]) <= int(places[-1]) < num_targets:
        raise RequestError(f"`{name}` must lie between 0 and {num_targets - 1}")
