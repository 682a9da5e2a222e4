"""The launcher on a Ray cluster of two nodes, which are two raylets of this machine. `scripts/test-ray` runs it."""

import os
import pathlib
import shlex
import signal
import sys
import time
import unittest

from ray.cluster_utils import Cluster
from ray.job_submission import JobStatus, JobSubmissionClient
from test_cluster import PACKAGE, PATIENCE, ClusterCase, is_alive

# Ray takes its time to bring processes up.
LONG = 90.0

# A rank on TCP; every rank answers, the first where it is told to.
RANK = """
import http.server, os, pathlib, subprocess, sys
listen, key_file, folder = sys.argv[1:]
rank = os.environ["RANK"]
worker = subprocess.Popen(["sleep", "1000"])
import tamis.cluster
program = pathlib.Path(tamis.cluster.__file__).parents[2]
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"]
values = [str(os.getpid()), str(worker.pid), *(os.environ.get(name) or "none" for name in names)]
with open(os.path.join(folder, "ranks"), "a") as file:
    file.write(" ".join([*values, pathlib.Path(key_file).read_text(), str(program)]) + "\\n")
print("I am rank", rank, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *values):
        pass
host, port = listen.rsplit(":", 1)
http.server.HTTPServer((host, int(port) if rank == "0" else 0), Handler).serve_forever()
"""


class RayCase(ClusterCase):
    """A cluster of two nodes; a test that kills one adds another."""

    def setUp(self):
        super().setUp()
        (self.folder / "rank.py").write_text(RANK)
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
        self.addCleanup(self.cluster.shutdown)
        self.node = self.cluster.add_node(num_cpus=3)

    def ray_launcher(self):
        return self.launcher("--launcher", "ray", "--address", self.cluster.address)

    def up_gang(self, launcher, nodes=2, per_node=2, **more):
        program = ["{python}", str(self.folder / "rank.py"), "{listen}", "{key_file}", str(self.folder)]
        values = {"device": "cpu", "key": "s3cret", "package": True, "python": "python3", **more}
        self.up(launcher, per_node, program, nodes=nodes, **values)

    def ready(self, launcher, **values):
        return launcher.wait("ready", LONG, **values)


class TestRay(RayCase):
    """Placement, deaths, ends."""

    def test_a_gang_is_spread_over_nodes_and_ends_with_its_role(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher)
        ready = self.ready(launcher, role="learner")
        self.assertEqual((ready["ranks"], len(set(ready["nodes"]))), (4, 2))
        self.assertTrue(ready["url"].startswith("http://"), ready["url"])
        ranks = sorted(self.lines("ranks", 4), key=lambda line: line[2])
        self.assertEqual([line[2:5] for line in ranks], [[str(rank), "4", str(rank % 2)] for rank in range(4)])
        self.assertEqual({line[7] for line in ranks}, {"s3cret"})
        programs = {line[8] for line in ranks}
        # Each node was sent the program.
        self.assertEqual(len(programs), 2)
        self.up_servers(launcher, count=2, device="cpu")
        servers = [self.ready(launcher, role="server") for _ in range(2)]
        self.assertEqual(len({server["url"] for server in servers}), 2)
        launcher.send(command="down", role="learner")
        launcher.wait("down", LONG, role="learner")
        self.assert_gone([int(pid) for line in ranks for pid in line[:2]])
        self.assertFalse(any(pathlib.Path(program).exists() for program in programs))
        self.assertEqual((self.folder / "learner_rank_3.log").read_text().splitlines()[-1], "I am rank 3")
        self.assertEqual(launcher.close(), 0)
        self.assert_gone()

    def test_a_rank_that_is_killed_is_told_and_another_gang_begins(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher)
        before = self.ready(launcher)
        killed = next(int(line[0]) for line in self.lines("ranks", 4) if line[2] == "3")
        first = self.pids()
        os.kill(killed, signal.SIGKILL)
        died = launcher.wait("died", LONG, rank=3, pid=killed)
        self.assertEqual((died["exit"], died["log_tail"]), ("signal: 9 (SIGKILL)", "I am rank 3"))
        self.assert_gone(first)
        launcher.send(command="restart", role="learner")
        self.assertEqual(self.ready(launcher, incarnation=2)["nodes"], before["nodes"])

    def test_a_node_that_is_lost_is_replaced(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher)
        before = self.ready(launcher)
        first = [int(pid) for line in self.lines("ranks", 4) for pid in line[:2]]
        self.cluster.remove_node(self.node, allow_graceful=False)
        died = launcher.wait("died", LONG, role="learner")
        self.assertIn("its actor is gone", died["exit"])
        self.assert_gone(first)
        launcher.send(command="restart", role="learner")
        waiting = launcher.wait("log", LONG)
        self.assertIn("learner needs 2 nodes with 2 CPUs each; the cluster has", waiting["message"])
        self.cluster.add_node(num_cpus=3)
        after = self.ready(launcher, incarnation=2)
        self.assertEqual((after["ranks"], len(set(after["nodes"]))), (4, 2))
        self.assertEqual(len(set(after["nodes"]) - set(before["nodes"])), 1)

    def test_room_that_is_not_there_is_told_in_numbers(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher, nodes=3, startup_timeout=4.0)
        error = launcher.wait("error", LONG, role="learner")
        self.assertRegex(
            error["message"],
            r"learner needs 3 nodes with 2 CPUs each; the cluster has \d of 6 CPUs free and 0 of 0 GPUs free, on 2 "
            r"nodes: no room was found within 4 s",
        )

    def test_servers_share_the_learners_room(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher, per_node=3)
        learner = self.ready(launcher)
        # Nothing is free, and nothing is needed.
        self.up_servers(launcher, count=2, share="learner", device="cpu")
        servers = [self.ready(launcher, role="server") for _ in range(2)]
        self.assertEqual({server["nodes"][0] for server in servers}, set(learner["nodes"]))
        alive = self.lines("servers", 2)
        launcher.send(command="down", role="learner")
        launcher.wait("down", LONG, role="learner")
        # They stay, and the next gang comes to where the last one was.
        self.up_gang(launcher, per_node=3)
        self.assertEqual(self.ready(launcher, role="learner")["nodes"], learner["nodes"])
        os.kill(int(alive[0][0]), 0)

    def test_nothing_outlives_a_launcher_that_is_killed(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher)
        self.up_servers(launcher, device="cpu")
        self.ready(launcher)
        self.ready(launcher)
        self.lines("ranks", 4)
        launcher.process.send_signal(signal.SIGKILL)
        time.sleep(0.1)
        self.assertEqual(len(self.pids()), 10)
        self.assert_gone()


