"""Messages of the wire without tensors: settings, columns as bytes, errors with their status.

A body is JSON, or a safetensors file whose metadata hold the JSON under `json`. All input is checked here: what breaks
docs/learner-protocol.md raises `RequestError` (400). Only Python's standard library is used, because a learner whose
tensors are elsewhere needs no PyTorch; `protocol` makes tensors of the columns.
"""

import difflib
import json
import math
import struct
import textwrap
from dataclasses import dataclass

PROTOCOL = "tamis-learner/1"
JSON = "application/json"
SAFETENSORS = "application/x-safetensors"

# The calls on a learner, each at `/v1/NAME`.
CALLS = (
    "open", "forward", "forward_hold", "backward", "optim_step", "grad_norm", "keep", "restore", "copy", "reset_optimizer", "check",
    "publish", "save", "load", "generate",
)  # fmt: skip

# Bytes of a number of each column type.
WIDTHS = {"I32": 4, "I64": 8, "F32": 4, "F64": 8}


def calls_of(learner):
    """A learner's calls by path: its methods of these names."""
    return {f"/v1/{name}": getattr(learner, name) for name in CALLS}


class LearnerError(Exception):
    """Ends a call without its result: `message` completes "failed to ...", `hint` is the fix."""

    status = 500
    kind = "failed"

    def __init__(self, message, hint=None, **more):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.more = more

    def __reduce__(self):
        # Other ranks send their errors to the first. The classes are constructed in different ways; the fields suffice.
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
    """A body is longer than this learner accepts."""

    status = 413


class SlowError(RequestError):
    """A body did not arrive in time."""

    status = 408


class MethodError(RequestError):
    """A request is neither `GET` nor `POST`."""

    status = 405


class PageError(RequestError):
    """A web page asks, through the browser of a user of this machine."""

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
    """The learner, or a part of it, is gone: it ends, and must be restarted."""

    status, kind = 503, "lost"


class StateError(LearnerError):
    """The call does not fit the learner's state."""

    status, kind = 409, "state"


class IncarnationError(LearnerError):
    """The learner is not the incarnation that was opened."""

    status, kind = 410, "incarnation"


class Refused(LearnerError):
    """The learner cannot do this."""

    status, kind = 422, "refused"


class FilesError(Refused):
    """Files of a folder are missing, damaged or of another shape."""

    kind = "files"

    def __init__(self, message, path, hint=None):
        super().__init__(message, hint, path=str(path))


class Failed(LearnerError):
    """The call broke off."""


class DiskError(Failed):
    """A file or folder could not be written or read: `operation` is the page's name of the failed operation."""

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
        raise ValueError(f"the key `{twice}` is repeated in one object")
    return values


def _not_json(text):
    raise ValueError(f"{text} is not JSON")


def parse_json(text, what):
    """A JSON object; NaN, infinities and repeated keys are refused."""
    try:
        values = json.loads(text, object_pairs_hook=_strict_object, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise RequestError(f"{what} must be a JSON object")
    return values


_REQUIRED = object()


class Settings:
    """A JSON object that is read key by key; `finish` refuses keys that were not read."""

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
        """Its content, without these keys."""
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
        """Nested settings; `default` if there are none."""
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
        """A list of nested settings."""

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


@dataclass
class Column:
    """A column on the wire: its type's name, its shape, its numbers as little-endian bytes."""

    dtype: str
    shape: list
    data: bytes | memoryview


def decode(content_type, body):
    """A body as `(settings, columns)`: a dict, and `Column`s by name.

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
    dtype = entry["dtype"]
    width = WIDTHS.get(dtype) if isinstance(dtype, str) else None
    if width is None:
        raise wrong(f"is not of one of the types {', '.join(WIDTHS)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not (isinstance(shape, list) and len(shape) <= 8 and all(map(whole, shape))):
        raise wrong("has no shape")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(whole, offsets))):
        raise wrong("has no data_offsets")
    begin, end = offsets
    if begin > end or end > len(data) or end - begin != math.prod(shape) * width:
        raise wrong(f"has the offsets {begin} and {end}, which fit neither its shape nor the body")
    return Column(dtype, shape, data[begin:end])


def encode(values, columns=None):
    """An answer as `(content type, body)`; `columns`: `Column`s by name."""
    text = json.dumps(values, allow_nan=False, ensure_ascii=False)
    if not columns:
        return JSON, text.encode()
    header = {"__metadata__": {"json": text}}
    parts, begin = [], 0
    # The widest types first, so that each column begins at a multiple of its own width.
    for name, column in sorted(columns.items(), key=lambda item: -WIDTHS[item[1].dtype]):
        end = begin + len(column.data)
        header[name] = {"dtype": column.dtype, "shape": column.shape, "data_offsets": [begin, end]}
        parts.append(column.data)
        begin = end
    head = json.dumps(header, ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return SAFETENSORS, b"".join([struct.pack("<Q", len(head)), head, *parts])


def refuse_columns(columns):
    """Refuses columns that were not read."""
    for name in columns:
        raise RequestError(f"the call has no column `{name}`")


def first_line(error):
    """An exception's message, in one line."""
    text = str(error).strip().splitlines()
    return textwrap.shorten(text[0], 300, placeholder=" ...") if text else type(error).__name__
