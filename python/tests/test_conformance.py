"""What docs/learner-protocol.md says, asked over HTTP of the learners: `tamis learner`, `python -m tamis.learner`, and
`python -m tamis.tinker`, which says that it does not have everything.

The native one needs the program `tamis`: TAMIS_PROGRAM, or what cargo has built under target/.
"""

import http.client
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, ROOT, columns, golden_folder

import fake_tinker
import torch
from tamis.learner import protocol

BUILT = [path for path in (ROOT / "target/release/tamis", ROOT / "target/debug/tamis") if path.exists()]
PROGRAM = os.environ.get("TAMIS_PROGRAM") or max(BUILT, key=lambda path: path.stat().st_mtime, default=None)
POLICY = str(golden_folder("qwen2"))

# Two completions of one prompt, one of another: four tokens.
WAVE = columns([[1, 2], [3]], [(0, [4]), (0, [5, 6]), (1, [7])])
EMPTY = columns([], [])
DRAWING = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 3,
    "end_tokens": [],
}  # fmt: skip


def f32(*values):
    return torch.tensor(values, dtype=torch.float32)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def i64(*values):
    return torch.tensor(values, dtype=torch.int64)


def beginning(*samples):
    """Columns of `generate` that begin these samples of one prompt."""
    return {
        "prompt_token": i32(1, 2), "prompt_offset": i64(0, 2), "prompt_drawing": i32(0), "sample": i64(*samples),
        "prompt_of": i32(*[0] * len(samples)), "key": i64(*samples), "abort": i64(),
    }  # fmt: skip


