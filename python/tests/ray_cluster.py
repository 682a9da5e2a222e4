"""The launcher on a Ray cluster of two nodes, which are two raylets of this machine. `scripts/test-ray` runs it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from ray.cluster_utils import Cluster
from test_cluster import PACKAGE, PATIENCE, ClusterCase

# Ray takes its time to bring processes up.
LONG = 90.0

# A node is lost if it misses five checks in a row (Ray's default: one every 3 s), and a head if it is away
# for so many seconds (60).
NOTICES_AT_ONCE = {
    "health_check_period_ms": 200,
    "health_check_initial_delay_ms": 0,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}

PROGRAM = os.environ.get("TAMIS_PROGRAM", "tamis")

# A run that takes some seconds.
CONFIG = """
run: {seed: 3, threads: 1}
model: {path: policy}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}
  max_prompt_length: 12
  train_batch_size: 4
  gen_batch_size: 8
rollout: {n: 4, max_response_length: 4}
reward: [{kind: number}]
filter: {kind: variance}
schedule: {max_num_gen_batches: 50}
train:
  ppo_mini_batch_size: 2
  total_steps: 40
  optimizer: {learning_rate: 1e-3}
checkpoint: {save_freq: 20}
"""
INIT = (
    "{architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, "
    "max_position_embeddings: 32}"
)

# A rank on TCP; every rank answers, the first at the address that it is given.
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
    """Clusters and runs that end with the test."""

    def start_cluster(self, **arguments):
        """Starts the head of a cluster with these arguments of `ray start`."""
        # Ray adds to the given variables.
        arguments["_system_config"] = dict(NOTICES_AT_ONCE)
        cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.addCleanup(cluster.shutdown)
        return cluster

    def start_run(self, *arguments):
        """Starts `tamis` in the folder of the test. `said()` of the returned object is its output so far."""
        handle, path = tempfile.mkstemp(prefix="said-", dir=self.folder)
        with open(handle, "w") as said:
            run = subprocess.Popen([PROGRAM, *arguments], cwd=self.folder, stdout=said, stderr=subprocess.STDOUT)
        run.said = pathlib.Path(path).read_text
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def succeed(self, run):
        """Waits for its end; returns what it has printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(2 * LONG)
        self.assertEqual(run.poll(), 0, f"{run.said()}\n(its output; the exit status is None if it still runs)")
        return run.said()

    def wait_until(self, is_so, run):
        """Waits for something that a run does. Fails if the run ends before, or takes longer than `LONG`."""
        deadline = time.monotonic() + LONG
        while not is_so():
            if run.poll() is not None or time.monotonic() > deadline:
                ends = "it has not come to that" if run.poll() is None else "it has ended before"
                self.fail(f"{run.said()}\n(what the run has printed; {ends})")
            time.sleep(0.05)


class TestRay(RayCase):
    """Placement, deaths, ends, on a cluster of two nodes; a test that kills one adds another."""

    def setUp(self):
        super().setUp()
        (self.folder / "rank.py").write_text(RANK)
        self.cluster = self.start_cluster(num_cpus=3)
        self.node = self.cluster.add_node(num_cpus=3)

    def ray_launcher(self):
        return self.launcher("--launcher", "ray", "--address", self.cluster.address)

    def up_gang(self, launcher, nodes=2, per_node=2, **more):
        program = ["{python}", str(self.folder / "rank.py"), "{listen}", "{key_file}", str(self.folder)]
        values = {"device": "cpu", "key": "s3cret", "package": True, "python": "python3", **more}
        self.up(launcher, per_node, program, nodes=nodes, **values)

    def ready(self, launcher, **values):
        return launcher.wait("ready", LONG, **values)

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
        # The program was sent to each node.
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

    def test_the_nodes_describe_themselves(self):
        launcher = self.ray_launcher()
        launcher.send(command="look")
        machines = launcher.wait("machines", LONG)["machines"]
        self.assertEqual([machine["cores"] for machine in machines], [3, 3])
        self.assertEqual([machine["gpus"] for machine in machines], [[], []])
        self.assertTrue(all(machine["memory"] > 1 << 30 for machine in machines), machines)
        self.assertEqual(launcher.close(), 0)

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
        # As a run does that has lost it.
        self.up_gang(launcher, generation=2)
        self.assertEqual(self.ready(launcher, generation=2)["nodes"], before["nodes"])

    def test_a_node_that_is_lost_is_replaced(self):
        launcher = self.ray_launcher()
        self.up_gang(launcher)
        before = self.ready(launcher)
        first = [int(pid) for line in self.lines("ranks", 4) for pid in line[:2]]
        self.cluster.remove_node(self.node, allow_graceful=False)
        died = launcher.wait("died", LONG, role="learner")
        # Either may be noticed first: the signal to the node's processes, or the missing actor.
        self.assertRegex(died["exit"], "its (actor is gone|agent was ended)")
        self.assert_gone(first)
        self.up_gang(launcher, generation=2)
        waiting = launcher.wait("log", LONG)
        self.assertIn("learner needs 2 nodes with 2 CPUs each; the cluster has", waiting["message"])
        self.cluster.add_node(num_cpus=3)
        after = self.ready(launcher, generation=2)
        self.assertEqual((after["ranks"], len(set(after["nodes"]))), (4, 2))
        self.assertEqual(len(set(after["nodes"]) - set(before["nodes"])), 1)

    def test_nodes_with_gpus_are_waited_for_and_what_comes_back_is_as_large(self):
        self.cluster.add_node(num_cpus=1, num_gpus=2)
        launcher = self.ray_launcher()
        self.up_gang(launcher, per_node=None, device="cuda")
        self.assertIn("learner needs 2 nodes with GPUs; the cluster has", launcher.wait("log", LONG)["message"])
        second = self.cluster.add_node(num_cpus=1, num_gpus=2)
        self.assertEqual(self.ready(launcher)["ranks"], 4)
        self.cluster.remove_node(second, allow_graceful=False)
        launcher.wait("died", LONG, role="learner")
        self.up_gang(launcher, per_node=None, device="cuda", generation=2)
        self.assertIn("learner needs 2 nodes with 2 GPUs and 1 CPU each", launcher.wait("log", LONG)["message"])
        self.cluster.add_node(num_cpus=1, num_gpus=3)
        self.assertEqual(self.ready(launcher, generation=2)["ranks"], 4)

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
        # They stay, and the next gang gets the places of the last one.
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


