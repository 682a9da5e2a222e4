"""Weights to servers over communicators: gloo plays NCCL, a process plays vLLM, and the code between them is
the real one."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import Case, golden_folder, open_settings, opened, random_columns

import torch
from played_vllm import ask
from safetensors.torch import load_file
from tamis.learner import transfer
from tamis.learner.protocol import Failed, Refused, Settings
from tamis.learner.transfer import Nccl, Snapshot
from test_ranks import Gang, port
from test_server import Client
from warm import Program

TESTS = pathlib.Path(__file__).parent
# Seconds within which everything must end.
LIMIT = 60.0
# Seconds after which a transfer that should fail is abandoned, and the tolerance beyond them.
SHORT, SLACK = 2.0, 15.0
POLICY = golden_folder("qwen2")


def start_piped(command, **more):
    """The program, and the end of a pipe at which its output is read."""
    reading, writing = os.pipe()
    with open(writing, "w") as output:
        process = Program(command, {**os.environ, "OMP_NUM_THREADS": "1"}, output, standard=(1,), **more)
    return process, open(reading)


class Server:
    """A played vLLM server, as a process."""

    def __init__(self, workers=1, fault=None, version="0.33.0"):
        self.folder = tempfile.TemporaryDirectory(prefix="played-")
        self.url, self.workers = f"http://127.0.0.1:{port()}", workers
        command = [str(TESTS / "played_vllm.py"), "--port", self.url.rpartition(":")[2]]
        command += ["--folder", self.folder.name, "--workers", str(workers), "--version", version]
        command += [] if fault is None else ["--fault", fault]
        self.process, self.output = start_piped(command)
        assert self.output.readline() == "listening\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.output.close()
        self.folder.cleanup()

    def post(self, path, body=None):
        """Status and answer; `None` if the connection breaks."""
        try:
            return ask(self.url, "POST", path, None if body is None else json.dumps(body).encode())
        except OSError:
            return None

    def begin(self, path, body=None):
        """The same in a thread, whose `join` gives the answer."""
        return Background(lambda: self.post(path, body))

    def received(self, number=1):
        return load_file(pathlib.Path(self.folder.name, f"received_{number}", "model.safetensors"))


class Background:
    def __init__(self, act):
        self.outcome = None

        def work():
            self.outcome = act()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def join(self, seconds=LIMIT):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "it hangs"
        return self.outcome


class Learners(Gang):
    """Learners that send over gloo, and a controller's calls to them."""

    program = (str(TESTS / "gloo_learner.py"),)

    def transfer(self, name, **settings):
        """A call of a transfer, on a connection of its own: status and answer."""
        client = Client(self.address, timeout=LIMIT)
        try:
            headers = {"Content-Type": "application/json", "Tamis-Incarnation": self.client.incarnation}
            status, _, body = client.request("POST", f"/v1/transfer/{name}", json.dumps(settings).encode(), headers)
            return status, json.loads(body)
        finally:
            client.close()

    def snapshot(self, folder, name, dtype="f32"):
        path = pathlib.Path(folder, name)
        path.mkdir()
        self.call("save", {"folder": str(path), "content": "transfer", "dtype": dtype, "untied": True})
        return path, json.loads((path / "transfer.json").read_text())

    def publish(self, server, described, communicator=None, seconds=LIMIT):
        """A controller's calls for one server: the communicator, and the answer of `send`, or of the call
        that failed."""
        if communicator is None:
            status, joined = self.transfer("join", workers=server.workers, timeout=seconds)
            assert status == 200, joined
            communicator = joined["communicator"]
            init = server.begin("/init_weight_transfer_engine", {"init_info": joined["init_info"]}).join()
            if init is None or init[0] != 200:
                return communicator, init
        assert server.post("/start_weight_update")[0] == 200
        update = {key: described[key] for key in ("names", "dtype_names", "shapes")}
        updating = server.begin("/update_weights", {"update_info": update})
        sent = self.transfer("send", communicator=communicator, snapshot=described["snapshot"], timeout=seconds)
        if sent[0] != 200:
            return communicator, sent
        assert updating.join()[0] == 200
        assert server.post("/finish_weight_update", {})[0] == 200
        return communicator, sent