def with_header(header, data=b""):
    """A safetensors body with this text as its header."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + data


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Conformance:
    """The page's statuses. A case is `(what, status, kind, call, settings, columns)`."""

    COMMAND = None
    # Columns of passes and samples.
    COLUMNS = ("logprob", "entropy")

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.log = open(cls.folder / "log", "w")  # noqa: SIM115
        command = [*cls.COMMAND, "--listen", f"unix:{cls.folder}/s"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        cls.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=cls.log, env=environment, text=True)
        said = cls.process.stdout.readline()
        assert said.startswith("listening on "), (said, (cls.folder / "log").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait(30)
        cls.process.stdout.close()
        cls.log.close()
        cls.temporary.cleanup()

    def setUp(self):
        self.connection = Connection(f"{self.folder}/s")
        self.addCleanup(self.connection.close)
        self.incarnation, self.number = None, 0

    def send(self, path, body=b"", content_type="application/json", headers=None, method="POST"):
        """`(status, JSON, columns)` of an answer."""
        self.connection.request(method, path, body, {"Content-Type": content_type, **(headers or {})})
        answer = self.connection.getresponse()
        read = answer.read()
        values, found = protocol.decode(answer.headers.get("Content-Type", ""), read) if read else ({}, {})
        # `test_how_long_it_computed` checks how long it computed.
        self.seconds = values.pop("seconds", None)
        return answer.status, values, found

    def tamis(self, number=None):
        """The headers of the next call, or of one with this number."""
        return {"Tamis-Incarnation": self.incarnation or "none", "Tamis-Seq": str(number or self.number)}

    def call(self, name, settings=None, given=None, body=None, content_type="application/json"):
        """The next call: of settings and columns, or with a body as it is."""
        self.number += 1
        if body is None:
            content_type, body = protocol.encode(settings or {}, given)
        return self.send(f"/v1/{name}", body, content_type, self.tamis())

    def request(self, **more):
        return {"policy": POLICY, "temperature": 1.0, "optimizer": OPTIMIZER, **more}

    def open(self, **more):
        status, answer, _ = self.send("/v1/open", json.dumps(self.request(**more)))
        self.assertEqual(status, 200, answer)
        self.incarnation, self.number = answer["incarnation"], 0
        return answer

    def done(self, name, settings=None, given=None):
        """A call that goes well: `(JSON, columns)`."""
        status, answer, found = self.call(name, settings, given)
        self.assertEqual(status, 200, f"{name} {settings}: {answer}")
        return answer, found

    def judge(self, what, answered, status, kind):
        found, answer, _ = answered
        with self.subTest(what):
            error = answer.get("error", {})
            self.assertEqual((found, error.get("kind")), (status, kind), f"{what}: {answer}")
            if kind is not None:
                self.assertTrue(error["message"], what)
                self.assertIn("hint", error)

    def refuses(self, cases):
        for what, status, kind, name, *given in cases:
            self.judge(what, self.call(name, *given), status, kind)

    def refuses_all(self, *calls):
        """Calls that need what the learner reports it does not have."""
        self.refuses([(f"{name} {given}", 422, "refused", name, *given) for name, *given in calls])

    def hold(self, network="policy"):
        return self.done("forward_hold", {"network": network}, WAVE)[1]

    # Before a learner is open

    def test_what_is_asked_of_nobody(self):
        status, info, _ = self.send("/v1/info", method="GET")
        self.assertEqual((status, info["protocol"]), (200, "tamis-learner/1"))
        known = {"critic", "lora", "publish", "generate", "dtypes", "max_body_bytes", "entropy", "weights"}
        self.assertEqual(set(info["capabilities"]) - {"candidates"}, known)
        status, health, _ = self.send("/v1/health", method="GET")
        self.assertEqual((status, set(health)), (200, {"phase", "seq"}))
        self.judge("GET of nothing", self.send("/v1/nothing", method="GET"), 404, "path")
        self.judge("POST of nothing", self.send("/v1/nothing"), 404, "path")
        self.judge("a web page", self.send("/v1/open", headers={"Origin": "http://a"}), 403, "request")
        self.connection.close()
        self.judge("another method", self.send("/v1/open", method="PUT"), 405, "request")
        self.connection.close()
        length = {"Content-Length": str(info["capabilities"]["max_body_bytes"] + 1)}
        self.judge("a body too long", self.send("/v1/open", headers=length), 413, "request")

    def test_what_open_refuses(self):
        def opened(what, status, kind, headers=None, **more):
            self.judge(what, self.send("/v1/open", json.dumps(self.request(**more)), headers=headers), status, kind)

        opened("a number", 400, "request", {"Tamis-Seq": "1"})
        opened("an incarnation", 400, "request", {"Tamis-Incarnation": "x"})
        for temperature in (0.0, -1.0, "1"):
            opened(f"temperature {temperature}", 400, "request", temperature=temperature)
        bounds = {
            "beta1": 1.0, "beta2": -0.1, "epsilon": -1.0, "weight_decay": -0.1, "max_grad_norm": 0.0, "unknown": 1,
        }  # fmt: skip
        for name, value in bounds.items():
            opened(f"{name} {value}", 400, "request", optimizer={**OPTIMIZER, name: value})
        opened("no optimizer", 400, "request", optimizer=None)
        opened("a relative policy", 400, "request", policy="policy")
        opened("a relative reference", 400, "request", reference="policy")
        opened("an unknown key", 400, "request", polic="x")
        opened("an unknown option", 400, "request", options={"no_such_option": 1})
        opened("no sequences", 400, "request", generation={"max_sequences": 0})
        opened("no time", 400, "request", orphan_timeout=0.0)
        opened("no policy there", 422, "files", policy="/nowhere/at/all")
        status, info, _ = self.send("/v1/info", method="GET")
        self.assertIsNone(info["incarnation"], "one that fails leaves none")

    def test_what_open_refuses_of_other_networks(self):
        def opened(what, status, kind, **more):
            self.judge(what, self.send("/v1/open", json.dumps(self.request(**more))), status, kind)

        for name, value in {"beta1": 1.0, "epsilon": -1.0, "max_grad_norm": 0.0, "unknown": 1}.items():
            opened(f"critic's {name}", 400, "request", critic={"optimizer": {**OPTIMIZER, name: value}})
        opened("a relative critic", 400, "request", critic={"folder": "critic", "optimizer": OPTIMIZER})
        opened("no reference there", 422, "files", reference="/nowhere/at/all")

    # Numbers

    def test_calls_are_numbered(self):
        self.judge("before it is open", self.send("/v1/check", headers=self.tamis(1)), 410, "incarnation")
        self.open()
        self.judge("no headers", self.send("/v1/check"), 400, "request")
        for number in ("", "+1", "-1", "1.0", "one"):
            headers = {"Tamis-Incarnation": self.incarnation, "Tamis-Seq": number}
            self.judge(f"number {number!r}", self.send("/v1/check", headers=headers), 400, "request")
        other = {"Tamis-Incarnation": "another", "Tamis-Seq": "1"}
        self.judge("another incarnation", self.send("/v1/check", headers=other), 410, "incarnation")
        for number in (2, 99):
            answered = self.send("/v1/check", headers=self.tamis(number))
            self.judge(f"{number} when 1 is due", answered, 409, "sequence")
            self.assertEqual(answered[1]["error"]["expected"], 1)
        # None of these took a number.
        self.done("check")
        first = self.done("forward", {"network": "policy"}, WAVE)
        content_type, body = protocol.encode({"network": "policy"}, WAVE)
        status, answer, again = self.send("/v1/forward", body, content_type, self.tamis())
        self.assertEqual((status, answer), (200, first[0]))
        self.assertTrue(all(torch.equal(again[name], column) for name, column in first[1].items()))
        self.judge("as another call", self.send("/v1/check", headers=self.tamis()), 409, "sequence")
        refused = self.call("optim_step", {"network": "policy", "learning_rate": -1})
        kept = self.send("/v1/optim_step", json.dumps({"network": "policy", "learning_rate": -1}), headers=self.tamis())
        self.assertEqual(refused, kept, "an error is kept, too")
        # A body that cannot be read takes its number.
        self.judge("no JSON", self.call("check", body="{"), 400, "request")
        self.done("check")

    def test_bodies_that_cannot_be_read(self):
        self.open()
        st = protocol.SAFETENSORS
        for body in ("[]", "null", "5", '"text"', "{", '{"version": 1, "version": 2}', '{"version": NaN}', "[" * 100_000):
            self.judge(f"body {body[:40]}", self.call("publish", body=body), 400, "request")
        content_type, whole = protocol.encode({"network": "policy"}, WAVE)
        self.judge("a body cut off", self.call("forward", body=whole[:-3], content_type=content_type), 400, "request")
        self.judge("no safetensors", self.call("forward", body=b"1234", content_type=st), 400, "request")
        column = '"logprob": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
        twice = with_header(f"{{{column}, {column}}}", bytes(4))
        self.judge("a column that stands twice", self.call("backward", body=twice, content_type=st), 400, "request")
        listed = with_header('{"__metadata__": {"json": "[]"}}')
        self.judge("a list as settings", self.call("check", body=listed, content_type=st), 400, "request")
        self.refuses([
            ("an unknown key", 400, "request", "publish", {"version": 1, "versio": 2}),
            ("a version below 0", 400, "request", "publish", {"version": -1}),
            ("a version that is no whole number", 400, "request", "publish", {"version": 1.5}),
            ("a column that is none of it", 400, "request", "check", {}, {"value": f32(1)}),
            ("another in a wave", 400, "request", "forward", {"network": "policy"}, {**WAVE, "value": f32(1)}),
        ])  # fmt: skip
        status, _, _ = self.call("check", body=b"")
        self.assertEqual(status, 200, "no body is {}")
        status, _, _ = self.call("check", body=b"{}", content_type="application/x-www-form-urlencoded")
        self.assertEqual(status, 200, "any other type is JSON")

    # Passes

    def test_how_long_it_computed(self):
        self.open()
        self.call("check")
        self.assertGreaterEqual(self.seconds, 0.0)
        self.assertLess(self.seconds, 60.0)

    def test_waves(self):
        self.open()
        first = self.done("forward", {"network": "policy"}, WAVE)[1]
        self.assertEqual({name: column.dtype for name, column in first.items()}, dict.fromkeys(self.COLUMNS, torch.float32))
        self.assertEqual([column.numel() for column in first.values()], [4] * len(self.COLUMNS))
        held = self.hold()
        self.assertTrue(all(torch.equal(held[name], column) for name, column in first.items()))
        for name in ("forward", "forward_hold"):
            found = self.done(name, {"network": "policy"}, EMPTY)[1]
            self.assertEqual({name: list(column.shape) for name, column in found.items()}, {name: [0] for name in self.COLUMNS})
        self.done("backward", {}, {"logprob": f32()})
        policy = {"network": "policy"}
        wrong = {
            "a token outside the vocabulary": {"prompt_token": i32(1, 2, 1 << 20)},
            "a token below 0": {"completion_token": i32(4, 5, -6, 7)},
            "offsets that do not rise": {"completion_offset": i64(0, 1, 1, 4)},
            "offsets that end early": {"prompt_offset": i64(0, 2, 2)},
            "no offsets": {"prompt_offset": i64()},
            "a prompt that is not there": {"prompt_of": i32(0, 0, 2)},
            "prompts that fall": {"prompt_of": i32(1, 0, 0)},
            "a rank that is not there": {"rank": i32(0, 0, 1 << 10)},
            "too few ranks": {"rank": i32(0)},
            "another type": {"rank": i64(0, 0, 0)},
            "two dimensions": {"rank": i32(0, 0, 0)[:, None]},
        }
        self.refuses([(what, 400, "request", "forward", policy, {**WAVE, **one}) for what, one in wrong.items()])
        missing = {name: column for name, column in WAVE.items() if name != "rank"}
        long = columns([[1] * 100_000], [(0, [2])])
        self.refuses([
            ("a column that is missing", 400, "request", "forward_hold", policy, missing),
            ("no columns", 400, "request", "forward", policy),
            ("too long a sequence", 422, "refused", "forward", policy, long),
            ("no network", 400, "request", "forward", {}, WAVE),
            ("an unknown network", 400, "request", "forward", {"network": "actor"}, WAVE),
            ("a held network that does not learn", 400, "request", "forward_hold", {"network": "before"}, WAVE),
            ("no sharpness", 400, "request", "forward", {"network": "policy", "sharpness": 0.0}, WAVE),
            ("images of a text model", 422, "refused", "forward", {"network": "policy", "images": [["/a.png"], []]}, WAVE),
            ("images that are no lists", 400, "request", "forward", {"network": "policy", "images": "/a.png"}, WAVE),
        ])  # fmt: skip
        self.done("forward", {"network": "policy", "images": [[], []]}, WAVE)

    def test_networks_that_are_not_there(self):
        self.open()
        self.refuses([
            ("no reference", 409, "state", "forward", {"network": "reference"}, WAVE),
            ("no teacher", 400, "request", "forward", {"network": "teacher/0"}, WAVE),
            ("no critic", 422, "refused", "forward", {"network": "critic"}, WAVE),
            ("no critic to hold", 422, "refused", "forward_hold", {"network": "critic"}, WAVE),
            ("no critic's norm", 422, "refused", "grad_norm", {"network": "critic"}),
            ("no critic to step", 422, "refused", "optim_step", {"network": "critic", "learning_rate": 0.1}),
            ("no critic to begin", 422, "refused", "copy", {"to": "critic"}),
            ("no optimizer of it", 422, "refused", "reset_optimizer", {"network": "critic"}),
            ("a copy of nothing", 400, "request", "copy", {"to": "policy"}),
            ("not opened to generate", 422, "refused", "generate", {"seconds": 0.0, "drawing": [DRAWING]}, beginning(1)),
        ])  # fmt: skip
        # Without `keep` it is the policy.
        before, policy = (self.done("forward", {"network": name}, WAVE)[1] for name in ("before", "policy"))
        self.assertTrue(torch.equal(before["logprob"], policy["logprob"]))

    def test_a_copy_as_the_reference(self):
        self.open()
        self.refuses([("no adapter", 422, "refused", "forward", {"network": "base"}, WAVE)])
        policy = self.done("forward", {"network": "policy"}, WAVE)[1]
        self.hold()
        # It has none of the held state.
        self.done("copy", {"to": "reference"})
        self.done("backward", {"discard": True})
        reference = self.done("forward", {"network": "reference"}, WAVE)[1]
        self.assertTrue(torch.equal(reference["logprob"], policy["logprob"]))

    def test_teachers(self):
        self.open(teachers=[POLICY])
        policy, teacher = (self.done("forward", {"network": name}, WAVE)[1] for name in ("policy", "teacher/0"))
        self.assertTrue(torch.equal(teacher["logprob"], policy["logprob"]))
        self.refuses([("another teacher", 400, "request", "forward", {"network": "teacher/1"}, WAVE)])

    def test_a_critic(self):
        answer = self.open(critic={"optimizer": OPTIMIZER})
        self.assertIsNone(answer["critic"])
        self.refuses([("not yet", 409, "state", "forward", {"network": "critic"}, WAVE)])
        self.assertIsNotNone(self.done("copy", {"to": "critic"})[0]["critic"])
        values = self.done("forward", {"network": "critic"}, WAVE)[1]
        self.assertEqual({name: column.tolist() for name, column in values.items()}, {"value": [0.0] * 4})
        empty = self.done("forward", {"network": "critic"}, EMPTY)[1]
        self.assertEqual({name: list(column.shape) for name, column in empty.items()}, {"value": [0]})
        self.refuses([("sharpness", 400, "request", "forward", {"network": "critic", "sharpness": 2.0}, WAVE)])
        self.hold("critic")
        self.refuses([("a policy's column", 400, "request", "backward", {}, {"logprob": f32(0, 0, 0, 0)})])
        self.done("backward", {}, {"value": f32(1, 1, 1, 1)})
        self.assertGreater(self.done("grad_norm", {"network": "critic"})[1]["grad_norm"].item(), 0)
        # Nothing is held for another critic.
        self.hold("critic")
        self.done("copy", {"to": "critic"})
        self.refuses([("of the one before", 409, "state", "backward", {}, {"value": f32(1, 1, 1, 1)})])

    def test_backward(self):
        self.open()
        good = {"logprob": f32(1, 0, 0, 0)}
        self.refuses([("nothing held", 409, "state", "backward", {}, good)])
        self.done("backward", {"discard": True})
        self.hold()
        # Refused calls leave the graph.
        self.refuses([
            ("no columns", 400, "request", "backward", {}),
            ("a critic's column", 400, "request", "backward", {}, {"value": f32(0, 0, 0, 0)}),
            ("one more", 400, "request", "backward", {}, {**good, "value": f32(0, 0, 0, 0)}),
            ("too short", 400, "request", "backward", {}, {"logprob": f32(0, 0, 0)}),
            ("another type", 400, "request", "backward", {}, {"logprob": f32(0, 0, 0, 0).double()}),
            ("discard with columns", 400, "request", "backward", {"discard": True}, good),
            ("a step while it is held", 409, "state", "optim_step", {"network": "policy", "learning_rate": 0.1}),
        ])  # fmt: skip
        self.assertEqual(self.send("/v1/health", method="GET")[1]["phase"], "held")
        # Neither does a call about something else remove it.
        self.done("restore")
        self.done("forward", {"network": "policy"}, WAVE)
        self.done("backward", {}, good)
        self.refuses([("once alone", 409, "state", "backward", {}, good)])
        self.assertGreater(self.done("grad_norm", {"network": "policy"})[1]["grad_norm"].item(), 0)
        self.assertEqual(self.done("grad_norm", {"network": "policy"})[1]["grad_norm"].item(), 0)
        self.hold()
        self.done("backward", {"discard": True})
        self.refuses([("discarded", 409, "state", "backward", {}, good)])

    def test_entropies(self):
        self.open()
        self.hold()
        self.refuses([("entropy alone", 400, "request", "backward", {}, {"entropy": f32(0, 0, 0, 0)})])
        self.done("backward", {}, {"logprob": f32(1, 0, 0, 0), "entropy": f32(0, 0, 0, 0)})
        self.done("forward", {"network": "policy", "sharpness": 2.0}, WAVE)

    def test_steps(self):
        self.open()
        step = {"network": "policy", "learning_rate": 1e-3}
        self.refuses([
            ("a rate below 0", 400, "request", "optim_step", {**step, "learning_rate": -1e-3}),
            ("no rate", 400, "request", "optim_step", {"network": "policy"}),
            ("another network", 400, "request", "optim_step", {**step, "network": "reference"}),
        ])  # fmt: skip
        before = self.hold()["logprob"]
        self.done("backward", {}, {"logprob": f32(float("inf"), 0, 0, 0)})
        answer, found = self.done("optim_step", step)
        self.assertEqual((answer, found["grad_norm"].isfinite().item()), ({"skipped": True, "num_steps": 0}, False))
        self.hold()
        self.done("backward", {}, {"logprob": f32(1, 1, 1, 1)})
        answer, found = self.done("optim_step", step)
        self.assertEqual((answer, found["grad_norm"].dtype), ({"skipped": False, "num_steps": 1}, torch.float64))
        self.assertFalse(torch.equal(self.done("forward", {"network": "policy"}, WAVE)[1]["logprob"], before))
        self.assertEqual(self.done("check")[0], {"not_finite": None})

    def test_weights_that_are_set_aside(self):
        self.open()
        step = {"network": "policy", "learning_rate": 1e-3}
        before = self.hold()["logprob"]
        self.done("keep")
        self.done("backward", {}, {"logprob": f32(1, 1, 1, 1)})
        self.done("optim_step", step)

        def logprobs(network):
            return self.done("forward", {"network": network}, WAVE)[1]["logprob"]

        self.assertFalse(torch.equal(logprobs("policy"), before))
        self.assertTrue(torch.equal(logprobs("before"), before))
        self.hold()
        self.assertEqual(self.done("restore")[0]["num_steps"], 0)
        self.assertTrue(torch.equal(logprobs("policy"), before))
        self.refuses([("freed", 409, "state", "backward", {}, {"logprob": f32(1, 1, 1, 1)})])
        self.done("keep")
        self.hold()
        self.done("backward", {}, {"logprob": f32(1, 1, 1, 1)})
        self.done("optim_step", step)
        self.done("publish", {"version": 1})
        self.assertTrue(torch.equal(logprobs("before"), logprobs("policy")))

    # Files

    def test_files(self):
        self.open()
        root = self.enterContext(tempfile.TemporaryDirectory())
        full = pathlib.Path(root, "full")
        full.mkdir()
        (full / "x").write_text("1")

        def empty(name):
            pathlib.Path(root, name).mkdir()
            return str(pathlib.Path(root, name))

        def asked(folder, content="weights", dtype="f32"):
            return {"folder": str(folder), "content": content, "dtype": dtype}

        self.refuses([
            ("a relative folder", 400, "request", "save", asked("here")),
            ("a folder that is not empty", 400, "request", "save", asked(full)),
            ("a folder that is not there", 500, "disk", "save", asked(f"{root}/gone")),
            ("other content", 400, "request", "save", asked(empty("a"), "weight")),
            ("another format", 400, "request", "save", asked(empty("b"), dtype="f8")),
            ("no adapter", 422, "refused", "save", asked(empty("c"), "adapter")),
            ("a relative folder to load", 400, "request", "load", asked("here", "checkpoint")),
            ("more than there is to say", 400, "request", "load", asked(full, "checkpoint")),
            ("other content to load", 400, "request", "load", {"folder": str(full), "content": "weights"}),
            ("no checkpoint", 422, "files", "load", {"folder": str(full), "content": "checkpoint"}),
            ("no folder", 422, "files", "load", {"folder": f"{root}/gone", "content": "checkpoint"}),
            ("no reference", 422, "files", "load", {"folder": f"{root}/gone", "content": "reference"}),
        ])  # fmt: skip
        if not torch.cuda.is_available() or "tamis.learner" not in self.COMMAND:
            self.refuses([("no GPU", 422, "refused", "save", asked(empty("d"), "handles"))])
        self.assertEqual([path.name for path in full.iterdir()], ["x"])
        weights = pathlib.Path(empty("weights"))
        answer, _ = self.done("save", {"folder": str(weights), "content": "weights"})
        names = {one["name"] for one in answer["files"]}
        self.assertLessEqual({"config.json", "model.safetensors"}, names)
        self.assertEqual(names, {path.name for path in weights.iterdir()})
        self.assertEqual(answer["overflow"], None)
        for one in answer["files"]:
            self.assertEqual(one["bytes"], (weights / one["name"]).stat().st_size)
            self.assertRegex(one["crc32"], "^[0-9a-f]{8}$")
        checkpoint = pathlib.Path(empty("checkpoint"))
        self.done("save", asked(checkpoint, "checkpoint", "bf16"))
        self.assertTrue((checkpoint / "master/model.safetensors").exists())
        self.hold()
        # Another reference has none of the held state.
        self.done("load", {"folder": str(weights), "content": "reference"})
        self.done("backward", {}, {"logprob": f32(1, 1, 1, 1)})
        self.hold()
        self.done("load", {"folder": str(checkpoint), "content": "checkpoint"})
        self.refuses([("freed", 409, "state", "backward", {}, {"logprob": f32(1, 1, 1, 1)})])
        before = self.done("forward", {"network": "policy"}, WAVE)[1]["logprob"]
        (checkpoint / "optimizer.safetensors").unlink()
        self.refuses([("no moments", 422, "files", "load", {"folder": str(checkpoint), "content": "checkpoint"})])
        after = self.done("forward", {"network": "policy"}, WAVE)[1]["logprob"]
        self.assertTrue(torch.equal(before, after))

    # Generation

    def let_samples_end(self):
        """Called after what needs open samples; a learner that samples elsewhere holds them until then."""

    def test_generation(self):
        self.open(generation={"max_sequences": 4})
        begun = {"seconds": 0.0, "drawing": [DRAWING]}
        bounds = [
            ("temperature", -1.0), ("temperature", 1e-9), ("top_p", 0.0), ("top_p", 2.0), ("min_p", -0.1), ("min_p", 1.5),
            ("repetition_penalty", 0.0), ("max_tokens", 0), ("top_k", -1), ("unknown", 1),
        ]  # fmt: skip
        for name, value in bounds:
            asked = {"seconds": 0.0, "drawing": [{**DRAWING, name: value}]}
            self.judge(f"{name} {value}", self.call("generate", asked, beginning(1)), 400, "request")
        short = {name: column for name, column in beginning(1).items() if name != "abort"}
        self.refuses([
            ("time below 0", 400, "request", "generate", {**begun, "seconds": -1.0}, beginning(1)),
            ("one sample twice", 400, "request", "generate", begun, beginning(1, 1)),
            ("no such drawing", 400, "request", "generate", {**begun, "drawing": []}, beginning(1)),
            ("no such prompt", 400, "request", "generate", begun, {**beginning(1), "prompt_of": i32(1)}),
            ("a token outside", 400, "request", "generate", begun, {**beginning(1), "prompt_token": i32(1, 1 << 20)}),
            ("a missing column", 400, "request", "generate", begun, short),
            ("another column", 400, "request", "generate", begun, {**beginning(1), "value": f32(1)}),
        ])  # fmt: skip
        answer, found = self.done("generate", begun, beginning(1, 2))
        self.assertEqual(answer, {"num_open": 2, "refused": []})
        self.assertEqual(found["sample"].tolist(), [])
        self.refuses([("open already", 400, "request", "generate", begun, beginning(2))])
        self.let_samples_end()
        nothing = {**beginning(), "prompt_token": i32(), "prompt_offset": i64(0), "prompt_drawing": i32()}
        answer, found = self.done("generate", {"seconds": 30.0, "drawing": []}, {**nothing, "abort": i64(1, 77)})
        self.assertEqual((answer["num_open"], found["sample"].tolist(), found["end"].tolist()), (0, [2], [2]))
        self.assertEqual([found[name].numel() for name in ("token", *self.COLUMNS)], [3] * (1 + len(self.COLUMNS)))
        room = {**beginning(9), "prompt_token": i32(*[1] * 100_000), "prompt_offset": i64(0, 100_000)}
        answer, _ = self.done("generate", begun, room)
        self.assertEqual((answer["num_open"], [one["sample"] for one in answer["refused"]]), (0, [9]))


class Torch(Conformance, unittest.TestCase):
    COMMAND = [sys.executable, "-m", "tamis.learner"]

    def request(self, **more):
        more["options"] = {"device": "cpu", "threads": 1, **more.get("options", {})}
        return super().request(**more)


class Tinker(Conformance, unittest.TestCase):
    """`python -m tamis.tinker` over a server of Tinker's API in this process."""

    COLUMNS = ("logprob",)

    @classmethod
    def setUpClass(cls):
        cls.fake = fake_tinker.Fake()
        cls.COMMAND = [sys.executable, "-m", "tamis.tinker", "--base-model", fake_tinker.BASE, "--url", cls.fake.url]
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.fake.close()

    def test_generation(self):
        self.fake.sample_delay = 1 << 30
        super().test_generation()

    def let_samples_end(self):
        self.fake.sample_delay = 0
        for future in self.fake.futures.values():
            future[1] = 0

    # What `capabilities` deny is refused; its reference is the base model.

    def test_what_open_refuses_of_other_networks(self):
        for more in ({"critic": {"optimizer": OPTIMIZER}}, {"reference": POLICY}, {"teachers": [POLICY]}):
            self.judge(f"open {more}", self.send("/v1/open", json.dumps(self.request(**more))), 422, "refused")

    def test_teachers(self):
        """None can be loaded: `open` refuses them."""
        self.open()
        self.refuses([("a teacher", 400, "request", "forward", {"network": "teacher/0"}, WAVE)])

    def test_a_critic(self):
        self.open()
        self.refuses_all(("copy", {"to": "critic"}), ("forward", {"network": "critic"}, WAVE))

    def test_a_copy_as_the_reference(self):
        self.open()
        self.refuses_all(("copy", {"to": "reference"}))
        policy, base = (self.done("forward", {"network": name}, WAVE)[1] for name in ("policy", "base"))
        self.assertTrue(torch.equal(base["logprob"], policy["logprob"]))

    def test_weights_that_are_set_aside(self):
        self.open()
        self.refuses_all(("keep",))
        before = self.hold()["logprob"]
        self.assertEqual(self.done("restore")[0]["num_steps"], 0)
        self.done("backward", {"discard": True})
        self.assertTrue(torch.equal(self.done("forward", {"network": "before"}, WAVE)[1]["logprob"], before))

    def test_entropies(self):
        self.open()
        self.refuses_all(("forward", {"network": "policy", "sharpness": 2.0}, WAVE))
        self.hold()
        self.refuses_all(("backward", {}, {"logprob": f32(1, 0, 0, 0), "entropy": f32(0, 0, 0, 0)}))
        self.done("backward", {}, {"logprob": f32(1, 0, 0, 0)})

    def test_files(self):
        self.open()
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("full", "checkpoint", "none"):
            (root / name).mkdir()
        (root / "full/x").write_text("1")

        def asked(folder, content="checkpoint"):
            return {"folder": str(folder), "content": content}

        self.refuses_all(*(("save", asked(root / "none", content)) for content in ("weights", "adapter", "handles")))
        self.refuses_all(("load", asked(root / "none", "reference")))
        self.refuses([
            ("a relative folder", 400, "request", "save", asked("here")),
            ("a folder that is not empty", 400, "request", "save", asked(root / "full")),
            ("a folder that is not there", 500, "disk", "save", asked(root / "gone")),
            ("other content", 400, "request", "save", asked(root / "none", "weight")),
            ("another format", 400, "request", "save", {**asked(root / "none"), "dtype": "f8"}),
            ("a relative folder to load", 400, "request", "load", asked("here")),
            ("more than there is to say", 400, "request", "load", {**asked(root / "full"), "dtype": "f32"}),
            ("other content to load", 400, "request", "load", asked(root / "full", "weights")),
            ("no checkpoint", 422, "files", "load", asked(root / "full")),
            ("no folder", 422, "files", "load", asked(root / "gone")),
        ])  # fmt: skip
        step = {"network": "policy", "learning_rate": 1e-3}
        self.hold()
        self.done("backward", {}, {"logprob": f32(1, 1, 1, 1)})
        self.done("optim_step", step)
        answer, _ = self.done("save", asked(root / "checkpoint"))
        self.assertEqual({one["name"] for one in answer["files"]}, {path.name for path in (root / "checkpoint").iterdir()})
        for one in answer["files"]:
            self.assertEqual(one["bytes"], (root / "checkpoint" / one["name"]).stat().st_size)
            self.assertRegex(one["crc32"], "^[0-9a-f]{8}$")
        before = self.hold()["logprob"]
        self.assertEqual(self.done("load", asked(root / "checkpoint"))[0]["num_steps"], 1)
        self.refuses([("freed", 409, "state", "backward", {}, {"logprob": f32(1, 1, 1, 1)})])
        self.assertTrue(torch.equal(self.done("forward", {"network": "policy"}, WAVE)[1]["logprob"], before))


@unittest.skipIf(PROGRAM is None, "there is no program tamis; build it, or name it in TAMIS_PROGRAM")
class Native(Conformance, unittest.TestCase):
    COMMAND = [str(PROGRAM), "learner", "--threads", "1"]


if __name__ == "__main__":
    unittest.main()
