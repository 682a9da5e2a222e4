"""Runs of `tamis train` whose learner has several ranks, beside the same runs with one; ranks that are lost on the way."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
import unittest

import support  # First: without PyTorch it reports that and skips the tests.
import warm
from test_ranks import LIMIT, FaultyGang, Gang
from test_run import PPO, PROGRAM, RunTest as Runs


class Relay:
    """Forwards TCP connections to a Unix socket, and breaks the connection once for each call in `breaks`.

    For each call, `breaks` decides whether it is broken while it runs or when its answer arrives.
    """

    def __init__(self, address, breaks):
        self.path, self.breaks = address.removeprefix("unix:"), dict(breaks)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                threading.Thread(target=self.pass_on, args=(near,), daemon=True).start()

    def pass_on(self, near):
        broken = None
        with near, socket.socket(socket.AF_UNIX) as far, contextlib.suppress(OSError):
            far.connect(self.path)
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    received = ready.recv(1 << 16)
                    if not received or (ready is far and broken == "answered"):
                        return
                    (far if ready is near else near).sendall(received)
                    for name in [name for name in self.breaks if f"POST /v1/{name} ".encode() in received]:
                        broken = self.breaks.pop(name)
                    if broken == "runs":
                        return


class RankedRuns(Runs):
    """With the helpers of the runs, not their tests."""

    def ranked(self, name, gang, *arguments):
        learner = ["learner.backend=torch", "learner.device=cpu", f"learner.url={gang.address}"]
        return self.train("config.yaml", f"run.name={name}", *learner, *arguments)

    def test_two_ranks_learn_what_one_does(self):
        kinds = {
            "plain": [],
            "critic": PPO,
            "adapter": ["learner.lora={rank: 4, alpha: 8}"],
            "reference": ["objective.kl.in=reward", "objective.kl.coefficient=0.01", "filter.metric=seq_final_reward", "filter.tolerance=1e-4"],
            "recomputed": ["model.recompute_activations=true", "train.micro_batch_tokens=24"],
        }  # fmt: skip
        with Gang(2).connect() as gang:
            for kind, arguments in kinds.items():
                with self.subTest(kind):
                    if kind == "adapter":
                        # It is put onto an existing model.
                        self.torch("base", "train.total_steps=1", "checkpoint.save_freq=1")
                        arguments = [*arguments, "~model.init", "+model.path=runs/base/checkpoints/step_1"]
                    self.torch(f"one_{kind}", *arguments)
                    self.ranked(f"two_{kind}", gang, *arguments)
                    self.assert_alike(f"two_{kind}", f"one_{kind}", 1e-5, num_rows=5)
                    self.assert_same_batches(f"two_{kind}", f"one_{kind}")
                    # Saved on two, loaded on one.
                    self.train("--resume", f"runs/two_{kind}", "train.total_steps=5", "learner.url=null", f"learner.python={warm.interpreter()}")

    def assert_same_batches(self, one, other):
        names = [name for name in self.rows(one)[1] if name.startswith(("groups/", "trajectories/", "tokens/"))]
        self.assertIn("groups/trained", names)
        for first, second in zip(self.rows(one), self.rows(other), strict=True):
            self.assertEqual([first.get(name) for name in names], [second.get(name) for name in names])

    def test_ranks_that_are_lost_on_the_way_change_nothing(self):
        seed = int(os.environ.get("TAMIS_KILL_SEED", time.time_ns() % 10**6))
        print(f"\nseed of the kills: TAMIS_KILL_SEED={seed}", flush=True)
        dice = random.Random(seed)
        steps = ["train.total_steps=24", "validate.test_freq=12", "checkpoint.save_freq=7", "objective.entropy.coefficient=0.01"]
        with Gang(2).connect() as gang:
            self.ranked("whole", gang, *steps)
        for victim, how in ((0, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGKILL), (1, signal.SIGSTOP)):
            name = f"{how.name}_{victim}"
            with self.subTest(name), Gang(2, heartbeat=3.0).connect() as gang:
                learner = [
                    "learner.backend=torch", "learner.device=cpu", f"learner.url={gang.address}",
                    "learner.lost_timeout=5s", "learner.max_restarts=10",
                ]  # fmt: skip
                arguments = self.command("config.yaml", f"run.name={name}", *learner, *steps)
                log = self.folder / f"{name}.log"
                with open(log, "w") as file:
                    run = subprocess.Popen(arguments, cwd=self.folder, stderr=file)
                at = dice.randrange(1, 16)
                while len(self.logged(name)) < at and run.poll() is None:
                    time.sleep(0.01)
                gang.processes[victim].send_signal(how)
                gang.wait_for_others(victim)
                if (victim, how) == (0, signal.SIGSTOP):
                    # The end of a stopped process is not noticed.
                    self.wait_until(lambda log=log: " is lost: " in log.read_text(), run)
                # As a cluster would do.
                gang.start_again()
                self.assertEqual(run.wait(200), 0, log.read_text())
                self.assertRegex(log.read_text(), "restart 1 of at most 10 in a row")
                self.assertRegex(log.read_text(), ", where the learner was lost: ")
                self.assertEqual(self.timeless(name), self.timeless("whole"))
                self.assertEqual(self.weights(name, 24), self.weights("whole", 24))

    def test_ranks_whose_run_is_killed_wait_for_the_resume(self):
        steps = ["train.total_steps=24", "checkpoint.save_freq=5", "learner.orphan_timeout=60s"]
        with Gang(2).connect() as gang:
            self.ranked("whole", gang, *steps)
            pids = [rank["pid"] for rank in gang.health()["ranks"]]
            learner = ["learner.backend=torch", "learner.device=cpu", f"learner.url={gang.address}"]
            run = subprocess.Popen(
                self.command("config.yaml", "run.name=killed", *learner, *steps), cwd=self.folder, stderr=subprocess.DEVNULL
            )
            while len(self.logged("killed")) < 12 and run.poll() is None:
                time.sleep(0.002)
            run.kill()
            run.wait()
            said = self.train("--resume", "runs/killed")
            self.assertIn("the learner has waited for this run, and keeps what it has loaded", said)
            self.assertIn("a run continues with what is loaded", gang.log())
            self.assertEqual([rank["pid"] for rank in gang.health()["ranks"]], pids)
            self.assertEqual(self.timeless("killed"), self.timeless("whole"))
            self.assertEqual(self.weights("killed", 24), self.weights("whole", 24))
            # Another run has none of it.
            self.assertNotIn("keeps what it has loaded", self.ranked("other", gang, *steps))
            self.assertEqual(self.timeless("other"), self.timeless("whole"))

    def test_a_gradient_that_is_not_finite_on_one_rank_is_left_out_by_all(self):
        with FaultyGang(1, TAMIS_FAULT="nan") as one, FaultyGang(2, TAMIS_FAULT="nan") as two:
            for name, gang in (("one", one), ("two", two)):
                said = self.ranked(name, gang.connect())
                self.assertIn("step 2: the gradient of 1 of 2 updates was not finite; these updates were left out", said)
                self.assertEqual([row["actor/num_skipped_updates"] for row in self.rows(name)[1:]], [0, 1, 0, 0])
            # The next step shows that none took the step.
            self.assert_alike("two", "one", 1e-5, num_rows=5)
            self.assert_same_batches("two", "one")

    def test_a_controller_whose_connection_breaks_or_who_is_killed_while_ranks_save_changes_nothing(self):
        steps = ["train.total_steps=8", "checkpoint.save_freq=3", "learner.orphan_timeout=60s", "learner.max_restarts=0"]
        fault = self.folder / "fault"
        with FaultyGang(2, TAMIS_FAULT="waits", TAMIS_FAULT_FILE=str(fault)).connect() as gang:
            self.ranked("whole", gang, *steps)
            breaks = {
                "forward_hold": "answered", "backward": "answered", "optim_step": "runs", "save": "runs", "publish": "answered",
            }  # fmt: skip
            with Relay(gang.address, breaks) as relay:
                self.ranked("broken", relay, *steps)
            self.assertEqual(relay.breaks, {}, "calls that were never made")

            learner = ["learner.backend=torch", "learner.device=cpu", f"learner.url={gang.address}"]
            arguments = self.command("config.yaml", "run.name=killed", *learner, *steps)
            run = subprocess.Popen(arguments, cwd=self.folder, stderr=subprocess.DEVNULL)
            self.wait_until(lambda: (self.folder / "runs/killed/checkpoints/step_3").exists(), run)
            fault.touch()
            self.wait_until(fault.with_suffix(".waits").exists, run)
            run.kill()
            run.wait()
            # They continue to save while the resume waits for them.
            threading.Timer(1.0, fault.unlink).start()
            self.assertIn("resuming runs/killed after step ", self.train("--resume", "runs/killed"))

            for name in ("broken", "killed"):
                self.assertEqual(self.timeless(name), self.timeless("whole"))
                self.assertEqual(self.weights(name, 8), self.weights("whole", 8))
            self.assertEqual([process.poll() for process in gang.processes], [None, None])

    def wait_until(self, is_so, run):
        until = time.monotonic() + LIMIT
        while not is_so():
            self.assertIsNone(run.poll(), "the run has ended")
            self.assertLess(time.monotonic(), until)
            time.sleep(0.002)

    def logged(self, name):
        try:
            return self.rows(name)
        except FileNotFoundError:
            return []


# Those are run in place.
for name in [name for name in dir(Runs) if name.startswith("test_")]:
    setattr(RankedRuns, name, None)
del Runs


if __name__ == "__main__":
    unittest.main()
