"""`python -m tamis.tinker` against a server of Tinker's API in this process, and against what SkyRL's server answered.

Needs only the standard library, like the learner. Captured exchanges are in a folder beside the repository (or the one
that TAMIS_TINKER_WIRE names); without it the tests that replay them are skipped with a message.
"""

import base64
import copy
import http.client
import io
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import zlib
from array import array
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "python/tests"))

import fake_tinker
from fake_tinker import BASE, CUT, LOST, VOCABULARY, Fake, distribution
from tamis.learner import connections, messages
from tamis.learner.messages import Failed, FilesError, LearnerError, Lost, Refused, RequestError, Settings, StateError
from tamis.tinker import api, checkpoint, probe, protobuf, reduction, training
from tamis.tinker.columns import Sequence, column, take
from tamis.tinker.learner import Learner, Session
from tamis.tinker.training import Adam, Derivatives, Model

PROGRAM = pathlib.Path(os.environ.get("TAMIS_PROGRAM", ROOT / "target/debug/tamis"))
WIRE = pathlib.Path(os.environ.get("TAMIS_TINKER_WIRE", ROOT / "../shared/golden/tinker-wire"))
LIMIT = 120
OPTIMIZER = {
    "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.1, "decay_norms_and_biases": True,
    "max_grad_norm": None,
}  # fmt: skip
DRAWING = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 5,
    "end_tokens": [0],
}  # fmt: skip
# Three completions of two prompts, of different lengths, and the loss's derivatives by their tokens.
PROMPTS = [[1, 2, 3], [4]]
COMPLETIONS = [(0, [5, 6, 7]), (0, [8]), (1, [9, 1, 2, 3, 4, 5])]
GIVEN = [0.5, -1.25, 0.0, 2.0, -0.5, 0.25, 0.75, -2.0, 1.0, 0.125]
FINDINGS = probe.Findings(reduction.REDUCTIONS[0], True, 1e-7)


def captured(name):
    """Exchanges of a file, or the test is left out."""
    path = WIRE / name
    if not path.exists():
        raise unittest.SkipTest(f"there is no {path}")
    return json.loads(path.read_text())


def setUpModule():
    if not WIRE.exists():
        print(f"\nSKIPPED: the tests that replay captured exchanges, for there is no {WIRE}\n", file=sys.stderr)


def wave(prompts=PROMPTS, completions=COMPLETIONS):
    """Columns of a wave."""

    def offsets(rows):
        found = [0]
        for row in rows:
            found.append(found[-1] + len(row))
        return column("I64", found)

    tokens = [completion for _, completion in completions]
    return {
        "prompt_token": column("I32", sum(prompts, [])),
        "prompt_offset": offsets(prompts),
        "prompt_of": column("I32", [prompt for prompt, _ in completions]),
        "completion_token": column("I32", sum(tokens, [])),
        "completion_offset": offsets(tokens),
        "rank": column("I32", [0] * len(tokens)),
    }


def beginning(samples, prompts=PROMPTS, abort=()):
    """Columns of `generate` that begin samples: `(number, key, prompt)`."""
    begun = wave(prompts, [])
    return {
        "prompt_token": begun["prompt_token"],
        "prompt_offset": begun["prompt_offset"],
        "prompt_drawing": column("I32", [0] * len(prompts)),
        "prompt_of": column("I32", [prompt for _, _, prompt in samples]),
        "sample": column("I64", [number for number, _, _ in samples]),
        "key": column("I64", [key for _, key, _ in samples]),
        "abort": column("I64", list(abort)),
    }


def numbers(columns, name, dtype="F32"):
    return take(dict(columns), name, dtype).tolist()


class Case(unittest.TestCase):
    """A fake server that ends with the test."""

    def fake(self, **more):
        fake = Fake(**more)
        self.addCleanup(fake.close)
        return fake

    def api(self, fake, **more):
        return api.Api(fake.url, **{"patience": 5.0, "timeout": 60.0, **more})

    def session(self, fake, **more):
        session = api.Session(self.api(fake, **more))
        self.addCleanup(session.close)
        return session

    def refused(self, kind, pattern, function, *given):
        with self.assertRaisesRegex(kind, pattern) as caught:
            function(*given)
        return caught.exception


class Protobuf(unittest.TestCase):
    def test_a_pass_byte_by_byte(self):
        datum = protobuf.Datum([1, 300], [2, 3], {"advantages": [0.0, 1.0]})
        expected = bytes.fromhex(
            # A chunk of two int32; the target tokens as two int64, dtype 2, shape [2]; two floats, dtype 1, shape [2].
            "0a0c 0a0a 0a08 01000000 2c010000"
            "1228 0a0d 7461726765745f746f6b656e73 1217 0a10 0200000000000000 0300000000000000 1802 220102"
            "121d 0a0a 616476616e7461676573 120f 0a08 00000000 0000803f 1801 220102".replace(" ", "")
        )
        self.assertEqual(protobuf.encode_datum(datum), expected)
        body = protobuf.encode_pass("m", 200, [b"\x01"], "ppo", forward_only=True)
        self.assertEqual(body, b"\x0a\x01m\x10\xc8\x01\x1a\x01\x01\x22\x03ppo\x30\x01")
        # A 0 or false is not written.
        self.assertEqual(protobuf.encode_pass("m", 0, [], "ppo"), b"\x0a\x01m\x22\x03ppo")

    def test_results_are_read(self):
        rows, metrics = protobuf.decode_pass(fake_tinker.pass_body([[-0.5], [], [-1.0, -2.0]]))
        self.assertEqual(([row.tolist() for row in rows], metrics), ([[-0.5], [], [-1.0, -2.0]], {"loss:sum": 2.5}))
        stopped, cut = protobuf.decode_samples(
            fake_tinker.sample_body([([1, 2], [-0.5, -1.5], True), ([3], [-0.25], False)])
        )
        self.assertEqual(
            (stopped.tokens.tolist(), stopped.logprobs.tolist(), stopped.is_stopped), ([1, 2], [-0.5, -1.5], True)
        )
        self.assertEqual((cut.tokens.tolist(), cut.is_stopped), ([3], False))

    def test_sixteen_bits(self):
        # 1.5 and -2 in bfloat16.
        tensor = fake_tinker.field(1, bytes.fromhex("c03f00c0")) + fake_tinker.field(2, array("q", [0, 4]).tobytes())
        tensor += b"\x18\x04"
        record = fake_tinker.field(2, fake_tinker.field(1, b"logprobs") + fake_tinker.field(2, tensor))
        rows, _ = protobuf.decode_pass(fake_tinker.field(2, record))
        self.assertEqual([row.tolist() for row in rows], [[1.5, -2.0]])

    def test_bodies_that_are_cut_off_or_others(self):
        whole = fake_tinker.pass_body([[-0.5, -1.0]])
        for body in (whole[:-1], b"\x12", b"\xff" * 12, b"\x13\x00", b"\x12\x02\x0a\x05", b"\x10\x01"[:1]):
            with self.subTest(body):
                self.assertRaises(protobuf.ProtobufError, protobuf.decode_pass, body)
        self.assertRaises(protobuf.ProtobufError, protobuf.decode_samples, b"\x0a\x05\x12\x03abc")
        uneven = fake_tinker.sample_body([([1, 2], [-0.5], True)])
        self.assertRaisesRegex(protobuf.ProtobufError, "2 tokens have 1", protobuf.decode_samples, uneven)
        draw = random.Random(2)
        for _ in range(2000):
            body = bytearray(whole)
            body[draw.randrange(len(body))] = draw.randrange(256)
            try:
                protobuf.decode_pass(bytes(body))
            except protobuf.ProtobufError:
                pass

    def test_captured_passes_are_written_as_the_sdk_writes_them(self):
        num_seen = 0
        for exchange in captured("sdk0.25.0-skyrl0.4.0.json"):
            request = exchange["request"] or {}
            if request.get("message") != "ForwardBackwardRequest" or "loss_fn_config" in request["decoded"]:
                continue
            body = base64.b64decode(request["base64"])
            read = fake_tinker.read_pass(body)
            data = [
                protobuf.encode_datum(protobuf.Datum(one["tokens"], one["targets"], one["inputs"]))
                for one in read["data"]
            ]
            written = protobuf.encode_pass(
                read["model_id"], read["seq_id"], data, read["loss_fn"], bool(read["forward_only"])
            )
            self.assertEqual(written, body)
            num_seen += 1
        self.assertGreater(num_seen, 3)

    def test_captured_results_are_read_as_the_sdk_reads_them(self):
        num_seen = 0
        for name in ("sdk0.25.0-skyrl0.4.0.json", "raw-skyrl0.4.0.json"):
            for exchange in captured(name):
                response = exchange["response"] or {}
                if "protobuf_bytes" not in response:
                    continue
                body, decoded = base64.b64decode(response["base64"]), response["decoded"]
                if response["message"] == "SampleResponse":
                    for found, expected in zip(protobuf.decode_samples(body), decoded["sequences"], strict=True):
                        self.assertEqual(found.tokens.tobytes(), base64.b64decode(expected["tokens"]))
                        self.assertEqual(found.logprobs.tobytes(), base64.b64decode(expected["logprobs"]))
                        self.assertEqual(found.is_stopped, expected["stop_reason"] == "STOP_REASON_STOP")
                else:
                    rows, _ = protobuf.decode_pass(body)
                    fields = decoded["loss_fn_outputs"][0]["fields"]["logprobs"]
                    self.assertEqual(b"".join(row.tobytes() for row in rows), base64.b64decode(fields["data"]))
                    offsets = array("q", base64.b64decode(fields["offsets"]))
                    ends = zip(offsets, offsets[1:], strict=False)
                    self.assertEqual([4 * len(row) for row in rows], [end - begin for begin, end in ends])
                num_seen += 1
        self.assertEqual(num_seen, 3)


