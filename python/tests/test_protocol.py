"""Bodies in and out, waves, settings: what is taken and what is refused."""

import json
import random
import struct
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import Case, columns, random_columns

import torch
from safetensors.torch import load, save
from tamis.learner import protocol
from tamis.learner.protocol import LearnerError, RequestError, Settings, Wave


def decode(body, content_type=protocol.SAFETENSORS):
    return protocol.decode(content_type, bytearray(body))


class Bodies(Case):
    def test_round_trip(self):
        given = {
            **random_columns(50),
            "grad_norm": torch.tensor([float("nan")], dtype=torch.float64),
            "empty": torch.zeros(0),
        }
        values = {"number": 0.1 + 0.2, "text": 'ü\n"', "none": None, "list": [1, 2.5e-300]}
        content_type, body = protocol.encode(values, given)
        self.assertEqual(content_type, protocol.SAFETENSORS)
        found, tensors = decode(body)
        self.assertEqual(found, values)
        self.assertEqual(tensors.keys(), given.keys())
        for name, tensor in given.items():
            self.assertEqual(tensors[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(tensors[name].nan_to_num(7), tensor.nan_to_num(7)), name)
        # Others read it, and we read theirs.
        for name, tensor in load(body).items():
            self.assertTrue(torch.equal(tensor.nan_to_num(7), given[name].nan_to_num(7)), name)
        found, tensors = decode(save(given, {"json": json.dumps(values)}))
        self.assertEqual(found, values)
        self.assert_same(tensors["prompt_token"], given["prompt_token"])

    def test_columns_at_any_offset(self):
        header = {
            "b": {"dtype": "F64", "shape": [1], "data_offsets": [4, 12]},
            "a": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
        }
        head = json.dumps(header).encode()
        body = struct.pack("<Q", len(head)) + head + struct.pack("<id", 7, 2.5)
        values, tensors = decode(body)
        self.assertEqual((values, tensors["a"].item(), tensors["b"].item()), ({}, 7, 2.5))

    def test_json(self):
        for content_type in (
            "application/json",
            "application/json; charset=utf-8",
            "",
            "application/x-www-form-urlencoded",
        ):
            self.assertEqual(decode(b'{"a": 1}', content_type), ({"a": 1}, {}))
        self.assertEqual(decode(b"", ""), ({}, {}))
        self.assertEqual(protocol.encode({"a": 1}), ("application/json", b'{"a": 1}'))
        with self.assertRaises(ValueError):
            protocol.encode({"a": float("nan")})

    def test_broken_json(self):
        for body in (
            b"{",
            b"[]",
            b"3",
            b"\xff",
            b'{"a": NaN}',
            b'{"a": -Infinity}',
            b'{"a": 1, "a": 2}',
            b"[" * 100000,
            b'{"a": ' + b"9" * 5000 + b"}",
        ):
            self.assert_refused(RequestError, "body", decode, body, "application/json")

    def test_broken_safetensors(self):
        def body(header, data=b"\0" * 8):
            head = header if isinstance(header, bytes) else json.dumps(header).encode()
            return struct.pack("<Q", len(head)) + head + data

        def column(**change):
            return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}}

        self.assertEqual(decode(body(column()))[1]["x"].tolist(), [0.0, 0.0])
        wrong = [
            b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", body(b"[]"), body(b"{"), body({"__metadata__": 3}),
            body({"__metadata__": {"json": 3}}), body({"__metadata__": {"json": "{"}}), body({"x": 3}), body(column(dtype="F16")),
            body(column(dtype=["F32"])), body(column(shape=[3])), body(column(shape=3)), body(column(shape=[-2, -1])), body(column(shape=[1.0])),
            body(column(shape=[1 << 61, 1 << 61])), body(column(data_offsets=[0, 12])), body(column(data_offsets=[8, 0])),
            body(column(data_offsets=[8, 16])), body(column(data_offsets=[0])), body(column(data_offsets=[True, 8])), body(column(more=1)),
        ]  # fmt: skip
        for one in wrong:
            with self.subTest(one):
                self.assertRaises(RequestError, decode, one)

    def test_noise_is_refused_with_an_error_of_the_wire(self):
        draw = random.Random(1)
        _, good = protocol.encode({"network": "policy"}, random_columns(50))
        for _ in range(3000):
            body = bytearray(good)
            for _ in range(draw.randint(1, 8)):
                place = draw.choice([draw.randrange(8), draw.randrange(len(body)), draw.randrange(min(700, len(body)))])
                body[place] = draw.randrange(256)
            body = body[: draw.choice([len(body), draw.randrange(len(body))])]
            try:
                values, tensors = protocol.decode(protocol.SAFETENSORS, body)
                Settings(values).finish()
                wave = Wave.from_columns(tensors)
                wave.check_fits(50, 64)
            except LearnerError as error:
                self.assertIn(error.status, (400, 422))
                json.dumps(error.body())


class Waves(Case):
    def test_lengths(self):
        wave = Wave.from_columns(columns([[1, 2, 3], [4]], [(0, [5]), (0, [6, 7]), (1, [8, 9])]))
        self.assertEqual(wave.lengths().tolist(), [4, 5, 3])
        self.assertEqual((wave.num_tokens, wave.num_sequences), (5, 3))

    def test_what_does_not_fit_together(self):
        i32, i64 = torch.int32, torch.int64
        wrong = {
            "column `prompt_token` must be I32": dict(prompt_token=torch.zeros(4, dtype=i64)),
            r"`rank` must be I32 of one dimension, and is I32 \[3, 1\]": dict(rank=torch.zeros(3, 1, dtype=i32)),
            "`prompt_offset` must begin with 0 and end with the 4": dict(prompt_offset=torch.tensor([0, 3, 5])),
            "`completion_offset` must begin with 0": dict(completion_offset=torch.tensor([1, 2, 3, 5])),
            "`completion_offset` must begin": dict(completion_offset=torch.zeros(0, dtype=i64)),
            "`prompt_offset` must rise": dict(prompt_offset=torch.tensor([0, 4, 4])),
            "`completion_offset` must rise": dict(completion_offset=torch.tensor([0, -(1 << 63), (1 << 63) - 1, 5])),
            "`prompt_of` has 2 numbers, and there are 3": dict(prompt_of=torch.tensor([0, 1], dtype=i32)),
            "`prompt_of` must not fall": dict(prompt_of=torch.tensor([0, 1, 0], dtype=i32)),
            "`prompt_of` must lie between 0 and 1": dict(prompt_of=torch.tensor([0, 1, 2], dtype=i32)),
            "`rank` must lie between 0 and 0": dict(rank=torch.tensor([0, 0, 1], dtype=i32)),
            "`rank` must lie": dict(rank=torch.tensor([-1, 0, 0], dtype=i32)),
        }
        good = columns([[1, 2, 3], [4]], [(0, [5]), (0, [6, 7]), (1, [8, 9])])
        Wave.from_columns(dict(good))
        for pattern, change in wrong.items():
            self.assert_refused(RequestError, pattern, Wave.from_columns, {**good, **change})
        for name in good:
            short = {other: column for other, column in good.items() if other != name}
            self.assert_refused(RequestError, f"the column `{name}` is missing", Wave.from_columns, short)


class SettingsRead(Case):
    def test_types(self):
        wrong = [
            ("text", 3), ("text", None), ("flag", 1), ("flag", "true"), ("count", -1), ("count", 1.0), ("count", True), ("count", 1 << 63),
            ("number", "1"), ("number", True), ("number", 10**400), ("object", []), ("object", 3), ("texts", []), ("texts", [1]), ("texts", "a"),
        ]  # fmt: skip
        for kind, value in wrong:
            with self.subTest(kind=kind, value=value):
                self.assertRaises(RequestError, getattr(Settings({"x": value}), kind), "x")
        self.assertRaises(RequestError, Settings({"x": 1e999}).number, "x")
        self.assertRaises(RequestError, Settings({"x": "c"}).choice, "x", ["a", "b"])
        self.assertRaises(RequestError, Settings({"x": []}).choice, "x", ["a", "b"])
        self.assertIsInstance(Settings({"x": 3}).number("x"), float)
        self.assertIsNone(Settings({"x": None}).number("x", None))
        self.assertEqual(Settings({}).number("x", 0.5), 0.5)

    def test_unknown_keys(self):
        settings = Settings({"learning_rat": 1})
        settings.number("learning_rate", 0.0)
        with self.assertRaises(RequestError) as raised:
            settings.finish()
        self.assertEqual(raised.exception.hint, "did you mean `learning_rate`?")


if __name__ == "__main__":
    unittest.main()
