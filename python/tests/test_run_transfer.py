"""Runs of `tamis train` whose servers are sent weights over communicators (gloo in NCCL's place), beside runs by folders."""

import json
import os
import pathlib
import signal
import sys
import time
import unittest

import support  # First: without PyTorch it reports that and skips the tests.
from test_ranks import port
from test_run import PROGRAM, RunTest as Runs
from test_transfer import Learners, start_piped

PLAYED = pathlib.Path(__file__).parent / "played_vllm.py"
# The time that a failing server costs, and the time that it has to answer beyond that.
TIMEOUT = 3
NCCL = ("publish.mode=nccl", f"publish.timeout={TIMEOUT}s")


class Servers:
    """Played vLLM servers, each before a `tamis serve` of its own."""

    def __init__(self, folder, model, faults):
        self.folder, self.urls, self.processes = folder, [], []
        config = json.loads((model / "config.json").read_text())
        (folder / "served.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        for fault in faults:
            number = port()
            (folder / f"received_{number}").mkdir()
            command = played(folder, number, folder / f"received_{number}", model, fault)
            # A process group for everything that each of them starts. The first word is the interpreter,
            # which has begun already.
            self.processes.append(start_piped(command[1:], start_new_session=True))
            self.urls.append(f"http://127.0.0.1:{number}")
        for _, output in self.processes:
            assert output.readline() == "listening\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, output in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.close()

    def num_received(self):
        return [len(list(self.folder.glob(f"received_{url.rpartition(':')[2]}/received_*"))) for url in self.urls]


def played(folder, number, received, model, fault, once=None):
    command = [sys.executable, str(PLAYED), "--port", str(number), "--folder", str(received), "--config", f"{folder}/served.json"]
    command += ["--fault", fault] if fault is not None else []
    command += ["--once", str(once)] if once is not None else []
    return [*command, "--serve", str(PROGRAM), "serve", str(model), "--port", "0", "--threads", "1"]


class SentRuns(Runs):
    """With the helpers of the runs, not their tests."""

    def setUp(self):
        super().setUp()
        self.torch("base", "train.total_steps=1", "checkpoint.save_freq=1")
        self.base = self.folder / "runs/base/checkpoints/step_1"

    def sampled(self, name, learners, *arguments):
        return self.train("config.yaml", *self.arguments(name, learners, *arguments))

    def arguments(self, name, learners, *arguments):
        return [
            f"run.name={name}", "~model.init", f"+model.path={self.base}", "learner.backend=torch",
            f"learner.url={learners.address}", "rollout.backend=vllm", *arguments,
        ]  # fmt: skip

    def assert_same_run(self, one, other):
        self.assertEqual(self.timeless(one), self.timeless(other))
        self.assertEqual(self.weights(one), self.weights(other))

    def test_a_run_whose_servers_are_sent_weights_is_the_run_by_folders(self):
        for ranks in (1, 2):
            with (
                self.subTest(ranks=ranks),
                Learners(ranks).connect() as learners,
                Servers(self.folder, self.base, [None, None]) as servers,
            ):
                at = f"rollout.servers=[{','.join(servers.urls)}]"
                self.sampled(f"folder_{ranks}", learners, at, "publish.mode=folder")
                said = self.sampled(f"sent_{ranks}", learners, at, *NCCL)
                self.assertNotIn("through a folder", said)
                self.assert_same_run(f"sent_{ranks}", f"folder_{ranks}")
                # The first weights, and those of each step but the last, after which only validation samples.
                counts = servers.num_received()
                self.assertEqual(counts[0], counts[1])
                self.assertGreaterEqual(counts[0], 4)
                published = self.folder / f"runs/sent_{ranks}/published"
                for version in published.glob("version_*"):
                    self.assertFalse((version / "weights").exists())

    def test_servers_that_fail_on_the_way_change_nothing(self):
        with Learners(1).connect() as learners:
            with Servers(self.folder, self.base, [None]) as servers:
                self.sampled("plain", learners, f"rollout.servers={servers.urls}", *NCCL)
            for fault, expected in (
                ("init", "gets the weights through a folder: HTTP 500: RuntimeError: NCCL error"),
                ("update", "gets the weights through a folder: HTTP 500: RuntimeError: out of memory"),
                ("join", "its workers still wait in NCCL: start it again"),
                ("end", "its workers still wait in NCCL: start it again"),
                ("stop", "its workers still wait in NCCL: start it again"),
                ("die", "is not used for now"),
            ):
                with self.subTest(fault=fault), Servers(self.folder, self.base, [fault, None]) as servers:
                    began = time.monotonic()
                    name = f"fault_{fault}"
                    said = self.sampled(name, learners, f"rollout.servers=[{','.join(servers.urls)}]", *NCCL)
                    self.assertIn(expected, said)
                    self.assertEqual(self.weights(name), self.weights("plain"))
                    # A time-out for the call that is never answered, ten seconds of grace, and a run.
                    self.assertLess(time.monotonic() - began, TIMEOUT + 10 + 45)

    def test_what_broke_off_in_a_server_does_not_spoil_the_folder(self):
        # Only the samples show which weights it holds.
        unverified = (*NCCL, "publish.verify=off")
        with Learners(1).connect() as learners:
            with Servers(self.folder, self.base, [None]) as servers:
                self.sampled("plain", learners, f"rollout.servers={servers.urls}", *unverified)
            with Servers(self.folder, self.base, ["half"]) as servers:
                said = self.sampled("half", learners, f"rollout.servers={servers.urls}", *unverified)
            self.assertIn("gets the weights through a folder: HTTP 500: RuntimeError: out of memory", said)
            self.assertEqual(self.weights("half"), self.weights("plain"))

    def test_servers_that_never_meet_the_learner_are_given_folders(self):
        config = json.loads((self.base / "config.json").read_text())
        (self.folder / "served.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        received = self.folder / "received"
        received.mkdir()
        launch = json.dumps({"command": played(self.folder, "{port}", received, "{model}", "join")})
        with Learners(1).connect() as learners:
            with Servers(self.folder, self.base, [None]) as servers:
                self.sampled("plain", learners, f"rollout.servers={servers.urls}", *NCCL)
            said = self.sampled("apart", learners, f"rollout.launch={launch}", *NCCL)
        self.assertIn("its workers still wait in NCCL: it is stopped and restarted", said)
        self.assertIn("restart 1 of at most 8", said)
        self.assertNotIn("restart 2 of at most 8", said)
        self.assertEqual(said.count("`publish.mode: folder`"), 1)
        self.assertEqual(self.weights("apart"), self.weights("plain"))

    def test_a_server_that_the_run_started_is_started_again_and_sent_the_weights(self):
        once = self.folder / "once"
        config = json.loads((self.base / "config.json").read_text())
        (self.folder / "served.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        received = self.folder / "received"
        received.mkdir()
        command = played(self.folder, "{port}", received, "{model}", "end", once)
        with Learners(1).connect() as learners:
            with Servers(self.folder, self.base, [None]) as servers:
                self.sampled("plain", learners, f"rollout.servers={servers.urls}", *NCCL)
            launch = json.dumps({"command": command})
            said = self.sampled("started", learners, f"rollout.launch={launch}", *NCCL)
            self.assertTrue(once.exists())
            self.assertIn("its workers still wait in NCCL: it is stopped and restarted", said)
            self.assertIn("is no longer usable, and is stopped", said)
            self.assertIn("restart 1 of at most 8", said)
            self.assertEqual(self.weights("started"), self.weights("plain"))
            self.assertGreaterEqual(len(list(received.iterdir())), 4)


# Those are run in place.
for name in [name for name in dir(Runs) if name.startswith("test_")]:
    setattr(SentRuns, name, None)
del Runs


if __name__ == "__main__":
    unittest.main()