class Requests(Case):
    """Retries, futures, and the meaning of a status."""

    def test_a_server_that_answers_later_is_asked_again(self):
        fake = self.fake()
        fake.failures["create_session"] = [(429, {"detail": "slow"}), (503, {}), CUT, (500, {"detail": "odd"})]
        self.assertRegex(self.session(fake).id, "session_")
        self.assertEqual(fake.count("create_session"), 5)

    def test_a_server_that_fails_is_not_asked_for_ever(self):
        fake = self.fake()
        fake.failures["create_session"] = [(500, {"detail": "Internal Server Error"})] * 9
        self.refused(Failed, "status 500.: Internal Server Error", self.session, fake)
        self.assertEqual(fake.count("create_session"), 4)

    def test_nobody_there(self):
        fake = Fake()
        fake.close()
        self.refused(Lost, "has not answered create_session for 0 s", api.Session, api.Api(fake.url, patience=0.2))

    def test_a_key_is_shown_nowhere(self):
        fake = self.fake()
        self.assertEqual(self.api(fake, key="s3cret\n")._headers["X-API-Key"], "s3cret")
        for key in ("s3cret\nmore", "s3cr\xe9t"):
            error = self.refused(Refused, "TINKER_API_KEY has characters", lambda: self.api(fake, key=key))
            self.assertNotIn("s3cr", f"{error} {error.hint}")
        url = fake.url.replace("://", "://me:s3cret@")
        error = self.refused(Refused, "has a name or a password in it", api.Api, url)
        self.assertNotIn("s3cret", f"{error} {error.hint}")
        # It is not sent to other addresses.
        other = self.fake()
        for status in (302, 307, 308):
            fake.failures["create_session"] = [(status, {"detail": "elsewhere"})]
            self.refused(Refused, f"status {status}", self.session, fake)
        self.assertEqual(other.count("create_session"), 0)

    def test_an_address_that_drops_packets_is_no_future_that_waits(self):
        asked = self.api(self.fake(), patience=0.2)
        silent = urllib.error.URLError(TimeoutError("timed out"))
        with mock.patch.object(asked._opener, "open", side_effect=silent):
            self.refused(Lost, "has not answered forward for 0 s: timed out", asked.result, "f", "forward")
        late = [TimeoutError("timed out"), silent, silent, silent, silent, silent]
        with mock.patch.object(asked._opener, "open", side_effect=late) as opened:
            self.refused(Lost, "timed out", asked.result, "f", "forward")
        self.assertGreater(opened.call_count, 2)

    def test_an_error_that_is_cut_off_is_one_that_is_asked_again(self):
        asked = self.api(self.fake(), patience=0.2)

        def cut(*_, **__):
            error = urllib.error.HTTPError(asked.url, 503, "odd", {}, io.BytesIO())
            error.read = mock.Mock(side_effect=http.client.IncompleteRead(b"odd"))
            raise error

        with mock.patch.object(asked._opener, "open", side_effect=cut):
            self.refused(Lost, "status 503: odd", asked.ask, "healthz")

    def test_a_program_that_is_none(self):
        fake = self.fake()
        fake.failures["create_session"] = [(200, b"<html>")]
        self.refused(Failed, "answered create_session with no JSON object", self.session, fake)
        fake.failures["create_session"] = [(200, {})]
        self.refused(Failed, "without a `session_id`", self.session, fake)
        for url in ("localhost:8000", "ftp://a", "unix:/a"):
            self.refused(Refused, "is no address of a server", api.Api, url)

    def test_futures_are_asked_for_until_they_are_there(self):
        fake = self.fake()
        session = self.session(fake)
        fake.delay = 2
        fake.failures["retrieve_future"] = [
            (408, {"detail": "Timeout"}), (200, {"status": "complete_metadata", "response_payload_size": 3}), CUT,
        ]  # fmt: skip
        self.assertRegex(Model(session, BASE, 4, 0).id, "model_")

    def test_polls_go_on_for_longer_than_the_patience_with_a_server_that_is_gone(self):
        fake = self.fake()
        session = self.session(fake, patience=0.2)
        fake.failures["retrieve_future"] = [(408, {"detail": "Timeout"})] * 20
        self.assertRegex(Model(session, BASE, 4, 0).id, "model_")

    def test_a_future_that_is_never_there(self):
        fake = self.fake()
        session = self.session(fake, timeout=0.3, patience=1.0)
        fake.delay = 1 << 30
        self.refused(Lost, "has not answered create_model within 0 s", Model, session, BASE, 4, 0)

    def test_a_future_that_failed(self):
        fake = self.fake(most_models=0)
        session = self.session(fake)
        error = self.refused(Refused, r"Maximum number of LoRA adapters \(0\)", Model, session, BASE, 4, 0)
        self.assertIn("another client holds them", error.hint)
        # As the hosted server words it.
        fake.failures["retrieve_future"] = [(200, {"error": "no such loss", "category": "user"})]
        self.refused(Failed, "create_model failed at .*: no such loss", Model, session, BASE, 4, 0)

    def test_a_step_whose_answers_are_lost_is_taken_once(self):
        fake = self.fake()
        session = self.session(fake)
        model = Model(session, BASE, 4, 0)
        fake.failures |= {"forward_backward": [LOST, LOST], "optim_step": [LOST, (502, {})]}
        sequence = Sequence(array("i", [1]), array("i", [2]))
        (logprobs,) = model.forward([sequence])
        model.step([[Derivatives(sequence, logprobs, array("f", [1.0]))]], Adam(0.9, 0.9, 1e-8, 0.0), 0.1, lambda *_: 1)
        held = fake.models[model.id]
        self.assertEqual((held.num_steps, held.passes, fake.count("optim_step")), (1, [], 3))
        self.assertEqual(sorted(held.numbers), [1, 2, 3])

    def test_a_model_whose_answer_is_lost_is_made_in_another_session(self):
        for failure in (LOST, (502, {}), (504, {})):
            fake = self.fake()
            fake.failures["create_model"] = [(503, {}), failure]
            with mock.patch.object(api, "HEARTBEAT_SECONDS", 0.01):
                model = Model(self.session(fake), BASE, 4, 0)
                seen = fake.count("session_heartbeat")
                end = time.monotonic() + LIMIT
                while fake.count("session_heartbeat") < seen + 6:
                    self.assertLess(time.monotonic(), end, "waited in vain")
                    time.sleep(0.01)
                model.unload()
            first, again, other = [body["session_id"] for body in fake.bodies("create_model")]
            # A server that will answer later has made none.
            self.assertEqual((again, other), (first, model.session.id))
            self.assertNotEqual(first, other)
            # A model whose id is unknown is in a session without heartbeats, so the server forgets it.
            self.assertEqual({body["session_id"] for body in fake.bodies("session_heartbeat")[seen + 3 :]}, {other})
            self.assertTrue(all(held.session == first for held in fake.models.values()))
        fake.failures["create_model"] = [LOST] * 9
        self.refused(Lost, "the answer of .* to create_model was lost", Model, self.session(fake), BASE, 4, 0)
        self.assertEqual(fake.count("create_model"), 3 + 3)

    def test_a_model_that_is_unloaded_already_is_content(self):
        fake = self.fake()
        for failures in ([LOST], [(502, {})]):
            model = Model(self.session(fake), BASE, 4, 0)
            fake.failures["unload_model"] = list(failures)
            model.unload()
            self.assertEqual((fake.models, model.api.models), ({}, set()))
        model = Model(self.session(fake), BASE, 4, 0)
        fake.restart()
        model.unload()
        model = Model(self.session(fake), BASE, 4, 0)
        fake.failures["unload_model"] = [(400, {"detail": "odd"})]
        self.refused(Refused, "odd", model.unload)

    def test_a_signal_while_a_model_is_made_leaves_none(self):
        class Ended(BaseException):
            pass

        def end(*_):
            raise Ended

        before = signal.signal(signal.SIGTERM, end)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        for path in ("create_model", "retrieve_future"):
            for is_quick in (True, False):
                with self.subTest(path, is_quick=is_quick):
                    fake = self.fake()
                    fake.is_quick = is_quick
                    session = self.session(fake)
                    plainly, num = getattr(fake, f"on_{path}"), [0]

                    def killing(body, plainly=plainly, num=num):
                        num[0] += 1
                        if num[0] == 1:
                            os.kill(os.getpid(), signal.SIGTERM)
                        return plainly(body)

                    setattr(fake, f"on_{path}", killing)
                    with self.assertRaises(Ended):
                        Model(session, BASE, 4, 0)
                    self.assertEqual((fake.models, session.api.models, fake.count("create_model")), ({}, set(), 1))

    def test_a_name_that_is_there_is_given_another(self):
        fake = self.fake()
        model = Model(self.session(fake), BASE, 4, 0)
        fake.failures["save_weights"] = [(409, {"detail": "Checkpoint 'x' already exists"}), LOST]
        path = model.save()
        self.assertIn(path, fake.saved)
        names = [body["path"] for body in fake.bodies("save_weights")]
        self.assertEqual((len(names), len(set(names))), (3, 2))

    def test_what_is_gone_is_a_lost_learner(self):
        fake = self.fake()
        model = Model(self.session(fake), BASE, 4, 0)
        fake.restart()
        for call in (model.save, model.sampler):
            self.refused(Lost, "Model not found", call)
        self.refused(Lost, "Future not found", model.api.result, "future_0", "optim_step")

    def test_what_a_server_is_asked_before_anything_else(self):
        fake = self.fake()
        api.begin(self.api(fake), BASE)
        error = self.refused(Refused, "has no base model `other`", api.begin, self.api(fake), "other")
        self.assertIn("it has tiny", error.hint)
        fake.failures["config"] = [(200, {"pjwt_auth_enabled": True})]
        self.refused(Refused, "token in exchange for the key", api.begin, self.api(fake), BASE)
        fake.failures["config"] = [(401, {"detail": "no key"})]
        self.assertIn("TINKER_API_KEY", self.refused(Refused, "401", api.begin, self.api(fake), BASE).hint)

    def test_signs_of_life(self):
        fake = self.fake()
        with mock.patch.object(api, "HEARTBEAT_SECONDS", 0.01):
            session = self.session(fake)
            end = time.monotonic() + LIMIT
            while fake.count("session_heartbeat") < 3:
                self.assertLess(time.monotonic(), end, "waited in vain")
                time.sleep(0.01)
        self.assertEqual({body["session_id"] for body in fake.bodies("session_heartbeat")}, {session.id})