def learn(learners):
    wave = random_columns(50, 3)
    _, found = learners.call("forward_hold", {"network": "policy"}, wave)
    learners.call("backward", {}, {"logprob": torch.cos(found["logprob"] * 5)})
    learners.call("optim_step", {"network": "policy", "learning_rate": 1e-2})


class Sent(Case):
    def assert_equal_to_folder(self, received, folder):
        expected = load_file(pathlib.Path(folder) / "model.safetensors")
        self.assertEqual(sorted(received), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual(received[name].dtype, tensor.dtype, name)
            self.assert_same(received[name], tensor, name)

    def test_weights_are_those_of_the_published_folder(self):
        for ranks, architecture in ((1, "qwen2"), (2, "llama"), (2, "qwen3")):
            with (
                self.subTest(ranks=ranks, architecture=architecture),
                tempfile.TemporaryDirectory() as folder,
                Learners(ranks).connect() as learners,
                Server(workers=2) as first,
                Server() as second,
            ):
                learners.call("open", open_settings(golden_folder(architecture)))
                self.assertIn("nccl", learners.client.get("info")[1]["capabilities"]["publish"])
                communicators = {}
                for version, dtype in ((1, "f32"), (2, "bf16")):
                    learn(learners)
                    plain = pathlib.Path(folder, f"plain_{version}")
                    plain.mkdir()
                    learners.call("save", {"folder": str(plain), "content": "weights", "dtype": dtype, "untied": True})
                    path, described = learners.snapshot(folder, f"version_{version}", dtype)
                    # The weights that are sent are those that were saved, whatever is learned meanwhile.
                    learn(learners)
                    for server in (first, second):
                        communicator, sent = learners.publish(server, described, communicators.get(server))
                        self.assertEqual(sent, (200, {}))
                        communicators[server] = communicator
                        self.assert_equal_to_folder(server.received(version), plain)
                    written = {"snapshot": described["snapshot"], "folder": str(path / "weights")}
                    for _ in range(2):
                        self.assertEqual(learners.transfer("write", **written), (200, {}))
                    self.assertEqual(sorted(file.name for file in path.iterdir()), ["transfer.json", "weights"])
                    for file in plain.iterdir():
                        self.assertEqual((path / "weights" / file.name).read_bytes(), file.read_bytes(), file.name)
                # A snapshot is held until the next one.
                status, error = learners.transfer("write", snapshot="other", folder=f"{folder}/other")
                self.assertEqual((status, error["error"]["kind"]), (409, "state"))

    def test_a_server_that_fails_costs_its_communicator_alone(self):
        with tempfile.TemporaryDirectory() as folder, Learners(2).connect() as learners, Server() as well:
            learners.call("open", open_settings(POLICY))
            _, described = learners.snapshot(folder, "version_1")
            kept, sent = learners.publish(well, described)
            self.assertEqual(sent, (200, {}))
            for fault in ("join", "init", "update", "die", "stop", "end"):
                with self.subTest(fault=fault), Server(fault=fault) as server:
                    began = time.monotonic()
                    status, joined = learners.transfer("join", workers=1, timeout=SHORT)
                    self.assertEqual(status, 200)
                    communicator = joined["communicator"]
                    init = server.begin("/init_weight_transfer_engine", {"init_info": joined["init_info"]})
                    if fault not in ("join", "init"):
                        self.assertEqual(init.join()[0], 200)
                        self.assertEqual(server.post("/start_weight_update")[0], 200)
                        names = ("names", "dtype_names", "shapes")
                        server.begin("/update_weights", {"update_info": {key: described[key] for key in names}})
                    sending = Background(
                        lambda communicator=communicator: learners.transfer(
                            "send", communicator=communicator, snapshot=described["snapshot"], timeout=SHORT
                        )
                    )
                    if fault in ("init", "update"):
                        # The server has reported the fault, so the controller need not wait.
                        self.assertEqual(learners.transfer("abort", communicator=communicator), (200, {}))
                    # Meanwhile others are sent to, and the learner learns.
                    self.assertEqual(learners.publish(well, described, kept)[1], (200, {}))
                    learn(learners)
                    status, error = sending.join()
                    # An abort may come before the send, which then finds no communicator.
                    expected = [(500, "failed")] + ([(409, "state")] if fault in ("init", "update") else [])
                    self.assertIn((status, error["error"]["kind"]), expected, error)
                    self.assertLess(time.monotonic() - began, SHORT + SLACK)
                    # The communicator is void; a controller that needs one makes another.
                    again = learners.transfer("send", communicator=communicator, snapshot=described["snapshot"], timeout=1.0)
                    self.assertEqual(again[0], 409)
            self.assertEqual(learners.publish(well, described)[1], (200, {}))

    def test_calls_belong_to_the_run_that_opened(self):
        with tempfile.TemporaryDirectory() as folder, Learners(1).connect() as learners:
            learners.call("open", open_settings(POLICY))
            before = learners.client.incarnation
            self.assertEqual(learners.transfer("join", workers=1, timeout=1.0)[0], 409)
            _, described = learners.snapshot(folder, "version_1")
            self.assertEqual(learners.transfer("join", workers=0, timeout=1.0)[0], 400)
            self.assertEqual(learners.transfer("abort", communicator="none"), (200, {}))
            self.assertEqual(learners.transfer("write", snapshot=described["snapshot"], folder="weights")[0], 400)
            status, error = learners.transfer("write", snapshot=described["snapshot"], folder=f"{folder}/none/weights")
            self.assertEqual((status, error["error"]["kind"]), (500, "disk"))
            learners.call("open", open_settings(POLICY))
            self.assertEqual(learners.transfer("join", workers=1, timeout=1.0)[0], 409)
            learners.client.incarnation = before
            self.assertEqual(learners.transfer("join", workers=1, timeout=1.0)[0], 410)
            learners.client.incarnation = None


class Cut(Case):
    def test_the_tensor_that_fills_a_buffer_belongs_to_it(self):
        tensors = [torch.zeros(size, dtype=torch.uint8) for size in (3, 4, 1, 9, 2, 5)]
        snapshot = Snapshot(list("abcdef"), [torch.uint8] * 6, [[1]] * 6, tensors, {})
        sizes = [[len(part) for part in chunk] for chunk in snapshot.chunks(4)]
        self.assertEqual(sizes, [[3, 4], [1, 9], [2, 5]])
        self.assertEqual([len(chunk) for chunk in snapshot.chunks(1000)], [6])


class Library(Case):
    """The calls of NCCL that are possible without a GPU, if PyTorch includes it."""

    def setUp(self):
        try:
            Nccl.library()
        except OSError as error:
            self.skipTest(str(error))

    def test_gives_ids_and_its_version(self):
        ids = {Nccl(2, torch.device("cuda")).unique_id for _ in range(2)}
        self.assertEqual({len(one) for one in ids}, {128})
        self.assertEqual(len(ids), 2)
        version = ".".join(map(str, torch.cuda.nccl.version()))
        self.assertEqual(Nccl.describe(), f"NCCL {version}")

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_says_what_it_lacks(self):
        group = Nccl(2, torch.device("cpu"))
        config = transfer._Config.not_blocking()
        arguments = ctypes.byref(group._communicator), 2, group._id, 0, ctypes.byref(config)
        self.assert_refused(Failed, "NCCL: unhandled cuda error", group._call, group._nccl.ncclCommInitRankConfig, *arguments)
        group.abort()
        self.assertFalse(Nccl.is_available())

    def test_needs_a_gpu(self):
        learner = opened(POLICY, options={"device": "cpu"})
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings({"folder": folder, "content": "transfer"})
            self.assert_refused(Refused, "no GPU", learner.calls["/v1/save"], settings, {})


if __name__ == "__main__":
    unittest.main()
