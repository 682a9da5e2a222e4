"""The protobuf bodies of Tinker's API: passes out; results of passes, and samples, in.

Written and read by hand, because they are five small messages (`tinker_public`, proto3). A pass is written byte for
byte as the SDK writes it.
"""

import struct
from array import array
from dataclasses import dataclass
from itertools import pairwise

CONTENT_TYPE = "application/x-protobuf"

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
# The numbers of `DType`.
_FLOAT32, _INT64, _BFLOAT16 = 1, 2, 4
_STOP = 0


class ProtobufError(Exception):
    """A body is not the expected message."""


@dataclass
class Datum:
    """A sequence with a target at each position: P input tokens, P targets, and per-target numbers by name."""

    tokens: list
    targets: list
    inputs: dict


@dataclass
class SampledSequence:
    """A completion: its tokens, the log-probability of each at temperature 1, and whether a stop token ended it."""

    tokens: array
    logprobs: array
    is_stopped: bool


def _varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field, value):
    # Zeros are not written.
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def _bytes(field, value):
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _tensor(dtype, values):
    code = "q" if dtype == _INT64 else "f"
    return _bytes(1, array(code, values).tobytes()) + _number(3, dtype) + _bytes(4, _varint(len(values)))


def _entry(name, dtype, values):
    return _bytes(2, _bytes(1, name.encode()) + _bytes(2, _tensor(dtype, values)))


def encode_datum(datum):
    """A `Datum`."""
    chunk = _bytes(1, _bytes(1, array("i", datum.tokens).tobytes()))
    inputs = b"".join(_entry(name, _FLOAT32, values) for name, values in datum.inputs.items())
    return _bytes(1, chunk) + _entry("target_tokens", _INT64, datum.targets) + inputs


def encode_pass(model, number, data, loss, forward_only=False):
    """A `ForwardBackwardRequest` of encoded data."""
    return b"".join([
        _bytes(1, model.encode()),
        _number(2, number),
        *(_bytes(3, datum) for datum in data),
        _bytes(4, loss.encode()),
        _number(6, int(forward_only)),
    ])  # fmt: skip


def _fields(data):
    """The fields of a message as `(number, value)`: integers, and bytes for all other types."""
    place = 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(data) or shift > 63:
                raise ProtobufError("a number is cut off")
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        tag = varint()
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            yield number, varint()
            continue
        if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
            raise ProtobufError(f"field {number} is of the unknown kind {kind}")
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        length = varint() if length is None else length
        if place + length > len(data):
            raise ProtobufError(f"field {number} is cut off")
        yield number, data[place : place + length]
        place += length


def _message(value):
    if isinstance(value, int):
        raise ProtobufError("a number in place of a message")
    return value


def _last(data, default=b""):
    """A message's fields by number, the last of each."""
    fields = dict(_fields(_message(data)))
    return lambda number, kind=bytes: _of_kind(fields.get(number, kind()), number, kind)


def _of_kind(value, number, kind):
    if isinstance(value, int) != (kind is int):
        raise ProtobufError(f"field {number} is of another kind")
    return value


def _array(code, data):
    values = array(code)
    if len(data) % values.itemsize:
        raise ProtobufError(f"{len(data)} bytes are no whole numbers of {values.itemsize}")
    values.frombytes(data)
    return values


def _floats(data, dtype):
    if dtype == _BFLOAT16:
        halves = _array("H", data)
        data = array("I", [half << 16 for half in halves]).tobytes()
    elif dtype != _FLOAT32:
        raise ProtobufError(f"log-probabilities are of the type {dtype}, which is neither float32 nor bfloat16")
    return _array("f", data)


def decode_pass(data):
    """Log-probabilities of each datum, and metrics by name, of a `ForwardBackwardOutput`."""
    rows, metrics = [], {}
    for number, value in _fields(data):
        if number == 2:
            rows += _logprobs(value)
        elif number == 3:
            entry = _last(value)
            metrics[entry(1).decode(errors="replace")] = struct.unpack("<d", entry(2) or bytes(8))[0]
    return rows, metrics


def _logprobs(record):
    for number, value in _fields(_message(record)):
        if number != 2:
            continue
        entry = _last(value)
        if entry(1) != b"logprobs":
            continue
        tensor = _last(entry(2))
        offsets = _array("q", tensor(2))
        numbers = tensor(1)
        if not offsets or any(end < begin for begin, end in pairwise(offsets)):
            raise ProtobufError("the offsets of the log-probabilities do not rise")
        if offsets[0] < 0 or offsets[-1] > len(numbers):
            raise ProtobufError("the offsets of the log-probabilities lie outside of them")
        dtype = tensor(3, int)
        return [_floats(numbers[begin:end], dtype) for begin, end in pairwise(offsets)]
    raise ProtobufError("there are no log-probabilities")


def decode_samples(data):
    """The `SampledSequence`s of a `SampleResponse`."""
    samples = []
    for number, value in _fields(data):
        if number == 1:
            sequence = _last(value)
            tokens, logprobs = _array("i", sequence(2)), _array("f", sequence(3))
            if len(tokens) != len(logprobs):
                raise ProtobufError(f"{len(tokens)} tokens have {len(logprobs)} log-probabilities")
            samples.append(SampledSequence(tokens, logprobs, sequence(1, int) == _STOP))
    return samples