class Replayed(Case):
    """The exchanges with SkyRL's server are replayed: the same requests, and answers that are understood."""

    def replay(self, *files):
        """A server that gives the captured answer to each call, in their order, with the requests that it got."""
        exchanges = [exchange for file in files for exchange in captured(file)]
        fake = self.fake()

        def answer(path, body, plainly=fake.answer):
            of = None
            if path == "retrieve_future":
                of = body["request_id"]
            for place, exchange in enumerate(exchanges):
                request = (exchange["request"] or {}).get("json", {})
                is_it = exchange["path"].removeprefix("/api/v1/").split("/")[-1].split("?")[0] == path
                if is_it and (of is None or request["request_id"] == of):
                    response = exchanges.pop(place)["response"]
                    fake.asked.append((path, (body, exchange["request"])))
                    found = base64.b64decode(response["base64"]) if "base64" in response else response["json"]
                    return exchange["status"], found
            return plainly(path, body)

        fake.answer = answer
        return fake

    def test_a_run(self):
        fake = self.replay("sdk0.25.0-skyrl0.4.0.json")
        server = self.api(fake)
        api.begin(server, "tiny-qwen3")
        session = api.Session(server)
        self.addCleanup(session.close)
        self.assertEqual(session.id, "session_baa50035")
        model = Model(session, "tiny-qwen3", 8, 7)
        self.assertEqual(model.id, "model_37c63899")
        rows = [([57], [63, 48, 59, 17, 87, 77]), ([57], [63, 48, 59, 12, 1])]
        sequences = [Sequence(array("i", prompt), array("i", completion)) for prompt, completion in rows]
        found = model.forward(sequences)
        first = [-5.90370, -4.18260, -4.35977, -4.50060, -6.04585, -3.60067]
        for number, expected in zip(found[0], first, strict=True):
            self.assertAlmostEqual(number, expected, places=4)
        self.assertEqual([len(row) for row in found], [6, 5])
        # To the byte the request of the SDK.
        (body, request), *_ = fake.bodies("forward_backward")
        self.assertEqual(body, base64.b64decode(request["base64"]))
        self.assertEqual(model.save(), "tinker://model_37c63899/weights/ck1")
        sampler = model.sampler()
        self.assertEqual(sampler, "sampling_666eba2f")
        future = server.submit("asample", {})
        samples = server.protobuf_result(future, "asample", protobuf.decode_samples)
        self.assertEqual([one.tokens.tolist() for one in samples], [[33, 81, 12, 41, 94], [54, 22, 25, 74, 13]])
        for path in ("create_session", "create_model", "save_weights", "save_weights_for_sampler"):
            ((body, request), *_) = fake.bodies(path)
            expected = request["json"]
            self.assertEqual(set(body) - set(expected), set(), path)
            for name in set(expected) & set(body) - {"path", "seq_id", "lora_config", "tags"}:
                self.assertEqual(body[name], expected[name], (path, name))

    def test_a_step(self):
        fake = self.replay("sdk0.25.0-skyrl0.4.0.json")
        future = self.api(fake).submit("optim_step", {})
        metrics = self.api(fake).result(future, "optim_step")["metrics"]
        self.assertEqual(training.grad_norm(metrics), 12788758528.0)

    def test_an_end(self):
        fake = self.replay("raw-skyrl0.4.0.json")
        session = api.Session(self.api(fake))
        self.addCleanup(session.close)
        model = Model(session, "tiny-qwen3", 4, 3)
        self.assertEqual(self.api(fake).call("weights_info", {})["lora_rank"], 4)
        sampler = self.api(fake).call("create_sampling_session", {})["sampling_session_id"]
        self.assertEqual(sampler, "sampling_ce95929c")
        model.unload()

    def test_errors(self):
        kinds = {
            "Model not found": Lost, "Session not found": Lost, "Future not found": Lost,
            "already exists": Refused, "Rank mismatch": Refused, "must be between 1 and 16": Refused,
            "not permitted with seq_id 2": Refused, "exceeds max_length 32": Refused, "was reused": Refused,
            "greater than or equal to 0": Refused, "max_tokens is currently required": Refused,
        }  # fmt: skip
        seen = set()
        for exchange in captured("errors-skyrl0.4.0.json"):
            fake = self.fake()
            fake.failures["optim_step"] = [(exchange["status"], exchange["response"]["json"])]
            with self.assertRaises(LearnerError) as caught:
                self.api(fake).submit("optim_step", {})
            message = caught.exception.message
            self.assertIn(f"(status {exchange['status']})", message)
            self.assertNotIn("{", message, "people read it")
            for text, kind in kinds.items():
                if text in message:
                    seen.add(text)
                    self.assertIsInstance(caught.exception, kind, message)
        self.assertEqual(seen, set(kinds))


class Measured(unittest.TestCase):
    """The gradients that SkyRL's server computed, beside PyTorch's: the reason why derivatives are sent as they are."""

    def setUp(self):
        self.measured = captured("gradients.json")
        # Of all targets, those without a weight, too.
        self.weights = self.measured["w"]
        self.targets = [len(sequence) - 1 for sequence in self.measured["sequences"]]
        self.assertEqual([len(own) for own in self.weights], self.targets)

    def rows(self, loss):
        rows = [row for row in self.measured["rows"] if row["loss_fn"] == loss]
        self.assertGreater(len(rows), 3)
        return rows

    def test_cross_entropy_has_no_divisor_that_could_be_undone(self):
        *of_one_sign, negative = self.rows("cross_entropy")
        for row in of_one_sign:
            # Its direction differs from the loss's gradient, so no factor mends it.
            self.assertLess(row["cosine"], 0.96)
        for own in self.weights:
            self.assertLess(sum(-weight for weight in own), 0.0)
        # It is divided by 1e-9 for each of them, in a mean over three.
        self.assertAlmostEqual(negative["server"] / negative["sum"] * 3e-9, 1.0, delta=reduction.TOLERANCE)

    def test_importance_sampling_is_undone_by_the_divisor_that_the_probe_finds(self):
        plain, in_two_calls, *multiplied, _ = self.rows("importance_sampling")
        one_call = [[(targets, True) for targets in self.targets]]
        two_calls = [one_call[0][:1], one_call[0][1:]]
        # Two calls have the gradient of one, and it has another direction than the plain sum's: sequences differ in it.
        self.assertLess(plain["cosine"], 0.96)
        fitting = [
            one
            for one in reduction.REDUCTIONS
            if reduction.is_near(in_two_calls["server"] / plain["server"], one.share(two_calls) / one.share(one_call))
            and len({one.divisor(own, self.targets, self.targets) for own in self.targets}) > 1
        ]
        self.assertEqual([one.name for one in fitting], ["a mean over sequences of means over targets"])
        # With its divisor the gradient is the plain sum: advantages are those of the rows in which it was.
        (known,) = fitting
        for row, sign in zip(multiplied, (1.0, -1.0), strict=True):
            self.assertTrue(row["input"].startswith(("advantages -w *", "advantages w *")[sign > 0]), row)
            self.assertTrue(reduction.is_near(row["server"], row["sum"]), row)
            for tokens, weights in zip(self.measured["sequences"], self.weights, strict=True):
                sequence = Sequence(array("i", tokens[:1]), array("i", tokens[1:]))
                derivatives = array("f", [-sign * one for one in weights])
                own = Derivatives(sequence, array("f", weights), derivatives)
                sent = own.datum(known.divisor(sequence.num_targets, self.targets, self.targets)).inputs["advantages"]
                for one, weight in zip(sent, weights, strict=True):
                    self.assertAlmostEqual(one, sign * weight * sequence.num_targets * len(self.targets), places=4)