class TestJob(ClusterCase):
    """A run as a job of the cluster, its learner on both nodes."""

    def test_a_submitted_run_trains_on_both_nodes_and_leaves_nothing(self):
        arguments = {"num_cpus": 3, "include_dashboard": True, "dashboard_port": 0}
        cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.addCleanup(cluster.shutdown)
        cluster.add_node(num_cpus=3)
        settings = [
            "warm_start.steps=10",
            "warm_start.target_accuracy=null",
            "~train.lr_schedule",
            "train.total_steps=2",
            "data.train_batch_size=4",
            "train.ppo_mini_batch_size=4",
            "data.gen_batch_size=16",
            "schedule.on_limit=use_partial",
            "validate.max_prompts=8",
            "learner.backend=torch",
            "learner.device=cpu",
            f"learner.python={sys.executable}",
            "learner.nodes=2",
            "cluster.launcher=ray",
            f"run.dir={self.folder}",
            "run.name=job",
        ]
        config = PACKAGE.parent / "configs" / "quickstart.yaml"
        command = [os.environ["TAMIS_PROGRAM"], "train", str(config), *settings]
        client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
        job = client.submit_job(entrypoint=shlex.join(command))
        deadline = time.monotonic() + 3 * LONG
        while not (status := client.get_job_status(job)).is_terminal():
            self.assertLess(time.monotonic(), deadline, client.get_job_logs(job))
            time.sleep(0.5)
        said = client.get_job_logs(job)
        self.assertEqual(status, JobStatus.SUCCEEDED, said)
        self.assertIn("on 2 ranks", said)
        run = self.folder / "job"
        self.assertEqual(len((run / "metrics.jsonl").read_text().splitlines()), 3)
        for name in ("learner.log", "learner_rank_1.log", "cluster.log"):
            self.assertTrue((run / name).exists(), name)
        self.assertEqual([pid for pid in pids_of("tamis.learner", str(self.folder)) if is_alive(pid)], [])


def pids_of(*words):
    """Processes whose command or folder has all of the words."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_text() + os.readlink(entry / "cwd")
        except OSError:
            continue
        if all(word in text for word in words):
            found.append(entry.name)
    return found


class TestNoCluster(ClusterCase):
    """Where no cluster is."""

    def test_a_cluster_that_is_not_there_is_told(self):
        launcher = self.launcher("--launcher", "ray", RAY_ADDRESS="", RAY_TMPDIR=str(self.folder))
        error = launcher.wait("error", LONG)
        self.assertIn("no Ray cluster answers: ", error["message"])
        self.assertIn("ray start --head", error["hint"])
        self.assertEqual(launcher.process.wait(PATIENCE), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
