"""The server: each call once and only once, two controllers, tokens, sockets, and bytes that are no requests."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

# First: without PyTorch it reports that and skips the tests.
from support import ROOT, Case, golden_folder, open_settings, random_columns

import torch
from tamis.learner import connections, protocol, server, session
from tamis.learner.device import is_device_lost
from tamis.learner.learner import Learner

# Seconds within which everything must end. Importing PyTorch takes many of them on a busy machine.
LIMIT = 300
WAVE = random_columns(50)
NUM_TOKENS = WAVE["completion_token"].numel()
POLICY = golden_folder("qwen2")


# `python -m tamis.learner` whose device is lost when it is asked to check its weights.
LOST = """
import runpy, torch
from tamis.learner import device
from tamis.learner.learner import Learner

# A GPU that there is here would still answer.
device._computes = lambda: False

def check(self, settings, columns):
    raise {error}

Learner.check = check
runpy.run_module("tamis.learner", run_name="__main__", alter_sys=True)
"""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("learner", timeout=timeout)
        self.unix = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.unix)


class Client:
    """A controller on one connection."""

    def __init__(self, address, token=None, timeout=LIMIT):
        if address.startswith("unix:"):
            self.http = UnixConnection(address.removeprefix("unix:"), timeout)
        else:
            host, port = address.removeprefix("http://").rsplit(":", 1)
            self.http = http.client.HTTPConnection(host, int(port), timeout=timeout)
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.incarnation, self.seq = None, 0

    def close(self):
        self.http.close()

    def request(self, method, path, body=None, headers=None):
        """Status and raw body."""
        self.http.request(method, path, body, {**self.headers, **(headers or {})})
        answer = self.http.getresponse()
        return answer.status, answer.headers.get("Content-Type"), answer.read()

    def get(self, name):
        status, _, body = self.request("GET", f"/v1/{name}")
        return status, json.loads(body)

    def post(self, name, settings=None, given=None, seq=None, incarnation=None):
        """One call with the next number, or with the one that is given: status, settings, columns."""
        content_type, body = protocol.encode(settings or {}, given)
        headers = {"Content-Type": content_type}
        if name != "open":
            if seq is None:
                self.seq = seq = self.seq + 1
            headers |= {"Tamis-Incarnation": incarnation or self.incarnation or "none", "Tamis-Seq": str(seq)}
        status, content_type, body = self.request("POST", f"/v1/{name}", body, headers)
        values, columns = protocol.decode(content_type, body)
        if name == "open" and status == 200:
            self.incarnation, self.seq = values["incarnation"], 0
        # How long it computed differs each time.
        values.pop("seconds", None)
        return status, values, columns

    def open(self, **more):
        return self.post("open", open_settings(POLICY, **more))


class Counting(Learner):
    """Counts the calls that are carried out; `gate` holds calls back until it is set."""

    def __init__(self):
        super().__init__()
        self.counts = {}
        self.gate = threading.Event()
        self.gate.set()
        self.calls = {path: self.counted(path, function) for path, function in self.calls.items()}

    def counted(self, path, function):
        def carry_out(settings, columns):
            self.counts[path] = self.counts.get(path, 0) + 1
            assert self.gate.wait(LIMIT)
            return function(settings, columns)

        return carry_out


class Served(Case):
    """A server within this process."""

    token = None

    def setUp(self):
        self.learner = Counting()
        self.log = []
        self.session = server.Session(self.learner, max_body_bytes=1 << 20, log=self.log.append)
        self.server, self.address = connections.listen("127.0.0.1:0", self.session, self.token)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        threading.Thread(target=self.run_session, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def run_session(self):
        torch.set_num_threads(1)
        self.session.run()

    def client(self, **more):
        client = Client(self.address, **more)
        self.addCleanup(client.close)
        return client

    def count(self, name):
        return self.learner.counts.get(f"/v1/{name}", 0)

    def wait_for(self, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.005)

    def assert_error(self, answer, status, kind, **more):
        self.assertEqual(answer[0], status, answer)
        error = answer[1]["error"]
        self.assertEqual(error["kind"], kind)
        self.assertIsInstance(error["message"], str)
        self.assertIn("hint", error)
        for name, value in more.items():
            self.assertEqual(error[name], value)


class OnceAndOnlyOnce(Served):
    def test_a_step_from_begin_to_end(self):
        client = self.client()
        status, info = client.get("info")
        self.assertEqual(
            (status, info["protocol"], info["incarnation"], info["seq"]), (200, "tamis-learner/1", None, 0)
        )
        self.assertEqual(info["capabilities"]["max_body_bytes"], 1 << 20)
        self.assertEqual(client.open()[0], 200)
        self.assertEqual(client.get("info")[1]["incarnation"], client.incarnation)
        status, _, found = client.post("forward_hold", {"network": "policy"}, WAVE)
        self.assertEqual((status, found["logprob"].shape), (200, (NUM_TOKENS,)))
        self.assertEqual(client.get("health")[1], {"phase": "held", "seq": 1})
        self.assertEqual(client.post("backward", {}, {"logprob": -found["logprob"]})[:2], (200, {}))
        self.assertEqual(client.get("health")[1], {"phase": "idle", "seq": 2})
        status, values, found = client.post("optim_step", {"network": "policy", "learning_rate": 1e-3})
        self.assertEqual((status, values), (200, {"skipped": False, "num_steps": 1}))
        self.assertGreater(found["grad_norm"].item(), 0)

    def test_a_repeated_call_is_answered_and_not_carried_out(self):
        client, other = self.client(), self.client()
        client.open()
        client.post("forward_hold", {"network": "policy"}, WAVE)
        first = client.post("backward", {}, {"logprob": torch.ones(NUM_TOKENS)})
        self.assertEqual(client.post("backward", {}, {"logprob": torch.ones(NUM_TOKENS)}, seq=2)[0], first[0])
        # Over another connection, too, as after a break.
        other.incarnation = client.incarnation
        self.assertEqual(other.post("backward", {}, {"logprob": torch.ones(NUM_TOKENS)}, seq=2)[0], 200)
        self.assertEqual(self.count("backward"), 1)
        once = client.post("grad_norm", {"network": "policy"})
        again = other.post("grad_norm", {"network": "policy"}, seq=3)
        self.assert_same(once[2]["grad_norm"], again[2]["grad_norm"])
        self.assertGreater(once[2]["grad_norm"].item(), 0)
        self.assertEqual(client.get("health")[1]["seq"], 3)

    def test_an_error_is_kept_too(self):
        client = self.client()
        client.open()
        self.assert_error(client.post("backward", {}, {"logprob": torch.ones(3)}), 409, "state")
        self.assert_error(client.post("backward", {}, {"logprob": torch.ones(3)}, seq=1), 409, "state")
        self.assertEqual(self.count("backward"), 1)
        self.assert_error(client.post("nothing"), 404, "path")
        # An unknown call takes no number.
        client.seq -= 1
        self.assertEqual(client.post("check")[:2], (200, {"not_finite": None}))

    def test_a_gap_and_an_old_number(self):
        client = self.client()
        client.open()
        for _ in range(3):
            self.assertEqual(client.post("check")[0], 200)
        for seq in (5, 2, 0, 99):
            self.assert_error(client.post("check", seq=seq), 409, "sequence", expected=4)
        for seq in (" 4 4", "-1", "x", "", "٣", "9" * 30):
            status, _, body = client.request(
                "POST", "/v1/check", b"", {"Tamis-Incarnation": client.incarnation, "Tamis-Seq": seq.encode()}
            )
            self.assertEqual((status, json.loads(body)["error"]["kind"]), (400, "request"))
        self.assertEqual(client.post("check", seq=4)[0], 200)
        self.assertEqual(self.count("check"), 4)

    def test_another_call_under_the_last_number(self):
        client = self.client()
        client.open()
        client.post("keep")
        self.assert_error(client.post("restore", seq=1), 409, "sequence", expected=2)
        self.assert_error(client.post("keep", {"x": 1}, seq=1), 409, "sequence", expected=2)
        self.assertEqual((self.count("restore"), self.count("keep")), (0, 1))

    def test_a_repeated_call_waits_for_the_one_that_runs(self):
        client = self.client()
        client.open()
        self.learner.gate.clear()
        answers = []

        def send():
            one = self.client()
            one.incarnation = client.incarnation
            answers.append(one.post("forward", {"network": "policy"}, WAVE, seq=1))

        senders = [threading.Thread(target=send) for _ in range(4)]
        for sender in senders:
            sender.start()
        self.wait_for(lambda: self.count("forward") == 1)
        # Answered while the call waits at its gate.
        self.assertEqual(client.get("health")[1], {"phase": "busy", "seq": 0})
        self.assertEqual(client.get("info")[0], 200)
        self.assert_error(client.post("check", seq=2), 409, "sequence", expected=1)
        time.sleep(0.05)
        self.assertEqual(answers, [])
        self.learner.gate.set()
        for sender in senders:
            sender.join(LIMIT)
        self.assertEqual([answer[0] for answer in answers], [200] * 4)
        for answer in answers:
            self.assert_same(answer[2]["logprob"], answers[0][2]["logprob"])
        self.assertEqual(self.count("forward"), 1)

    def test_incarnations(self):
        first, second = self.client(), self.client()
        self.assert_error(first.post("check", seq=1), 410, "incarnation")
        first.open()
        self.assertEqual(first.post("check")[0], 200)
        self.assert_error(first.post("check", seq=2, incarnation="0" * 16), 410, "incarnation")
        # The last to open owns it.
        second.open()
        self.assertNotEqual(first.incarnation, second.incarnation)
        self.assert_error(first.post("check"), 410, "incarnation")
        self.assert_error(first.post("check", seq=1), 410, "incarnation")
        self.assertEqual(second.post("check")[0], 200)
        # One that fails leaves none.
        self.assert_error(second.post("open", {**open_settings(POLICY), "policy": "/nowhere"}), 422, "files")
        self.assert_error(second.post("check"), 410, "incarnation")
        self.assertIsNone(second.get("info")[1]["incarnation"])
        status, _, _ = first.open()
        self.assertEqual((status, first.post("check")[0]), (200, 200))

    def test_open_waits_for_what_runs_and_ends_it_for_its_controller(self):
        client, other = self.client(), self.client()
        client.open()
        self.learner.gate.clear()
        answers = {}
        running = threading.Thread(target=lambda: answers.update(running=client.post("check")))
        running.start()
        self.wait_for(lambda: self.count("check") == 1)
        opening = threading.Thread(target=lambda: answers.update(opening=other.open()))
        opening.start()
        self.wait_for(lambda: self.session.incarnation is None)
        self.assertEqual(self.client().get("health")[1], {"phase": "busy", "seq": 0})
        third = self.client()
        self.assert_error(third.post("check", seq=1, incarnation=client.incarnation), 410, "incarnation")
        self.learner.gate.set()
        running.join(LIMIT), opening.join(LIMIT)
        self.assertEqual((answers["running"][0], answers["opening"][0]), (200, 200))
        self.assertEqual(other.post("check")[0], 200)

    def test_headers_that_are_missing_or_too_many(self):
        client = self.client()
        client.open()
        for headers in ({}, {"Tamis-Seq": "1"}, {"Tamis-Incarnation": client.incarnation}):
            status, _, body = client.request("POST", "/v1/check", b"{}", headers)
            self.assertEqual((status, json.loads(body)["error"]["kind"]), (400, "request"))
        status, _, body = client.request(
            "POST", "/v1/open", b"{}", {"Tamis-Incarnation": client.incarnation, "Tamis-Seq": "1"}
        )
        self.assertEqual(status, 400)
        # Nothing of this touched the incarnation.
        self.assertEqual(client.post("check")[0], 200)

    def test_what_breaks_off_is_an_error_and_no_traceback(self):
        def fail(settings, columns):
            raise failure

        client = self.client()
        client.open()
        self.learner.calls["/v1/check"] = fail
        cases = [
            (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
            (OSError("odd"), "failed to read or write: odd"),
            (torch.OutOfMemoryError("CUDA out of memory"), "out of memory: CUDA out of memory"),
            (MemoryError(), "out of memory: MemoryError"),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory: DefaultCPUAllocator: can't allocate memory"),
            (torch.AcceleratorError("CUDA error: out of memory"), "out of memory: CUDA error: out of memory"),
        ]
        for failure, message in cases:
            self.assert_error(client.post("check"), 500, "failed", message=message)
        # An error of the disk comes with the path and the system's number.
        failure = OSError(28, "No space left on device", "/x")
        status, answer = client.post("check")[:2]
        message = "failed to open /x: No space left on device"
        more = {"operation": "open", "path": "/x", "errno": 28}
        self.assertEqual((status, answer), (500, {"error": {"kind": "disk", "message": message, "hint": None, **more}}))
        # The log has what the controller does not get.
        self.assertRegex(self.log[-1], "(?s)^Traceback .*second line$")
        self.assertEqual(client.post("keep")[0], 200)

    def test_no_memory_is_told_with_what_takes_less(self):
        def fail(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        client = self.client()
        client.open()
        passes = ["train.micro_batch_tokens", "train.micro_batch_size", "model.recompute_activations", "learner.logprob_chunk"]
        weights = ["learner.lora", "learner.offload_reference"]
        cases = {"forward": passes, "forward_hold": passes, "backward": passes, "generate": ["rollout.max_num_seqs"]}
        cases |= {"copy": weights, "load": weights, "optim_step": weights, "open": weights}
        for call, keys in cases.items():
            self.learner.calls[f"/v1/{call}"] = fail
            if call == "open":
                self.learner.open = fail
            answer = client.post(call, open_settings(POLICY) if call == "open" else {})
            self.assert_error(answer, 500, "failed", message="out of memory: CUDA out of memory")
            hint = answer[1]["error"]["hint"]
            found = re.findall(r"`([a-z_]+\.[a-z_]+)", hint)
            self.assertEqual(sorted(found), sorted(keys), hint)

    def test_curl(self):
        client = self.client()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        status, _, body = client.request("POST", "/v1/open", json.dumps(open_settings(POLICY)), headers)
        self.assertEqual(status, 200)
        headers |= {"Tamis-Incarnation": json.loads(body)["incarnation"], "Tamis-Seq": "1"}
        status, content_type, body = client.request("POST", "/v1/check", b"", headers)
        self.assertEqual((status, content_type, json.loads(body)["not_finite"]), (200, "application/json", None))

    def test_orphan(self):
        client = self.client()
        self.assert_error(client.open(orphan_timeout=0), 400, "request")
        # A clock that a busy machine cannot move.
        now = [0.0]
        self.enterContext(mock.patch.object(session, "time", types.SimpleNamespace(monotonic=lambda: now[0])))
        self.assertEqual(client.open(orphan_timeout=60.0)[0], 200)
        run = [thread for thread in threading.enumerate() if thread._target == self.run_session]
        for _ in range(3):
            now[0] += 50.0
            client.get("health")
        run[0].join(2.5)
        self.assertTrue(run[0].is_alive(), "somebody asks for its health")
        now[0] += 61.0
        run[0].join(LIMIT)
        self.assertFalse(run[0].is_alive())
        self.assertEqual(self.log[-1], "no request for 60.0 s: the learner ends")


class Malformed(Served):
    def exchange(self, data, ends=True):
        """The answer to raw bytes, until the server closes."""
        host, port = self.server.server_address[:2]
        with socket.create_connection((host, port), timeout=LIMIT) as raw:
            with contextlib.suppress(ConnectionError):
                raw.sendall(data)
                if ends:
                    raw.shutdown(socket.SHUT_WR)
            received = b""
            with contextlib.suppress(ConnectionError):
                while part := raw.recv(65536):
                    received += part
        return received

    def assert_answers(self):
        self.assertEqual(self.client().get("health")[0], 200)

    def test_requests_that_are_none(self):
        long = b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n"
        many = b"GET /v1/health HTTP/1.1\r\n" + b"".join(b"x%d: 1\r\n" % i for i in range(200)) + b"\r\n"
        cases = {
            b"hello\r\n\r\n": b"400", b"GET / HTTP/9.9\r\n\r\n": b"400", b"\x16\x03\x01\x02\x00\x01\r\n\r\n": b"400", long: b"400", many: b"400",
            b"PUT /v1/open HTTP/1.1\r\n\r\n": b"405", b"GET /v1/open HTTP/1.1\r\n\r\n": b"404", b"POST /v2 HTTP/1.1\r\nContent-Length: 0\r\n\r\n": b"404",
            b"POST /v1/open HTTP/1.1\r\n\r\n": b"400", b"POST /v1/open HTTP/1.1\r\nContent-Length: -1\r\n\r\n": b"400",
            b"POST /v1/open HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}": b"400",
            b"POST /v1/open HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n": b"413",
            b"GET /v1/health HTTP/1.1\r\nOrigin: http://a.example\r\n\r\n": b"403",
            b"POST /v1/open HTTP/1.1\r\nOrigin: http://a.example\r\nContent-Length: 2\r\n\r\n{}": b"403",
            b"POST /v1/open HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": b"400",
            b"POST /v1/open HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": b"400",
        }  # fmt: skip
        for data, status in cases.items():
            with self.subTest(data[:60]):
                received = self.exchange(data)
                self.assertEqual(received.split(b" ")[1], status, received)
                head, _, body = received.partition(b"\r\n\r\n")
                self.assertIn(b"application/json", head)
                error = json.loads(body)["error"]
                self.assertEqual(set(error), {"kind", "message", "hint"})
                self.assertNotIn(b"Traceback", received)
        self.assert_answers()

    def test_names_that_are_not_of_this_machine(self):
        for host in (b"localhost", b"LOCALHOST:80", b"127.0.0.1:9", b"127.3.2.1", b"[::1]:80"):
            received = self.exchange(b"GET /v1/health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            self.assertEqual(received.split(b" ")[1], b"200", host)
        for host in (b"example.org", b"localhost.example.org:80", b"10.0.0.1", b"local\xe9", b"", b"localhost\r\nHost: a"):
            received = self.exchange(b"GET /v1/health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            self.assertEqual(received.split(b" ")[1], b"403", host)
        self.assertIn(b"and not 'a'", received)

    def test_json_is_bounded_before_it_is_read(self):
        self.session.max_body_bytes, self.server.room = 1 << 30, connections.Room(1 << 30)
        most = protocol.MAX_JSON_BYTES
        head = b"POST /v1/open HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n"
        self.assertIn(b"4194305 bytes, and at most 4194304", self.exchange(head % (b"", most + 1)))
        columns = b"Content-Type: application/x-safetensors\r\n"
        file = (most + 1).to_bytes(8, "little") + bytes(most + 1)
        self.assertIn(b"4194305 bytes of JSON", self.exchange(head % (columns, len(file)) + file))
        self.assertEqual(self.count("open"), 0)

    def test_a_client_that_is_still_writing_reads_why_it_is_refused(self):
        host, port = self.server.server_address[:2]
        with socket.create_connection((host, port), timeout=LIMIT) as raw:
            raw.sendall(b"POST /v1/open HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (20 << 20))
            for _ in range(20):
                raw.sendall(bytes(1 << 20))
            self.assertTrue(raw.recv(100).startswith(b"HTTP/1.1 413 "))

    def test_bodies_that_do_not_end_share_one_room(self):
        # There is room for two of the longest.
        head = b"POST /v1/open HTTP/1.1\r\nContent-Type: application/x-safetensors\r\nContent-Length: %d\r\n\r\n" % (1 << 20)
        with contextlib.ExitStack() as stack:
            halves = [stack.enter_context(socket.create_connection(self.server.server_address, LIMIT)) for _ in "ab"]
            for half in halves:
                half.sendall(head)
            self.wait_for(lambda: self.server.room.left == 0)
            third = stack.enter_context(socket.create_connection(self.server.server_address, LIMIT))
            third.sendall(head + bytes(1 << 20))
            self.assert_answers()
            third.settimeout(0.3)
            self.assertRaises(TimeoutError, third.recv, 1)
            halves[0].close()
            third.settimeout(LIMIT)
            self.assertTrue(third.recv(100).startswith(b"HTTP/1.1 400 "))
        self.wait_for(lambda: self.server.room.left == 2 << 20)

    def test_a_body_that_waits_to_be_asked_for(self):
        host, port = self.server.server_address[:2]
        with socket.create_connection((host, port), timeout=LIMIT) as raw:
            raw.sendall(b"POST /v1/open HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            self.assertEqual(raw.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            raw.sendall(b"{}")
            self.assertTrue(raw.recv(100).startswith(b"HTTP/1.1 400 "))

    def test_a_body_that_ends_early_harms_nobody(self):
        self.exchange(b"POST /v1/open HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        self.assertEqual(self.count("open"), 0)
        self.assert_answers()

    def test_a_connection_that_stands_still_is_ended(self):
        before, connections.STALL_SECONDS = connections.STALL_SECONDS, 0.3
        self.addCleanup(setattr, connections, "STALL_SECONDS", before)
        begin = time.monotonic()
        self.exchange(b"POST /v1/open HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", ends=False)
        self.exchange(b"POST /v1/open HTTP/1.1\r\nContent-", ends=False)
        self.assertLess(time.monotonic() - begin, before)
        # A client may pause between two requests.
        client = self.client()
        client.get("health")
        time.sleep(0.8)
        connected = client.http.sock
        self.assertEqual(client.get("health")[0], 200)
        self.assertIs(client.http.sock, connected)

    def test_noise(self):
        draw = random.Random(2)
        client = self.client()
        client.open()
        content_type, body = protocol.encode({"network": "policy"}, WAVE)
        head = f"POST /v1/forward HTTP/1.1\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nTamis-Incarnation: {client.incarnation}\r\nTamis-Seq: 1\r\n\r\n"
        good = head.encode() + body
        for _ in range(150):
            data = bytearray(good)
            for _ in range(draw.randint(1, 6)):
                data[draw.choice([draw.randrange(len(head)), draw.randrange(len(data))])] = draw.randrange(256)
            received = self.exchange(bytes(data[: draw.choice([len(data), draw.randrange(len(data))])]))
            self.assertNotIn(b"Traceback", received)
            if received:
                self.assertRegex(received, rb"^HTTP/1.1 (200|400|404|405|409|410|422) ")
        self.assert_answers()
        # The next call is accepted, whatever number the noise had.
        client.seq = client.get("health")[1]["seq"]
        self.assertEqual(client.post("check")[0], 200)

    def test_bodies_too_large(self):
        client = self.client()
        client.open()
        with contextlib.suppress(ConnectionError):
            answer = client.post("check", {"x": "y" * (1 << 21)})
            self.assert_error(answer, 413, "request")
        self.assertEqual(self.count("check"), 0)
        self.assert_answers()


class Tokens(Served):
    token = "secret-token"

    def test_every_call_but_health(self):
        for token in (None, "", "wrong", "secret-token2", "sécret"):
            client = self.client(token=token)
            if token == "sécret":
                client.headers["Authorization"] = client.headers["Authorization"].encode("latin-1")
            self.assertEqual(client.get("health")[0], 200)
            client.close()
            self.assert_error(client.get("info"), 401, "token")
            client.close()
            self.assert_error(client.post("open", open_settings(POLICY)), 401, "token")
        self.assertEqual(self.count("open"), 0)
        client = self.client(token="secret-token")
        self.assertEqual(client.get("info")[0], 200)
        self.assertEqual(client.open()[0], 200)
        self.assertEqual(client.post("check")[0], 200)

    def test_no_address_that_others_reach_without_one(self):
        for where in ("0.0.0.0:0", "[::]:0"):
            with contextlib.suppress(OSError):
                with self.assertRaisesRegex(connections.ListenError, "api-key-file|failed to listen"):
                    connections.listen(where, self.session)
        listener, _ = connections.listen("0.0.0.0:0", self.session, "secret-token")
        listener.server_close()
        for where in ("here", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":8"):
            self.assertRaises(connections.ListenError, connections.listen, where, self.session)


class Program(Case):
    """`python -m tamis.learner` as a controller starts it."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def start(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tamis.learner", *arguments]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child

    def listening(self, child):
        line = child.stdout.readline()
        self.assertTrue(line.startswith("listening on "), line or child.stderr.read())
        return line.removeprefix("listening on ").strip()

    def test_killed_and_started_again(self):
        child = self.start("--listen", "127.0.0.1:0")
        address = self.listening(child)
        client = Client(address)
        client.open()
        client.post("forward_hold", {"network": "policy"}, WAVE)
        child.kill()
        child.wait()
        with self.assertRaises(OSError):
            client.post("backward", {}, {"logprob": torch.ones(NUM_TOKENS)})
        client.close()
        again = self.start("--listen", address.removeprefix("http://"))
        self.assertEqual(self.listening(again), address)
        self.assertEqual(client.get("info")[1]["incarnation"], None)
        self.assertEqual(client.post("backward", {}, {"logprob": torch.ones(NUM_TOKENS)}, seq=2)[0], 410)
        self.assertEqual(client.open()[0], 200)
        client.close()
        again.send_signal(signal.SIGTERM)
        self.assertEqual(again.wait(LIMIT), 0)
        self.assertRegex(
            again.stderr.read(),
            "^.*hf/qwen2: 51,120 of 51,120 parameters are trained, f32 on cpu, attention tamis_sequences, packed, prompts shared\n$",
        )

    def test_unix_socket(self):
        path = self.folder / "learner.sock"
        where = f"unix:{path}"
        child = self.start("--listen", where)
        self.assertEqual(self.listening(child), where)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        client = Client(where)
        self.assertEqual(client.open()[0], 200)
        status, _, found = client.post("forward", {"network": "policy"}, WAVE)
        self.assertEqual((status, found["entropy"].numel()), (200, NUM_TOKENS))
        client.close()
        # A second one there is refused; one after a crash takes its place.
        other = self.start("--listen", where)
        self.assertEqual(other.wait(LIMIT), 2)
        self.assertIn("another program listens", other.stderr.read())
        child.kill()
        child.wait()
        self.assertTrue(path.exists())
        child = self.start("--listen", where)
        self.listening(child)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(LIMIT), 0)
        self.assertFalse(path.exists())

    def test_arguments(self):
        child = self.start("--listen", "0.0.0.0:0")
        self.assertEqual(child.wait(LIMIT), 2)
        self.assertIn("api-key-file", child.stderr.read())
        empty = self.folder / "token"
        empty.write_text("\n")
        child = self.start("--listen", "127.0.0.1:0", "--api-key-file", str(empty))
        self.assertEqual(child.wait(LIMIT), 2)
        self.assertIn("holds no key", child.stderr.read())
        empty.write_text("abc\n")
        child = self.start("--listen", "127.0.0.1:0", "--api-key-file", str(empty))
        address = self.listening(child)
        for token, status in ((None, 401), ("abc", 200)):
            client = Client(address, token=token)
            self.assertEqual(client.get("info")[0], status)
            client.close()

    def test_a_device_that_is_lost_ends_the_process_after_its_answer(self):
        for error in (
            "torch.AcceleratorError('CUDA error: device-side assert triggered')",
            "RuntimeError('CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm')",
        ):
            with self.subTest(error):
                program = self.folder / "lost.py"
                program.write_text(LOST.format(error=error))
                command = [sys.executable, str(program), "--listen", "127.0.0.1:0"]
                environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
                child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.addCleanup(child.communicate)
                self.addCleanup(child.kill)
                client = Client(self.listening(child))
                self.assertEqual(client.open()[0], 200)
                status, answer, _ = client.post("check")
                self.assertEqual(status, 503)
                self.assertRegex(answer["error"]["message"], "CUDA error")
                self.assertIn("the learner ends", answer["error"]["hint"])
                client.close()
                self.assertEqual(child.wait(LIMIT), 1)
                self.assertRegex(child.stderr.read(), "error: the device cannot be computed on any more: CUDA error")

    def test_an_answer_is_under_way_until_it_is_sent(self):
        # What a process that is about to end waits for.
        session = mock.Mock(max_body_bytes=1 << 20, max_json_bytes=1 << 20)
        session.submit.return_value = connections.Answer.of({})
        listening, address = connections.listen("127.0.0.1:0", session)
        self.addCleanup(listening.server_close)
        sending, write = [], socket.SocketIO.write

        def record(stream, data):
            sending.append(listening._num_answering)
            return write(stream, data)

        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.addCleanup(listening.shutdown)
        client = Client(address)
        self.addCleanup(client.close)
        with mock.patch("socket.SocketIO.write", record):
            self.assertEqual(client.post("check")[0], 200)
        self.assertEqual(sending, [1])

    def test_a_device_that_computes_on_is_not_lost(self):
        refused = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx")
        # A device played on the CPU: it answers, or fails whatever it is asked.
        with mock.patch("torch.cuda.is_available", lambda: True):
            with mock.patch("torch.ones", lambda *_, plainly=torch.ones, **__: plainly(1)):
                self.assertFalse(is_device_lost(refused))
            with mock.patch("torch.ones", side_effect=torch.AcceleratorError("CUDA error: unspecified")):
                self.assertTrue(is_device_lost(refused))
        self.assertFalse(is_device_lost(ValueError("CUDA error")))

    def test_nothing_heavy_is_imported_early(self):
        program = "import sys, tamis, tamis.learner; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        self.assertEqual(found.stdout.strip(), "[]")
        told = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tamis.learner", "--help"], env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        self.assertIn("--listen", told.stdout)
        self.assertNotIn(" torch\n", told.stderr)
        self.assertIn(" argparse\n", told.stderr)


if __name__ == "__main__":
    unittest.main()