class Probed(Case):
    """The measured behaviour of a server."""

    def probed(self, fake, **more):
        return probe.probe(self.api(fake, **more), BASE, 4, 0)

    def test_every_reduction_is_found_and_undone(self):
        for place, known in enumerate(reduction.REDUCTIONS):
            with self.subTest(known.name):
                fake = self.fake(divisor=known.divisor, clips=place % 2 == 0, norm_name="skyrl.ai/grad_norm")
                found = self.probed(fake)
                self.assertEqual((found.reduction.name, found.clips), (known.name, place % 2 == 0))
                self.assertLess(found.difference, 1e-6)
                self.assertEqual(fake.models, {}, "the scratch model is unloaded")

    def test_unknown_ones_are_refused(self):
        divisors = {
            "the root of the sequences": lambda own, call, step: math.sqrt(len(step)),
            "the longest": lambda own, call, step: max(step),
            "the square": lambda own, call, step: own * own,
        }
        for name, divisor in divisors.items():
            with self.subTest(name):
                fake = self.fake(divisor=divisor)
                error = self.refused(Refused, "divides derivatives by an unknown number", self.probed, fake)
                self.assertRegex(error.message, r"twice in a call \d")
                self.assertEqual(fake.models, {}, "the scratch model is unloaded")

    def test_a_loss_that_is_not_linear_in_advantages_is_refused(self):
        def normalised(advantages):
            largest = max(map(abs, advantages))
            return [one / largest if largest else one for one in advantages]

        def by_those_not_zero(advantages):
            return [one / max(1, sum(other != 0.0 for other in advantages)) for one in advantages]

        fake = self.fake()
        fake.takes = normalised
        self.refused(Refused, "three times the derivatives is 1.000", self.probed, fake)
        # A bound on advantages shows only with large ones.
        fake.takes = lambda advantages: [max(-2.0, min(2.0, one)) for one in advantages]
        self.refused(Refused, r"derivatives is [12]\.\d+ of theirs, .* two sequences 1\.000", self.probed, fake)
        fake.takes = by_those_not_zero
        self.refused(Refused, "in two sequences 2.000 of those in one", self.probed, fake)

    def test_a_server_without_norms(self):
        self.refused(Refused, "gives no `grad_norm`", self.probed, self.fake(norm_name=None))

    def test_a_server_that_trains_nothing(self):
        fake = self.fake()
        plainly = fake.on_optim_step

        def on_optim_step(body):
            table = copy.deepcopy(fake.models[body["model_id"]].table)
            answer = plainly(body)
            fake.models[body["model_id"]].table = table
            return answer

        fake.on_optim_step = on_optim_step
        self.refused(Refused, "changes no log-probability", self.probed, fake)

    def test_a_constant_factor_is_refused(self):
        for known in reduction.REDUCTIONS[:2]:
            for factor in (512.0, 8.0, 1 / 4):
                with self.subTest(known.name, factor=factor):

                    def divisor(own, call, step, known=known, factor=factor):
                        return factor * known.divisor(own, call, step)

                    fake = self.fake(divisor=divisor)
                    pattern = f"it takes {known.name}, and a step changes the loss .* times as much"
                    error = self.refused(Refused, pattern, self.probed, fake)
                    self.assertIn("constant", error.hint)
                    self.assertEqual(fake.models, {}, "the scratch model is unloaded")

    def test_a_server_that_clips_unasked_is_refused(self):
        fake = self.fake()
        plainly = fake.on_optim_step

        def on_optim_step(body):
            return plainly({**body, "adam_params": {**body["adam_params"], "grad_clip_norm": 0.1}})

        fake.on_optim_step = on_optim_step
        self.refused(Refused, "a step changes the loss 0", self.probed, fake)

    def test_sixteen_bits(self):
        fake = self.fake()
        fake.spoils = lambda row: [round(number, 2) for number in row]
        found = self.probed(fake)
        self.assertGreater(found.difference, 1e-4)
        self.assertEqual(Learner(self.api(fake), BASE, 4, 0, found).capabilities()["entropy"], False)
        self.assertEqual(Learner(self.api(fake), BASE, 4, 0, found)._dtype(), "bf16")