class TestRuns(RayCase):
    """Whole runs."""

    def test_a_submitted_run_trains_on_both_nodes_and_leaves_nothing(self):
        cluster = self.start_cluster(num_cpus=3, include_dashboard=True, dashboard_port=0)
        cluster.add_node(num_cpus=3)
        settings = [
            "sft.steps=10",
            "sft.target_accuracy=null",
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
        ray = pathlib.Path(sys.executable).with_name("ray")
        submit = [ray, "job", "submit", "--address", f"http://{cluster.head_node.webui_url}", "--"]
        job = subprocess.run(
            [*submit, "env", "-C", str(self.folder), PROGRAM, "train", str(config), *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * LONG,
        )
        self.assertEqual(job.returncode, 0, job.stdout)
        self.assertIn("on 2 ranks", job.stdout)
        self.assertIn("succeeded", job.stdout)
        run = self.folder / "job"
        self.assertEqual(len((run / "metrics.jsonl").read_text().splitlines()), 3)
        for name in ("learner.log", "learner_rank_1.log", "cluster.log"):
            self.assertTrue((run / name).exists(), name)
        self.assert_gone([int(pid) for pid in pids_of("tamis.learner", str(self.folder))])

    def test_a_server_whose_node_is_lost_goes_on_at_another(self):
        (self.folder / "config.yaml").write_text(CONFIG)
        warm = ["train.total_steps=1", "sft={steps: 60, batch_size: 32, learning_rate: 1e-2}", f"+model.init={INIT}"]
        self.succeed(self.start_run("train", "config.yaml", "run.name=policy", "~model.path", *warm))
        (self.folder / "runs/policy/checkpoints/step_1").rename(self.folder / "policy")
        self.succeed(self.start_run("train", "config.yaml", "run.name=alone"))
        cluster = self.start_cluster(num_cpus=0)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        serve = [PROGRAM, "serve", "{model}", "--host", "{host}", "--port", "{port}", "--threads", "1"]
        launch = {"command": [*serve, "--api-key-file", "{key_file}"], "startup_timeout": "90s"}
        served = [
            "run.name=served",
            "rollout.backend=vllm",
            f"rollout.launch={json.dumps(launch)}",
            "cluster.launcher=ray",
            f"cluster.address={cluster.address}",
            f"learner.python={sys.executable}",
        ]
        run = self.start_run("train", "config.yaml", *served)
        metrics = self.folder / "runs/served/metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and '"step":3,' in metrics.read_text(), run)
        (server,) = pids_of("tamis\0serve\0", str(self.folder))
        above = list(ancestors(server))
        raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes}
        (lost,) = [node for pid, node in raylets.items() if pid in above]
        cluster.remove_node(lost, allow_graceful=False)
        said = self.succeed(run)
        self.assertRegex(said, r"server 1 on [\d.]+ \(Ray node \w+\).* ended \(its (actor is gone|agent was ended)")
        self.assertRegex(said, r"the server at http://\S+ was restarted and now answers at http://\S+")
        # Samples of servers have metrics of their own.
        alone = self.rows("alone")
        both = [{name: row.get(name) for name in of} for row, of in zip(self.rows("served"), alone, strict=True)]
        self.assertEqual(both, alone)
        last = [self.folder / "runs" / name / "checkpoints/step_40/model.safetensors" for name in ("served", "alone")]
        self.assertEqual(*(path.read_bytes() for path in last))
        self.assert_gone([int(server), *map(int, pids_of("tamis\0serve\0", str(self.folder)))])

    def rows(self, run):
        lines = (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
        timed = ("timing", "perf/", "rollout/server_")
        rows = [json.loads(line) for line in lines]
        return [{k: v for k, v in row.items() if not k.startswith(timed) and "time" not in k} for row in rows]


def ancestors(pid):
    """The processes above one."""
    while int(pid) > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        yield pid


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
    """Without a cluster."""

    def test_a_cluster_that_is_not_there_is_told(self):
        launcher = self.launcher("--launcher", "ray", RAY_ADDRESS="", RAY_TMPDIR=str(self.folder))
        error = launcher.wait("error", LONG)
        self.assertIn("no Ray cluster answers: ", error["message"])
        self.assertIn("ray start --head", error["hint"])
        self.assertEqual(launcher.process.wait(PATIENCE), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
