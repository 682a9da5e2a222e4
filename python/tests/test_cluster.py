"""The launcher, with stub programs on this machine."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
PATIENCE = 20.0

# A rank: the first answers on its socket; each says who it is, and starts a worker of its own.
RANK = """
import os, socket, subprocess, sys, time
rank, folder = os.environ["RANK"], sys.argv[2]
worker = subprocess.Popen(["sleep", "1000"])
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"]
with open(os.path.join(folder, "ranks"), "a") as file:
    values = [str(os.getpid()), str(worker.pid), *(os.environ.get(name) or "none" for name in names)]
    file.write(" ".join(values) + "\\n")
print("I am rank", rank, flush=True)
listener = socket.socket(socket.AF_UNIX)
if rank == "0":
    listener.bind(sys.argv[1].removeprefix("unix:"))
    listener.listen()
time.sleep(1000)
"""

# A server.
SERVER = """
import http.server, os, subprocess, sys
host, port, folder = sys.argv[1:]
worker = subprocess.Popen(["sleep", "1000"])
with open(os.path.join(folder, "servers"), "a") as file:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "-")
    file.write(f"{os.getpid()} {worker.pid} {gpus} {'RANK' in os.environ}\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *values):
        pass
print("serving", flush=True)
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def is_alive(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


class Launcher:
    """`python -m tamis.cluster`, and what it says."""

    def __init__(self, *arguments, gpus="", python=sys.executable, **variables):
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "CUDA_VISIBLE_DEVICES": gpus, **variables}
        self.process = subprocess.Popen(
            [python, "-m", "tamis.cluster", *(arguments or ("--launcher", "local"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr if "TAMIS_SHOW" in os.environ else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.events = queue.SimpleQueue()
        self.seen = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)

    def send(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def wait(self, kind, patience=PATIENCE, **values):
        """The next event of a kind and with these values; what comes before it is passed over."""
        deadline = time.monotonic() + patience
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} {values} came, but {self.seen}") from None
            if event is None:
                raise AssertionError(f"the launcher ended before {kind} {values}: {self.seen}")
            self.seen.append(event)
            if event["event"] == kind and values.items() <= event.items():
                return event

    def close(self):
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()


class ClusterCase(unittest.TestCase):
    """A folder, launchers that end with the test, and ways to look at what they started."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, program in (("rank.py", RANK), ("server.py", SERVER)):
            (self.folder / name).write_text(program)

    def launcher(self, *arguments, **options):
        launcher = Launcher(*arguments, **options)
        self.addCleanup(launcher.close)
        return launcher

    def up(self, launcher, per_node=2, argv=None, **more):
        program = argv or ["{python}", str(self.folder / "rank.py"), "{listen}", str(self.folder)]
        request = {"is_gang": True, "per_node": per_node, "argv": program, "python": sys.executable}
        launcher.send(command="up", role="learner", log=str(self.folder / "learner.log"), **{**request, **more})

    def up_servers(self, launcher, count=1, argv=None, **more):
        program = argv or ["{python}", str(self.folder / "server.py"), "{host}", "{port}", str(self.folder)]
        log = str(self.folder / "server_{number}.log")
        request = {"argv": program, "python": sys.executable, "log": log, "restarts": 8}
        launcher.send(command="up", role="server", count=count, **{**request, **more})

    def lines(self, name, count=0):
        """What processes wrote into a file, once there are so many lines."""
        path, deadline = self.folder / name, time.monotonic() + PATIENCE
        while True:
            lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
            if len(lines) >= count:
                return lines
            self.assertLess(time.monotonic(), deadline, f"{name}: {lines}")
            time.sleep(0.02)

    def pids(self):
        return [int(pid) for name in ("ranks", "servers") for line in self.lines(name) for pid in line[:2]]

    def assert_gone(self, pids=None):
        pids = self.pids() if pids is None else pids
        deadline = time.monotonic() + PATIENCE
        while alive := [pid for pid in pids if is_alive(pid)]:
            self.assertLess(time.monotonic(), deadline, f"still there: {alive}")
            time.sleep(0.02)


class TestLocal(ClusterCase):
    """Gangs and servers of this machine."""

    def test_a_gang_knows_its_ranks_and_ends_with_its_role(self):
        launcher = self.launcher()
        self.up(launcher)
        ready = launcher.wait("ready", role="learner", index=0)
        self.assertEqual((ready["incarnation"], ready["ranks"], len(ready["nodes"])), (1, 2, 1))
        self.assertTrue(ready["url"].startswith("unix:/"))
        ranks = sorted(self.lines("ranks", 2), key=lambda line: line[2])
        self.assertEqual([line[2:] for line in ranks], [f"{rank} 2 {rank} 2 127.0.0.1 none".split() for rank in "01"])
        self.assertTrue(all(is_alive(pid) for pid in self.pids()))
        launcher.send(command="down", role="learner")
        launcher.wait("down", role="learner")
        self.assert_gone()
        self.assertFalse(pathlib.Path(ready["url"].removeprefix("unix:")).parent.exists())
        for name, rank in (("learner.log", 0), ("learner_rank_1.log", 1)):
            first, last = (self.folder / name).read_text().splitlines()
            self.assertTrue(first.startswith("$ {python} "), first)
            self.assertEqual(last, f"I am rank {rank}")
        self.assertEqual(launcher.close(), 0)

    def test_a_rank_that_is_killed_takes_the_gang_with_it_and_another_begins(self):
        launcher = self.launcher()
        self.up(launcher)
        launcher.wait("ready")
        killed = next(int(line[0]) for line in self.lines("ranks", 2) if line[2] == "1")
        first = self.pids()
        os.kill(killed, signal.SIGKILL)
        died = launcher.wait("died", role="learner", index=0, incarnation=1, rank=1, pid=killed)
        self.assertEqual((died["exit"], died["log_tail"]), ("signal: 9 (SIGKILL)", "I am rank 1"))
        self.assertEqual(died["log"], str(self.folder / "learner_rank_1.log"))
        self.assertTrue(died["node"])
        self.assert_gone(first)
        launcher.send(command="restart", role="learner")
        self.assertEqual(launcher.wait("ready")["incarnation"], 2)
        self.lines("ranks", 4)
        # In place of a gang that is lost a new one is asked for, too.
        os.kill(self.pids()[-2], signal.SIGKILL)
        launcher.wait("died", incarnation=2)
        self.up(launcher, per_node=3)
        self.assertEqual(launcher.wait("ready")["ranks"], 3)
        self.assertEqual(launcher.close(), 0)
        self.assert_gone()

    def test_a_stopped_rank_ends_all_the_same(self):
        launcher = self.launcher()
        self.up(launcher)
        launcher.wait("ready")
        first = [int(pid) for line in self.lines("ranks", 2) for pid in line[:2]]
        os.kill(first[0], signal.SIGSTOP)
        launcher.send(command="restart", role="learner", index=0)
        launcher.wait("ready", incarnation=2)
        self.assert_gone(first)

    def test_a_gang_that_does_not_come_up_is_told(self):
        launcher = self.launcher()
        self.up(launcher, argv=["/bin/sh", "-c", "for i in $(seq 30); do echo line $i; done; exit 7"], per_node=1)
        died = launcher.wait("died")
        self.assertEqual(died["exit"], "exit status: 7")
        self.assertEqual(died["log_tail"].splitlines(), [f"line {i}" for i in range(11, 31)])
        self.up(launcher, argv=["sleep", "1000"], startup_timeout=0.3)
        self.assertEqual(launcher.wait("died")["exit"], "no answer within 0.3 s")
        self.up(launcher, argv=["no-such-program"], per_node=1)
        self.assertEqual(launcher.wait("died")["exit"], "cannot start `no-such-program`: No such file or directory")
        self.up(launcher, nodes=2)
        self.assertIn("2 nodes are asked for", launcher.wait("error", role="learner")["message"])

    def test_gpus_are_handed_out_once(self):
        launcher = self.launcher(gpus="4,5,6")
        self.up(launcher, per_node=None, reserve=1)
        self.assertEqual(launcher.wait("ready")["ranks"], 2)
        self.up_servers(launcher, per_node=1)
        launcher.wait("ready", role="server")
        self.assertEqual({line[-1] for line in self.lines("ranks", 2)}, {"4,5"})
        self.assertEqual(self.lines("servers")[0][2:], ["6", "False"])
        self.up_servers(launcher, count=2, per_node=1)
        error = launcher.wait("error", role="server")
        self.assertIn("is to have 1 GPUs: 3 are there, 0 of them free", error["message"])
        self.up_servers(launcher, count=2, per_node=1, share="learner")
        launcher.wait("ready", role="server")
        launcher.wait("ready", role="server")
        self.assertEqual(sorted(line[2] for line in self.lines("servers")[-2:]), ["4", "5"])

    def test_a_server_is_started_again_at_its_address(self):
        launcher = self.launcher()
        self.up_servers(launcher, count=2)
        ready = {event["index"]: event for event in (launcher.wait("ready"), launcher.wait("ready"))}
        self.assertEqual(sorted(ready), [0, 1])
        (pid, worker, *_), other = self.lines("servers")
        os.kill(int(pid), signal.SIGKILL)
        died = launcher.wait("died", role="server", pid=int(pid))
        self.assertEqual((died["rank"], died["log_tail"]), (None, "serving"))
        again = launcher.wait("again", role="server", index=died["index"])
        self.assertEqual((again["pause"], again["number"], again["most"]), (1.0, 1, 8))
        self.assert_gone([int(worker)])
        back = launcher.wait("ready", role="server", index=died["index"], incarnation=2)
        self.assertEqual(back["url"], ready[died["index"]]["url"])
        self.assertTrue(is_alive(int(other[0])))
        self.assertEqual(launcher.close(), 0)
        self.assert_gone()

    def test_a_server_that_hangs_is_ended_and_started_again(self):
        launcher = self.launcher()
        self.up_servers(launcher, silence=0.5)
        launcher.wait("ready")
        os.kill(int(self.lines("servers")[0][0]), signal.SIGSTOP)
        died = launcher.wait("died", patience=40.0)
        self.assertEqual(died["log_tail"].splitlines()[-1], "no health check was answered for 0.5 s: it is ended")
        launcher.wait("ready", incarnation=2)

    def test_a_server_that_goes_on_dying_is_given_up(self):
        launcher = self.launcher()
        self.up_servers(launcher, restarts=1)
        for number in (1, 2):
            launcher.wait("ready", incarnation=number)
            os.kill(int(self.lines("servers")[-1][0]), signal.SIGKILL)
            launcher.wait("died", incarnation=number)
        launcher.send(command="down", role="server")
        launcher.wait("down")
        self.assertEqual(sum(event["event"] == "again" for event in launcher.seen), 1)

    def test_nothing_outlives_a_launcher_that_is_killed(self):
        launcher = self.launcher()
        self.up(launcher)
        self.up_servers(launcher)
        launcher.wait("ready")
        launcher.wait("ready")
        self.lines("ranks", 2)
        self.assertEqual(len(self.pids()), 6)
        launcher.process.send_signal(signal.SIGKILL)
        self.assert_gone()

    def test_an_agent_that_is_killed_is_a_death(self):
        launcher = self.launcher()
        self.up(launcher)
        launcher.wait("ready")
        rank = self.lines("ranks", 2)[0][0]
        agent = int(pathlib.Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(agent, signal.SIGKILL)
        self.assertEqual(launcher.wait("died")["exit"], "the agent that started it was ended")
        self.assert_gone()

    def test_a_signal_ends_the_launcher_and_all_that_it_started(self):
        launcher = self.launcher()
        self.up(launcher, environment={"CUDA_VISIBLE_DEVICES": "7"})
        launcher.wait("ready")
        self.assertEqual(self.lines("ranks")[0][-1], "7")
        launcher.process.send_signal(signal.SIGTERM)
        self.assertEqual(launcher.process.wait(PATIENCE), 0)
        self.assert_gone()

    def test_a_key_is_a_file_for_its_owner_alone(self):
        launcher = self.launcher()
        program = 'stat -c %a "$1"; cat "$1"; exit 3'
        self.up(launcher, per_node=1, key="s3cret", argv=["/bin/sh", "-c", program, "sh", "{key_file}"])
        self.assertEqual(launcher.wait("died")["log_tail"], "600\ns3cret")


class TestWithoutRay(ClusterCase):
    """The launcher on an interpreter that has no Ray."""

    def test_a_missing_ray_is_told_with_the_fix(self):
        hidden = self.folder / "hidden"
        hidden.mkdir()
        (hidden / "ray.py").write_text("raise ImportError('hidden')\n")
        launcher = self.launcher("--launcher", "ray", PYTHONPATH=f"{hidden}{os.pathsep}{PACKAGE}")
        error = launcher.wait("error")
        self.assertIn("has no Ray (hidden)", error["message"])
        self.assertIn("-m pip install 'ray==", error["hint"])
        self.assertEqual(launcher.process.wait(PATIENCE), 1)


if __name__ == "__main__":
    unittest.main()