class Opened(Case):
    """A learner of this process, without a wire between."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.policy = self.folder / "policy"
        self.policy.mkdir()
        config = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "model_type": "tiny"}
        (self.policy / "config.json").write_text(json.dumps(config))

    def learner(self, fake, findings=FINDINGS, rank=4):
        learner = Learner(self.api(fake), BASE, rank, 0, findings)
        self.addCleanup(learner.close)
        return learner

    def call(self, learner, name, settings=None, columns=None):
        read = Settings(settings or {})
        return learner.calls[f"/v1/{name}"](read, dict(columns or {}))

    def open(self, learner, **more):
        settings = {"policy": str(self.policy), "temperature": 1.0, "optimizer": OPTIMIZER, **more}
        return self.call(learner, "open", settings)[0]

    def opened(self, fake, findings=FINDINGS, **more):
        learner = self.learner(fake, findings)
        self.open(learner, **more)
        return learner

    def step(self, learner, given=GIVEN, rate=0.05):
        """A forward and backward pass and a step: log-probabilities, and the answer with its norm."""
        _, found = self.call(learner, "forward_hold", {"network": "policy"}, wave())
        self.call(learner, "backward", {}, {"logprob": column("F32", given)})
        values, norm = self.call(learner, "optim_step", {"network": "policy", "learning_rate": rate})
        return numbers(found, "logprob"), {**values, "grad_norm": numbers(norm, "grad_norm", "F64")[0]}

    def held(self, fake):
        (model,) = fake.models.values()
        return model


class Learning(Opened):
    """The calls of the page."""

    def test_what_it_says_of_itself(self):
        learner = self.opened(self.fake())
        self.assertEqual(
            learner.capabilities(),
            {
                "critic": False,
                "lora": False,
                "publish": [],
                "generate": True,
                "dtypes": ["f32"],
                "entropy": False,
                "weights": False,
            },
        )
        opened = self.open(learner)
        self.assertEqual(opened["policy"]["max_positions"], 32)
        self.assertEqual((opened["critic"], opened["num_steps"], opened["dtype"]), (None, 0, "f32"))

    def test_log_probabilities_are_those_of_completions(self):
        fake = self.fake()
        learner = self.opened(fake)
        values, found = self.call(learner, "forward", {"network": "policy"}, wave())
        expected = []
        for prompt, completion in COMPLETIONS:
            before = PROMPTS[prompt][-1]
            for token in completion:
                expected.append(distribution(fake.base, fake_tinker.zeros(), before)[token])
                before = token
        self.assertEqual((values, set(found)), ({}, {"logprob"}))
        for number, one in zip(numbers(found, "logprob"), expected, strict=True):
            self.assertAlmostEqual(number, one, places=6)
        self.assertEqual(numbers(self.call(learner, "forward", {"network": "policy"}, wave([], []))[1], "logprob"), [])

    def test_a_gradient_is_the_plain_sum_whatever_the_server_divides_by(self):
        fake = self.fake()
        expected = fake_tinker.zeros()
        place = 0
        for prompt, completion in COMPLETIONS:
            before = PROMPTS[prompt][-1]
            for token in completion:
                chances = [math.exp(value) for value in distribution(fake.base, fake_tinker.zeros(), before)]
                for other in range(VOCABULARY):
                    expected[before][other] += GIVEN[place] * ((other == token) - chances[other])
                before, place = token, place + 1
        norm = math.sqrt(sum(value * value for row in expected for value in row))
        tables = []
        for known in reduction.REDUCTIONS:
            for most in (1024, 1):
                fake = self.fake(divisor=known.divisor)
                findings = probe.Findings(known, True, 0.0)
                # Also if the step is cut into several calls.
                with mock.patch.object(training, "MAX_SEQUENCES", most):
                    _, answer = self.step(self.opened(fake, findings))
                self.assertAlmostEqual(answer["grad_norm"], norm, delta=1e-5 * norm, msg=known.name)
                self.assertEqual(fake.count("forward_backward"), 2 if most > 1 else 6)
                tables.append(self.held(fake).table)
        # A first step of AdamW goes against the gradient, after the decay of a table of zeros.
        for token in range(VOCABULARY):
            for other in range(VOCABULARY):
                own = expected[token][other]
                moved = -0.05 * own / (abs(own) + 1e-6)
                for table in tables:
                    self.assertAlmostEqual(table[token][other], moved, places=4)

    def test_passes_that_gather_and_what_is_sent(self):
        fake = self.fake()
        learner = self.opened(fake, optimizer={**OPTIMIZER, "max_grad_norm": 3.0})
        for given in (GIVEN, [0.0] * len(GIVEN)):
            self.call(learner, "forward_hold", {"network": "policy"}, wave())
            self.call(learner, "backward", {}, {"logprob": column("F32", given)})
        self.assertEqual(fake.count("optim_step"), 0)
        self.call(learner, "optim_step", {"network": "policy", "learning_rate": 0.25})
        *passes, taught = [fake_tinker.read_pass(body) for body in fake.bodies("forward_backward")]
        self.assertEqual([one["forward_only"] for one in passes], [1, 1])
        # A sequence without a gradient is not sent.
        self.assertEqual(
            (taught["loss_fn"], taught["forward_only"], len(taught["data"])), ("importance_sampling", 0, 3)
        )
        first = taught["data"][0]
        self.assertEqual((first["tokens"], first["targets"]), ([1, 2, 3, 5, 6], [2, 3, 5, 6, 7]))
        self.assertEqual(first["inputs"]["advantages"], [0.0, 0.0, -0.5, 1.25, 0.0])
        self.assertEqual(first["inputs"]["logprobs"][:2], [0.0, 0.0])
        (step,) = fake.bodies("optim_step")
        self.assertEqual(step["adam_params"], {
            "learning_rate": 0.25, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1, "grad_clip_norm": 3.0,
        })  # fmt: skip
        losses = {fake_tinker.read_pass(body)["loss_fn"] for body in fake.bodies("forward_backward")[2:]}
        self.assertEqual(losses, {"importance_sampling"})

    def test_log_probabilities_are_of_the_weights_as_they_are(self):
        fake = self.fake()
        learner = self.opened(fake)
        before, _ = self.step(learner)
        after, answer = self.step(learner)
        self.assertNotEqual(before, after)
        self.assertEqual(answer["num_steps"], 2)
        sent = fake_tinker.read_pass(fake.bodies("forward_backward")[-1])
        found = [
            number
            for datum in sent["data"]
            for number, own in zip(datum["inputs"]["logprobs"], datum["targets"], strict=True)
            if number
        ]
        self.assertEqual(found, after)

    def test_a_step_without_any_gradient(self):
        fake = self.fake()
        learner = self.opened(fake)
        _, answer = self.step(learner, [0.0] * len(GIVEN))
        self.assertEqual((answer["grad_norm"], answer["skipped"], answer["num_steps"]), (0.0, False, 1))
        sent = fake_tinker.read_pass(fake.bodies("forward_backward")[-1])
        self.assertEqual(len(sent["data"]), 1)
        self.refused(
            StateError,
            "no derivatives to step by",
            self.call,
            learner,
            "optim_step",
            {"network": "policy", "learning_rate": 0.1},
        )

    def test_what_is_not_finite_is_not_sent(self):
        fake = self.fake()
        learner = self.opened(fake)
        table = json.dumps(self.held(fake).table)
        for bad in (math.nan, math.inf):
            _, answer = self.step(learner, [bad, *GIVEN[1:]])
            self.assertEqual((answer["skipped"], answer["num_steps"]), (True, 0))
            self.assertTrue(math.isnan(answer["grad_norm"]))
        fake.spoils = lambda row: [math.nan for _ in row]
        self.assertEqual(self.step(learner)[1]["skipped"], True)
        self.assertEqual((json.dumps(self.held(fake).table), fake.count("optim_step")), (table, 0))
        # The gradient was cleared.
        fake.spoils = lambda row: row
        self.assertEqual(self.step(learner)[1]["num_steps"], 1)

    def test_a_server_whose_weights_are_lost(self):
        fake = self.fake()
        learner = self.opened(fake)
        fake.on_optim_step = lambda body: fake.future((200, {"metrics": {"grad_norm": None}}))
        error = self.refused(Failed, "not finite: the weights there are lost", self.step, learner)
        self.assertIn("--resume", error.hint)
        self.refused(Failed, "the weights there are lost", self.save, learner, "lost")

    def test_a_step_that_is_not_taken_whole(self):
        fake = self.fake()
        learner = self.opened(fake, generation={"max_sequences": 1})
        folder, _ = self.save(learner, "before")
        for by_future in (True, False):
            with self.subTest(by_future=by_future), mock.patch.object(training, "MAX_SEQUENCES", 2):
                plainly, num = fake.on_forward_backward, [0]

                def refusing(body, plainly=plainly, num=num, by_future=by_future):
                    num[0] += not fake_tinker.read_pass(body)["forward_only"]
                    if num[0] != 2:
                        return plainly(body)
                    refusal = 400, {"detail": "Sequence length 40 exceeds max_length 32"}
                    # The server continues with the next request.
                    return fake.future(refusal) if by_future else refusal

                fake.on_forward_backward = refusing
                error = self.refused(Failed, "exceeds max_length 32: .* part of the mini-batch", self.step, learner)
                self.assertIn("--resume", error.hint)
                fake.on_forward_backward = plainly
                # Such weights are not used any more: not trained, saved, or sampled from.
                for call in (
                    lambda: self.step(learner),
                    lambda folder=self.folder / f"after_{by_future}": self.save(learner, folder),
                    lambda: self.generate(learner, [(1, 5, 0)]),
                    lambda: self.call(learner, "reset_optimizer", {"network": "policy"}),
                ):
                    learner._num_steps = 1
                    self.refused(Failed, "a step that was not taken whole", call)
                num_steps = self.held(fake).num_steps
                self.assertEqual(num_steps, int(by_future), "the server took the step without the pass")
                self.call(learner, "load", {"folder": str(folder), "content": "checkpoint"})
                self.assertEqual(self.step(learner)[1]["num_steps"], 1)
                self.assertEqual(self.held(fake).num_steps, 1)
                self.open(learner, generation={"max_sequences": 1})

    def test_what_it_cannot_do(self):
        fake = self.fake()
        learner = self.learner(fake)
        given = {"policy": str(self.policy), "temperature": 1.0, "optimizer": OPTIMIZER}
        cases = [
            (Refused, "those of temperature 1, and 0.7", {"temperature": 0.7}),
            (Refused, "can only be the base model", {"reference": str(self.policy)}),
            (Refused, "no critic", {"critic": {"optimizer": OPTIMIZER}}),
            (RequestError, "unknown key `device`", {"options": {"device": "cpu"}}),
            (RequestError, "is not absolute", {"policy": "policy"}),
            (FilesError, "there is no file", {"policy": str(self.folder / "nothing")}),
            (RequestError, "unknown key `polic`", {"polic": "x"}),
        ]
        for kind, pattern, more in cases:
            self.refused(kind, pattern, self.call, learner, "open", {**given, **more})
        self.assertEqual(fake.models, {}, "nothing is begun for what is refused")
        blind = self.learner(fake, probe.Findings(reduction.REDUCTIONS[0], False, 0.0))
        clipped = {**given, "optimizer": {**OPTIMIZER, "max_grad_norm": 1.0}}
        error = self.refused(Refused, "does not clip gradients", self.call, blind, "open", clipped)
        self.assertEqual(error.hint, "set `train.optimizer.max_grad_norm: null`")
        self.refused(StateError, "holds no model", self.call, learner, "forward", {"network": "policy"}, wave())
        self.open(learner)
        policy, rate = {"network": "policy"}, {"network": "policy", "learning_rate": 0.1}
        cases = [
            (Refused, "no critic", "forward", {"network": "critic"}, wave()),
            (Refused, "no critic", "forward_hold", {"network": "critic"}, wave()),
            (Refused, "only at temperature 1", "forward", {**policy, "sharpness": 2.0}, wave()),
            (Refused, "images", "forward", {**policy, "images": [["/a.png"], []]}, wave()),
            (StateError, "no reference", "forward", {"network": "reference"}, wave()),
            (RequestError, "holds 18, and the vocabulary has 18", "forward", policy, wave([[1]], [(0, [18])])),
            (Refused, "33 tokens, and the model 32 positions", "forward", policy, wave([[1] * 32], [(0, [1])])),
            (RequestError, "must not fall", "forward", policy, wave(PROMPTS, [(1, [1]), (0, [1])])),
            (
                RequestError,
                "the column `rank` is missing",
                "forward",
                policy,
                {k: v for k, v in wave().items() if k != "rank"},
            ),
            (RequestError, "must rise", "forward", policy, wave([[1]], [(0, [])])),
            (StateError, "no pass is held", "backward", {}, {"logprob": column("F32", GIVEN)}),
            (Refused, "cannot be set aside", "keep", {}, {}),
            (Refused, "cannot be copied", "copy", {"to": "reference"}, {}),
            (Refused, "weights stay at the server", "save", {"folder": str(self.folder), "content": "weights"}, {}),
            (Refused, "not opened to generate", "generate", {"seconds": 0.0, "drawing": []}, beginning([])),
        ]
        for kind, pattern, name, settings, columns in cases:
            self.refused(kind, pattern, self.call, learner, name, settings, columns)
        self.call(learner, "forward_hold", policy, wave())
        self.refused(StateError, "a pass of this network is held", self.call, learner, "optim_step", rate)
        self.refused(
            RequestError,
            "has 1 numbers, and the held pass 10",
            self.call,
            learner,
            "backward",
            {},
            {"logprob": column("F32", [1])},
        )
        both = {"logprob": column("F32", GIVEN), "entropy": column("F32", GIVEN)}
        error = self.refused(Refused, "gives no entropies", self.call, learner, "backward", {}, both)
        self.assertIn("objective.entropy", error.hint)
        self.assertTrue(learner.is_holding)
        self.call(learner, "backward", {"discard": True})
        self.assertFalse(learner.is_holding)
        self.assertEqual(self.call(learner, "check"), ({"not_finite": None}, {}))

    def test_the_norm_of_a_gradient_that_no_step_follows(self):
        fake = self.fake(divisor=reduction.REDUCTIONS[1].divisor)
        learner = self.opened(fake, probe.Findings(reduction.REDUCTIONS[1], True, 0.0))
        self.step(learner)
        policy = next(iter(fake.models))
        state = fake.models[policy].state()

        def norm():
            self.call(learner, "forward_hold", {"network": "policy"}, wave())
            self.call(learner, "backward", {}, {"logprob": column("F32", GIVEN)})
            return numbers(self.call(learner, "grad_norm", {"network": "policy"})[1], "grad_norm", "F64")[0]

        self.assertEqual(numbers(self.call(learner, "grad_norm", {"network": "policy"})[1], "grad_norm", "F64"), [0.0])
        first = norm()
        self.assertEqual(norm(), first)
        self.assertEqual((fake.models[policy].state(), fake.count("save_weights"), len(fake.models)), (state, 1, 2))
        # The step's own norm is that; with it the copy is gone.
        self.assertAlmostEqual(self.step(learner)[1]["grad_norm"], first, places=6)
        self.assertEqual(list(fake.models), [policy])
        self.assertNotAlmostEqual(norm(), first, places=4)

    def test_the_norm_after_a_copy_that_failed(self):
        fake = self.fake()
        learner = self.opened(fake)
        self.step(learner)

        def norm():
            self.call(learner, "forward_hold", {"network": "policy"}, wave())
            self.call(learner, "backward", {}, {"logprob": column("F32", GIVEN)})
            return numbers(self.call(learner, "grad_norm", {"network": "policy"})[1], "grad_norm", "F64")[0]

        refusal = (400, {"detail": "odd"})
        fake.failures["load_weights"] = [refusal]
        self.refused(Refused, "odd", norm)
        # A copy without the weights is dropped.
        first = norm()
        self.assertEqual(len(fake.models), 2)
        fake.failures["optim_step"] = [refusal]
        self.refused(Refused, "odd", norm)
        # The derivatives that it had received for the step are not in the next.
        self.assertEqual(norm(), first)
        self.assertEqual(len(fake.models), 2)
        self.assertAlmostEqual(self.step(learner)[1]["grad_norm"], first, places=6)

    def test_a_policy_that_took_no_weights(self):
        fake = self.fake()
        learner = self.opened(fake)
        folder, _ = self.save(learner, "a")
        settings = {"folder": str(folder), "content": "checkpoint"}
        fake.failures["load_weights"] = [(400, {"detail": "odd"})]
        self.refused(Refused, "odd", self.call, learner, "load", settings)
        self.refused(Failed, "did not take the weights", self.step, learner)
        self.call(learner, "load", settings)
        self.assertEqual(self.step(learner)[1]["num_steps"], 1)

    def test_the_reference_is_the_base_model(self):
        fake = self.fake()
        learner = self.opened(fake)
        first, _ = self.step(learner)
        for _ in range(2):
            _, found = self.call(learner, "forward", {"network": "base"}, wave())
            self.assertEqual(numbers(found, "logprob"), first)
        self.assertEqual(len(fake.models), 2)
        self.open(learner)
        self.assertEqual(len(fake.models), 1, "what an earlier run held is unloaded")

    # Checkpoints

    def save(self, learner, name):
        folder = self.folder / name
        folder.mkdir()
        answer, _ = self.call(learner, "save", {"folder": str(folder), "content": "checkpoint", "dtype": "f32"})
        return folder, answer

    def test_a_run_goes_on_where_it_was(self):
        fake = self.fake()
        learner = self.opened(fake)
        for _ in range(2):
            self.step(learner)
        folder, answer = self.save(learner, "step_2")
        self.assertEqual({file["name"] for file in answer["files"]}, {"config.json", "elsewhere.json"})
        for file in answer["files"]:
            data = (folder / file["name"]).read_bytes()
            self.assertEqual((file["bytes"], file["crc32"]), (len(data), f"{zlib.crc32(data):08x}"))
        place = json.loads((folder / "elsewhere.json").read_text())
        archive = f"{fake.url}/api/v1/training_runs/.*/checkpoints/tamis-[0-9a-f]*/archive"
        self.assertRegex(
            place["where"], f"^tinker://.* at {fake.url}, an adapter of rank 4 on tiny, whose archive is at {archive}$"
        )
        whole = self.step(learner)
        table = self.held(fake).table
        fake.restart()
        # The policy of a checkpoint is its folder.
        other = self.learner(fake)
        opened = self.open(other, policy=str(folder))
        self.assertEqual(opened["num_steps"], 0)
        networks, _ = self.call(other, "load", {"folder": str(folder), "content": "checkpoint"})
        self.assertEqual(networks["num_steps"], 2)
        self.assertEqual(self.step(other), whole)
        self.assertEqual(self.held(fake).table, table)
        # Once more, into a model that was used.
        self.call(other, "load", {"folder": str(folder), "content": "checkpoint"})
        self.assertEqual(self.step(other), whole)
        self.assertEqual(len(fake.models), 1)

    def test_two_saves_have_two_names(self):
        fake = self.fake()
        learner = self.opened(fake)
        first, second = self.save(learner, "a")[0], self.save(learner, "b")[0]
        self.assertNotEqual(checkpoint.read(first).path, checkpoint.read(second).path)
        self.assertEqual(len(fake.saved), 2)
        settings = {"folder": str(first), "content": "checkpoint"}
        self.refused(RequestError, "is not empty", self.call, learner, "save", settings)
        self.refused(
            messages.DiskError,
            "failed to open",
            self.call,
            learner,
            "save",
            {**settings, "folder": str(self.folder / "no")},
        )

    def test_checkpoints_that_cannot_be_gone_on_from(self):
        fake = self.fake()
        learner = self.opened(fake)
        folder, _ = self.save(learner, "a")
        settings = {"folder": str(folder), "content": "checkpoint"}
        other = self.learner(fake, rank=8)
        self.open(other)
        error = self.refused(
            FilesError, "adapter of rank 4 on tiny, and the learner has rank 8", self.call, other, "load", settings
        )
        self.assertIn("--rank 4", error.hint)
        held = dict(fake.models)
        fake.saved.clear()
        self.refused(FilesError, "has no tinker://", self.call, learner, "load", settings)
        self.assertEqual(fake.models, held, "nothing is changed")
        (folder / "elsewhere.json").write_text('{"where": "there"}')
        self.refused(FilesError, "does not name weights", self.call, learner, "load", settings)
        (folder / "elsewhere.json").write_text("{")
        self.refused(FilesError, "cannot be read as JSON", self.call, learner, "load", settings)
        (folder / "elsewhere.json").unlink()
        self.refused(FilesError, "there is no file", self.call, learner, "load", settings)
        self.refused(
            Refused, "can only be the base model", self.call, learner, "load", {**settings, "content": "reference"}
        )

    def test_an_optimizer_that_begins_anew(self):
        fake = self.fake()
        learner = self.opened(fake)
        self.step(learner)
        table = self.held(fake).table
        self.call(learner, "reset_optimizer", {"network": "policy"})
        held = self.held(fake)
        self.assertEqual((held.table, held.num_steps, held.first), (table, 0, fake_tinker.zeros()))
        self.assertEqual(self.call(learner, "restore")[0]["num_steps"], 0)

    def test_parameters_are_counted(self):
        header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"shape": [3, 4]}, "b": {"shape": [5]}}).encode()
        (self.policy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        fake = self.fake()
        learner = self.learner(fake)
        self.assertEqual(self.open(learner)["policy"]["num_parameters"], 17)
        folder, _ = self.save(learner, "a")
        self.open(learner, policy=str(folder))
        networks, _ = self.call(learner, "load", {"folder": str(folder), "content": "checkpoint"})
        self.assertEqual(networks["policy"]["num_parameters"], 17)

    # Samples

    def generate(self, learner, samples, seconds=30.0, abort=(), drawing=DRAWING):
        settings = {"seconds": seconds, "drawing": [drawing]}
        return self.call(learner, "generate", settings, beginning(samples, abort=abort))

    def all_samples(self, learner, samples, **more):
        """Tokens, log-probabilities and end of each, by number."""
        found = {}
        answer, columns = self.generate(learner, samples, **more)
        while True:
            offsets = numbers(columns, "token_offset", "I64")
            for place, number in enumerate(numbers(columns, "sample", "I64")):
                tokens = slice(offsets[place], offsets[place + 1])
                end = numbers(columns, "end", "I32")[place]
                found[number] = numbers(columns, "token", "I32")[tokens], numbers(columns, "logprob")[tokens], end
            self.assertEqual(answer["refused"], [])
            if not answer["num_open"]:
                return found
            answer, columns = self.call(learner, "generate", {"seconds": 30.0, "drawing": []}, beginning([], []))

    def test_samples_are_of_the_policy(self):
        fake = self.fake()
        fake.sample_delay = 1
        learner = self.opened(fake, generation={"max_sequences": 3})
        self.step(learner)
        asked = [(number, 1000 + number, number % 2) for number in range(12)]
        found = self.all_samples(learner, asked)
        table = self.held(fake).table
        self.assertEqual(sorted(found), list(range(12)))
        for number, _, prompt in asked:
            tokens, logprobs, end = found[number]
            self.assertEqual(end, 1 if tokens[-1] == 0 else 2)
            self.assertLessEqual(len(tokens), 5)
            before = PROMPTS[prompt][-1]
            for token, logprob in zip(tokens, logprobs, strict=True):
                self.assertAlmostEqual(logprob, distribution(fake.base, table, before)[token], places=5)
                before = token
        self.assertEqual({1, 2}, {end for _, _, end in found.values()})
        # A sample is a function of its key.
        again = self.all_samples(learner, [(100 + number, key, prompt) for number, key, prompt in asked])
        self.assertEqual([again[100 + number] for number in range(12)], [found[number] for number in range(12)])
        body = fake.bodies("asample")[0]
        self.assertEqual(body["sampling_params"] | {"seed": 0}, {
            "max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "stop": [0], "seed": 0,
        })  # fmt: skip
        self.assertEqual(fake.count("save_weights_for_sampler"), 1, "one for each set of weights")

    def test_open_samples_begin_again_by_new_weights(self):
        fake = self.fake()
        learner = self.opened(fake, generation={"max_sequences": 2})
        fake.sample_delay = 1 << 30
        answer, columns = self.generate(learner, [(1, 5, 0), (2, 6, 1)], seconds=0.05)
        self.assertEqual((answer["num_open"], numbers(columns, "sample", "I64")), (2, []))
        fake.sample_delay = 0
        self.step(learner)
        # A sample that was begun with the old weights ends as well, and is discarded.
        for future in fake.futures.values():
            future[1] = 0
        found = self.all_samples(learner, [])
        table = self.held(fake).table
        for number, prompt in ((1, 0), (2, 1)):
            tokens, logprobs, _ = found[number]
            expected = distribution(fake.base, table, PROMPTS[prompt][-1])[tokens[0]]
            self.assertAlmostEqual(logprobs[0], expected, places=5)
        self.assertEqual(len({body["sampling_session_id"] for body in fake.bodies("asample")}), 2)

    def test_samples_that_are_given_up(self):
        fake = self.fake()
        learner = self.opened(fake, generation={"max_sequences": 2})
        fake.sample_delay = 1 << 30
        self.generate(learner, [(1, 5, 0), (2, 6, 1)], seconds=0.0)
        settings = {"seconds": 0.0, "drawing": [DRAWING]}
        self.refused(
            RequestError, "sample 1 is open already", self.call, learner, "generate", settings, beginning([(1, 7, 0)])
        )
        self.refused(
            RequestError, "a sample is repeated", self.call, learner, "generate", settings, beginning([(3, 7, 0), (3, 8, 0)])
        )
        answer, _ = self.generate(learner, [], seconds=0.0, abort=[1, 2, 77])
        self.assertEqual(answer["num_open"], 0)

    def test_samples_that_cannot_be_generated(self):
        fake = self.fake()
        learner = self.opened(fake, generation={"max_sequences": 1})
        fake.failures["asample"] = [(400, {"detail": "Sequence length 40 exceeds max_length 32"})]
        answer, columns = self.generate(learner, [(7, 5, 0)])
        self.assertEqual((answer["num_open"], numbers(columns, "sample", "I64")), (0, []))
        (refused,) = answer["refused"]
        self.assertEqual(refused["sample"], 7)
        self.assertIn("exceeds max_length 32", refused["reason"])
        # As the hosted service words it for one sample.
        fake.failures["asample"] = [fake.future((200, {"error": "the prompt is too long", "category": "user"}))]
        answer, columns = self.generate(learner, [(17, 5, 0)])
        self.assertEqual((answer["num_open"], numbers(columns, "sample", "I64")), (0, []))
        self.assertEqual([one["sample"] for one in answer["refused"]], [17])
        self.assertIn("asample failed at http://", answer["refused"][0]["reason"])
        for tokens, logprobs, said in (
            ([3, VOCABULARY, 0], [-1.0] * 3, "sampled the token 18, and the vocabulary of `model.path` has 18"),
            ([3, -1, 0], [-1.0] * 3, "sampled the token -1"),
            ([3, 4, 5, 6, 7, 0], [-1.0] * 6, "sampled 6 tokens, and at most 5 were asked for"),
            ([3, 4, 0], [-1.0, math.nan, -1.0], "gave nan as the log-probability of token 2"),
            ([3, 4, 0], [-math.inf, -1.0, -1.0], "gave -inf as the log-probability of token 1"),
        ):
            fake.failures["asample"] = [fake.future((200, fake_tinker.sample_body([(tokens, logprobs, True)])))]
            self.refused(Failed, f"http://.* {said}", self.generate, learner, [(6, 5, 0)])
            self.call(learner, "generate", {"seconds": 0.0, "drawing": []}, beginning([], [], abort=[6]))
        fake.failures["asample"] = [fake.future((200, fake_tinker.sample_body([([3, 4], [-1.0, -1.0], True)])))]
        self.refused(Failed, "left out the token that ended it", self.generate, learner, [(6, 5, 0)])
        fake.samplers.clear()
        self.refused(Lost, "Session not found", self.generate, learner, [(8, 5, 0)])
        for name, value in (("min_p", 0.1), ("repetition_penalty", 1.2)):
            self.refused(
                Refused, f"without `{name}`", self.generate, learner, [(9, 5, 0)], 0.0, (), {**DRAWING, name: value}
            )


class Client:
    """A controller on one connection, of the standard library."""

    def __init__(self, address):
        self.address, self.incarnation, self.seq = address, None, 0

    def send(self, name, body=None, content_type="application/json", headers=None):
        request = urllib.request.Request(
            f"{self.address}/v1/{name}", body, {"Content-Type": content_type, **(headers or {})},
            method="GET" if body is None else "POST",
        )  # fmt: skip
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=LIMIT) as answer:
                return answer.status, *messages.decode(answer.headers["Content-Type"], answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, *messages.decode(error.headers["Content-Type"], error.read())

    def call(self, name, settings=None, columns=None, seq=None):
        content_type, body = messages.encode(settings or {}, columns)
        if seq is None:
            self.seq = seq = self.seq + 1
        headers = {"Tamis-Incarnation": self.incarnation or "none", "Tamis-Seq": str(seq)}
        return self.send(name, body, content_type, headers)

    def open(self, settings):
        status, values, _ = self.send("open", json.dumps(settings).encode())
        if status == 200:
            self.incarnation, self.seq = values["incarnation"], 0
        return status, values


class Process(Opened):
    """`python -m tamis.tinker` as a process."""

    def start(self, fake, *more, base=BASE):
        command = [
            sys.executable,
            "-m",
            "tamis.tinker",
            "--base-model",
            base,
            "--url",
            fake.url,
            "--listen",
            "127.0.0.1:0",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        process = subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_a_step_over_the_wire(self):
        known = reduction.REDUCTIONS[1]
        fake = self.fake(divisor=known.divisor, clips=False)
        process = self.start(fake, "--rank", "4")
        said = process.stdout.readline()
        self.assertTrue(said.startswith("listening on http://127.0.0.1:"), said or process.stderr.read())
        client = Client(said.split()[-1])
        status, info, _ = client.send("info")
        self.assertEqual((status, info["protocol"], info["implementation"]), (200, "tamis-learner/1", "tamis tinker"))
        self.assertEqual((info["capabilities"]["entropy"], info["capabilities"]["weights"]), (False, False))
        settings = {"policy": str(self.policy), "temperature": 1.0, "optimizer": OPTIMIZER}
        status, refused = client.open({**settings, "temperature": 0.5})
        self.assertEqual((status, refused["error"]["kind"]), (422, "refused"))
        self.assertEqual(client.open(settings)[0], 200)
        status, _, first = client.call("forward_hold", {"network": "policy"}, wave())
        self.assertEqual((status, set(first)), (200, {"logprob"}))
        given = {"logprob": column("F32", GIVEN)}
        self.assertEqual(client.call("backward", {}, given)[0], 200)
        # The same number again is the same answer, and nothing more.
        self.assertEqual(client.call("backward", {}, given, seq=2)[0], 200)
        status, values, norm = client.call("optim_step", {"network": "policy", "learning_rate": 0.05})
        self.assertEqual((status, values["num_steps"], values["skipped"]), (200, 1, False))
        local = self.fake()
        self.assertAlmostEqual(
            numbers(norm, "grad_norm", "F64")[0], self.step(self.opened(local))[1]["grad_norm"], places=5
        )
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=LIMIT)
        self.assertIn(f"probe: the server takes {known.name}", log)
        self.assertIn("probe: the server does not clip gradients", log)
        self.assertEqual((process.returncode, fake.models), (0, {}), "what it held is unloaded")

    def test_a_signal_during_the_probe_leaves_no_model(self):
        for path in ("create_model", "forward_backward", "unload_model"):
            fake = self.fake()
            plainly, started = getattr(fake, f"on_{path}"), threading.Event()

            def killing(body, plainly=plainly, started=started):
                started.wait(LIMIT)
                process.send_signal(signal.SIGTERM)
                return plainly(body)

            setattr(fake, f"on_{path}", killing)
            process = self.start(fake)
            started.set()
            said, log = process.communicate(timeout=LIMIT)
            self.assertEqual((process.returncode, said, fake.models), (0, "", {}), log)
            self.assertGreater(fake.count("create_model"), 0)

    def test_an_address_that_is_taken_is_known_before_the_server_is_asked(self):
        fake = self.fake()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            process = self.start(fake, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
            _, log = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 2, log)
        self.assertIn("failed to listen on 127.0.0.1:", log)
        self.assertEqual(fake.asked, [])

    def test_what_it_ends_with_at_the_start(self):
        cases = [
            (self.start(self.fake(), base="other"), 1, "has no base model `other`"),
            (
                self.start(self.fake(divisor=lambda own, call, step: max(step))),
                1,
                "divides derivatives by an unknown number",
            ),
            (self.start(self.fake(), "--rank", "0"), 2, "--rank must be at least 1"),
            (self.start(self.fake(), "--listen", "nowhere"), 2, "is neither HOST:PORT nor unix:/path"),
        ]
        for process, status, pattern in cases:
            _, log = process.communicate(timeout=LIMIT)
            self.assertEqual((process.returncode, "Traceback" in log), (status, False), log)
            self.assertIn(pattern, log)


# A model of one layer and its tokenizer: what a run reads beside the server.
START = """
run: {name: start, seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 4
rollout: {n: 4, max_response_length: 4}
reward: [{kind: length, max_length: 2, scale: 2}, {kind: number}]
train:
  ppo_mini_batch_size: 2
  total_steps: 1
  optimizer: {learning_rate: 1e-2}
validate: {test_freq: 2, before_train: true, num_samples_shown: 1}
checkpoint: {save_freq: 1}
"""


@unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
class Runs(Case):
    """`tamis train` over the learner."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "start.yaml").write_text(START)
        self.tamis("train", "start.yaml")
        model = self.folder / "runs/start/checkpoints/step_1"
        config = START.replace("total_steps: 1", "total_steps: 4")
        config = config.replace("learning_rate: 1e-2", "learning_rate: 1e-2, max_grad_norm: null")
        lines = [f"  path: {model}" if line.startswith("  init:") else line for line in config.splitlines()]
        (self.folder / "config.yaml").write_text("\n".join([*lines, "preset: grpo", "learner: {startup_timeout: 60s}"]))

    def tamis(self, *words, status=0):
        done = subprocess.run(
            [str(PROGRAM), *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, status, done.stderr[-3000:])
        return done.stderr

    def learner(self, fake):
        """The address of a learner over the wire, in this process."""
        session = Session(Learner(self.api(fake), BASE, 4, 0, FINDINGS))
        server, address = connections.listen("127.0.0.1:0", session)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        threading.Thread(target=session.run, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return [f"learner.url={address}", "rollout.backend=learner"]

    def rows(self, name):
        lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        return [
            {k: v for k, v in json.loads(line).items() if not k.startswith(("timing", "perf/")) and "time" not in k}
            for line in lines
        ]

    def run_whole(self, *more):
        fake = self.fake()
        printed = self.tamis("train", "config.yaml", "run.name=whole", *self.learner(fake), *more)
        return fake, printed

    def test_a_run_with_a_divergence_from_the_base_model(self):
        fake, printed = self.run_whole()
        self.assertIn("tamis tinker on tiny at http://", printed)
        self.assertNotIn("entropy", printed)
        rows = self.rows("whole")
        self.assertEqual([row["step"] for row in rows if "loss" in row], [1, 2, 3, 4])
        steps = [row for row in rows if "loss" in row]
        for row in steps:
            self.assertNotIn("actor/entropy", row)
            self.assertGreater(row["actor/grad_norm"], 0.0)
        divergences = [row["actor/kl_loss"] for row in steps]
        # The first step begins as the base model is, and moves from one of its updates to the next.
        self.assertLess(abs(divergences[0]), 1e-5)
        self.assertGreater(divergences[-1], 10 * divergences[0])
        self.assertFalse((self.folder / "runs/whole/reference").exists())
        losses = {fake_tinker.read_pass(body)["loss_fn"] for body in fake.bodies("forward_backward") if body}
        self.assertEqual(losses, {"cross_entropy", "importance_sampling"})

    def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(self):
        self.run_whole()
        fake = self.fake()
        command = [str(PROGRAM), "train", "config.yaml", "run.name=killed", *self.learner(fake)]
        run = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT
        while not (self.folder / "runs/killed/checkpoints/step_2").exists() and time.monotonic() < end:
            time.sleep(0.01)
        run.kill()
        run.wait()
        # Nothing is left at the server except what was saved.
        fake.restart()
        self.tamis("train", "--resume", "runs/killed")
        self.assertEqual(self.rows("killed"), self.rows("whole"))

    def test_a_server_that_is_started_again_under_a_run(self):
        self.run_whole()
        fake = self.fake()
        plainly, num = fake.on_optim_step, [0]

        def on_optim_step(body):
            num[0] += 1
            if num[0] == 6:
                fake.restart()
            return plainly(body)

        fake.on_optim_step = on_optim_step
        printed = self.tamis("train", "config.yaml", "run.name=lost", *self.learner(fake))
        self.assertIn("is lost", printed)
        self.assertEqual(self.rows("lost"), self.rows("whole"))

    def test_what_cannot_be_trained(self):
        cases = {
            "objective.entropy.coefficient=0.01": "gives no entropies (tamis tinker), which `objective.entropy` needs",
            "objective.masks.top_entropy=0.5": "which `objective.masks.top_entropy` needs",
            "objective.advantage.kind=gae": "it trains no critic (tamis tinker)",
            "rollout.temperature=0.5": "those of temperature 1, and 0.5 is asked for",
        }
        for setting, expected in cases.items():
            with self.subTest(setting):
                fake = self.fake()
                printed = self.tamis("train", "config.yaml", "run.name=x", *self.learner(fake), setting, status=1)
                self.assertIn(expected, printed)
                self.assertEqual(fake.models, {})
                shutil.rmtree(self.folder / "runs/x", ignore_errors=True)

    def test_what_an_export_says(self):
        self.run_whole()
        expected = "holds no weights: they are tinker://.* at http://.*/archive"
        self.assertRegex(self.tamis("export", "runs/whole", "exported", status=1), expected)
        self.assertRegex(self.tamis("eval", "runs/whole", status=2), expected)
        self.assertFalse((self.folder / "exported").exists())


class WithoutPyTorch(unittest.TestCase):
    def test_nothing_but_the_standard_library_is_imported(self):
        script = (
            "import sys\n"
            "sys.modules['torch'] = sys.modules['numpy'] = sys.modules['tamis._native'] = None\n"
            "sys.argv = ['tinker', '--help']\n"
            "import runpy\n"
            "runpy.run_module('tamis.tinker', run_name='__main__')\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run(
            [sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, timeout=LIMIT
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--base-model", done.stdout)


if __name__ == "__main__":
    unittest.main()
