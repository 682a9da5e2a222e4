"""Runs of `tamis train` whose learner has several ranks, beside the same runs with one; ranks that are lost on the way."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import support  # First: it says so, and leaves the tests out, where PyTorch is missing.
from test_ranks import Gang
from test_run import PPO, PROGRAM, RunTest as Runs


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
                        # It goes onto a model that is there.
                        self.torch("base", "train.total_steps=1", "checkpoint.save_freq=1")
                        arguments = [*arguments, "~model.init", "+model.path=runs/base/checkpoints/step_1"]
                    self.torch(f"one_{kind}", *arguments)
                    self.ranked(f"two_{kind}", gang, *arguments)
                    self.assert_alike(f"two_{kind}", f"one_{kind}", 1e-5, num_rows=5)
                    self.assert_same_batches(f"two_{kind}", f"one_{kind}")
                    # Saved on two, loaded on one.
                    self.train("--resume", f"runs/two_{kind}", "train.total_steps=5", "learner.url=null", f"learner.python={sys.executable}")

    def assert_same_batches(self, one, other):
        names = [name for name in self.rows(one)[1] if name.startswith(("groups/", "trajectories/", "tokens/"))]
        self.assertIn("groups/trained", names)
        for first, second in zip(self.rows(one), self.rows(other), strict=True):
            self.assertEqual([first.get(name) for name in names], [second.get(name) for name in names])

    def test_ranks_that_are_lost_on_the_way_change_nothing(self):
        seed = int(os.environ.get("TAMIS_KILL_SEED", time.time_ns() % 10**6))
        print(f"\nseed of the kills: TAMIS_KILL_SEED={seed}", flush=True)
        dice = random.Random(seed)
        steps = ["train.total_steps=60", "validate.test_freq=20", "checkpoint.save_freq=7", "objective.entropy.coefficient=0.01"]
        with Gang(2).connect() as gang:
            self.ranked("whole", gang, *steps)
        for victim, how in ((0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)):
            name = f"{how.name}_{victim}"
            with self.subTest(name), Gang(2, heartbeat=1.0).connect() as gang:
                learner = [
                    "learner.backend=torch", "learner.device=cpu", f"learner.url={gang.address}",
                    "learner.lost_timeout=5s", "learner.max_restarts=10",
                ]  # fmt: skip
                arguments = self.command("config.yaml", f"run.name={name}", *learner, *steps)
                run = subprocess.Popen(arguments, cwd=self.folder, stderr=subprocess.PIPE, text=True)
                said = []
                reader = threading.Thread(target=lambda: said.append(run.stderr.read()))
                reader.start()
                at = dice.randrange(1, 40)
                while len(self.logged(name)) < at and run.poll() is None:
                    time.sleep(0.002)
                gang.processes[victim].send_signal(how)
                gang.wait_for_others(victim)
                # As a cluster would do.
                gang.start_again()
                self.assertEqual(run.wait(200), 0, said)
                reader.join()
                self.assertRegex(said[0], "restart 1 of at most 10 in a row")
                self.assertRegex(said[0], "again, where the learner was lost: ")
                self.assertEqual(self.timeless(name), self.timeless("whole"))
                self.assertEqual(self.weights(name, 60), self.weights("whole", 60))

    def test_ranks_whose_run_is_killed_wait_for_the_resume(self):
        steps = ["train.total_steps=40", "checkpoint.save_freq=5", "learner.orphan_timeout=60s"]
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
            self.assertIn("a run goes on with what is loaded", gang.log())
            self.assertEqual([rank["pid"] for rank in gang.health()["ranks"]], pids)
            self.assertEqual(self.timeless("killed"), self.timeless("whole"))
            self.assertEqual(self.weights("killed", 40), self.weights("whole", 40))
            # Another run has nothing of it.
            self.assertNotIn("keeps what it has loaded", self.ranked("other", gang, *steps))
            self.assertEqual(self.timeless("other"), self.timeless("whole"))

    def logged(self, name):
        try:
            return self.rows(name)
        except FileNotFoundError:
            return []


# Those are run where they stand.
for name in [name for name in dir(Runs) if name.startswith("test_")]:
    setattr(RankedRuns, name, None)
del Runs


if __name__ == "__main__":
    unittest.main()
