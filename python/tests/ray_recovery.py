"""Runs on a Ray cluster that lose processes or nodes. `scripts/test-ray` runs it."""

import json
import os
import pathlib
import re
import signal
import socket
import sys
import time
import unittest

from ray_cluster import RayCase, pids_of
from test_cluster import PACKAGE, is_alive

NUM_STEPS = 6


class TestLosses(RayCase):
    """Losses during a whole run, which ends with the numbers and weights of an undisturbed run on this machine."""

    def train(self, name, *settings):
        """A run that learns in PyTorch."""
        return self.start_run(
            "train",
            str(PACKAGE.parent / "configs" / "quickstart.yaml"),
            "sft.steps=10",
            "sft.target_accuracy=null",
            "~train.lr_schedule",
            f"train.total_steps={NUM_STEPS}",
            "data.train_batch_size=4",
            "train.ppo_mini_batch_size=4",
            "data.gen_batch_size=16",
            "schedule.on_limit=use_partial",
            "validate.test_freq=0",
            "validate.before_train=false",
            "learner.backend=torch",
            "learner.device=cpu",
            f"learner.python={sys.executable}",
            "learner.startup_timeout=90s",
            f"run.dir={self.folder}",
            f"run.name={name}",
            *settings,
        )

    def start(self, cluster, nodes):
        """A run of a learner with a rank on each node, which has trained two steps."""
        run = self.train("lost", "cluster.launcher=ray", f"cluster.address={cluster.address}", f"learner.nodes={nodes}")
        metrics = self.folder / "lost" / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and '"step":2,' in metrics.read_text(), run)
        return run

    def finish(self, run, nodes):
        said = self.succeed(run)
        self.assertRegex(said, r"the run is back at step \d, where the learner was lost")
        self.assert_gone([int(pid) for pid in self.learners()])
        self.succeed(self.train("whole", "cluster.launcher=local", f"learner.gpus_per_node={nodes}"))
        self.assertEqual([row["step"] for row in self.rows("lost")], list(range(1, NUM_STEPS + 1)))
        self.assertEqual(self.rows("lost"), self.rows("whole"))
        last = f"checkpoints/step_{NUM_STEPS}/model.safetensors"
        self.assertEqual(*((self.folder / name / last).read_bytes() for name in ("lost", "whole")))
        return said

    def rows(self, name):
        """The metrics without the clock."""
        rows = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: row[key] for key in row if not key.startswith(("timing", "perf/")) and "time" not in key} for row in rows]

    def learners(self):
        """The running ranks."""
        return [pid for pid in pids_of("tamis.learner", str(self.folder)) if is_alive(pid)]

    def test_a_rank_that_is_killed_on_the_way_costs_no_batch(self):
        cluster = self.start_cluster(num_cpus=3)
        cluster.add_node(num_cpus=3)
        run = self.start(cluster, nodes=2)
        (rank,) = [pid for pid in self.learners() if b"RANK=1" in variables(pid)]
        os.kill(int(rank), signal.SIGKILL)
        said = self.finish(run, nodes=2)
        end = rf"rank 1 of the learner on [\d.]+ \(Ray node \w+\), process {rank} ended \(signal: 9 \(SIGKILL\)\)"
        self.assertRegex(said, end)
        self.assertIn("another learner is started: restart 1 of at most 3 in a row", said)

    def test_a_cluster_that_is_lost_is_waited_for(self):
        with socket.create_server(("", 0)) as held:
            head = {"num_cpus": 2, "gcs_server_port": held.getsockname()[1]}
        cluster = self.start_cluster(**head)
        run = self.start(cluster, nodes=1)
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        waiting = re.compile(r"no Ray cluster answers at \S+: .*; it is waited for, for 90 s at most")
        self.wait_until(lambda: waiting.search(run.said()), run)
        # Longer than all pauses between restarts together.
        time.sleep(10.0)
        self.start_cluster(**head)
        self.finish(run, nodes=1)


def variables(pid):
    """The environment of a process."""
    return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


if __name__ == "__main__":
    sys.exit(unittest.main())
