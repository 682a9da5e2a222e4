"""The launcher, with stub programs on this machine."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

from tamis.cluster.__main__ import Roles  # noqa: E402
from tamis.cluster.group import Group, Restarts, _Incarnation  # noqa: E402
from tamis.cluster.local import Claims, LocalLauncher  # noqa: E402
from tamis.cluster.on_ray import RayLauncher  # noqa: E402
from tamis.cluster.request import LaunchError, Request  # noqa: E402

PATIENCE = 20.0

# A rank: the first answers on its socket; each prints who it is, and starts a worker of its own.
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
    gpus, order = (os.environ.get(name, "-") for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
    file.write(f"{os.getpid()} {worker.pid} {gpus} {'RANK' in os.environ} {order}\\n")
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
    """`python -m tamis.cluster`, and its output."""

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
    """A folder, launchers that end with the test, and checks of what they started."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, program in (("rank.py", RANK), ("server.py", SERVER)):
            (self.folder / name).write_text(program)

    def launcher(self, *arguments, **options):
        if "gpus" in options:
            # GPUs of others with these numbers must not matter.
            options.setdefault("TMPDIR", str(self.folder))
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
        """The text that processes wrote into a file, once it has so many lines."""
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
        # A new gang is requested in place of a lost one.
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
        self.up(launcher)
        launcher.wait("ready")
        self.assert_gone(first)

    def test_news_are_of_what_was_asked_for_then(self):
        launcher = self.launcher()
        self.up(launcher, generation=7)
        launcher.wait("ready", role="learner", generation=7)
        os.kill(int(self.lines("ranks", 2)[0][0]), signal.SIGKILL)
        launcher.wait("died", generation=7)
        self.up(launcher, generation=8)
        launcher.wait("down", generation=7)
        launcher.wait("ready", generation=8)
        # The end of the first does not end the second.
        launcher.send(command="down", role="learner", generation=7)
        self.up_servers(launcher, generation=9, restarts=1)
        launcher.wait("ready", role="server", generation=9)
        os.kill(int(self.lines("servers")[0][0]), signal.SIGKILL)
        launcher.wait("again", generation=9)
        self.assertNotIn("down", [event["event"] for event in launcher.seen if event.get("generation") == 8])
        launcher.send(command="down", role="learner", generation=8)
        launcher.wait("down", generation=8)
        self.up(launcher, generation=10, nodes=2)
        launcher.wait("error", generation=10, is_last=True)

    def test_a_server_is_restarted_on_demand_and_a_gang_is_not(self):
        launcher = self.launcher()
        self.up_servers(launcher)
        url = launcher.wait("ready", role="server")["url"]
        launcher.send(command="restart", role="server", index=0)
        self.assertEqual(launcher.wait("ready", role="server", incarnation=2)["url"], url)
        self.up(launcher)
        launcher.wait("ready", role="learner")
        launcher.send(command="restart", role="learner", index=0)
        self.assertIn("a gang is not restarted", launcher.wait("error")["message"])

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
        # Numbered as `nvidia-smi` does it.
        self.assertEqual(self.lines("servers")[0][2:], ["6", "False", "PCI_BUS_ID"])
        self.up_servers(launcher, count=2, per_node=1)
        error = launcher.wait("error", role="server")
        self.assertIn("is to have 1 GPUs: 3 are there, 0 of them free", error["message"])
        self.up_servers(launcher, count=2, per_node=1, share="learner")
        launcher.wait("ready", role="server")
        launcher.wait("ready", role="server")
        self.assertEqual(sorted(line[2] for line in self.lines("servers")[-2:]), ["4", "5"])
        # A learner comes back to those that servers share with it.
        self.up(launcher, per_node=None, reserve=1, generation=2)
        self.assertEqual(launcher.wait("ready", generation=2)["ranks"], 2)
        self.assertEqual({line[-1] for line in self.lines("ranks", 4)[2:]}, {"4,5"})

    def test_gpus_of_another_launcher_are_passed_over(self):
        first, second, third = (self.launcher(gpus=gpus) for gpus in ("4,5,6", "4,5,6,7", "4,5,6,7"))
        self.up(first, per_node=None, reserve=1)
        self.assertEqual(first.wait("ready")["ranks"], 2)
        # GPUs that the first group leaves to its servers are not free, either.
        self.up(second, per_node=None)
        told = second.wait("log")["message"]
        self.assertEqual(told, "learner has 1 of 4 GPUs: other runs on this machine have 4, 5, 6")
        self.assertEqual(second.wait("ready")["ranks"], 1)
        self.assertEqual(self.lines("ranks", 3)[2][-1], "7")
        self.up_servers(first, per_node=1)
        first.wait("ready", role="server")
        self.assertEqual(self.lines("servers", 1)[0][2], "6")
        # Requested by number, they are shared.
        self.up_servers(third, per_node=2)
        shares = third.wait("log")["message"]
        self.assertEqual(shares, "server 1 shares GPUs with other runs on this machine: 4, 5")
        third.wait("ready")
        self.up(third, per_node=None, reserve=2, startup_timeout=0.1)
        told = third.wait("error", role="learner")["message"]
        self.assertIn("all GPUs that are free beside 2 for others, and other runs on this machine have 6, 7", told)
        self.up(third, per_node=None, reserve=2, generation=2)
        self.assertIn("waiting for GPUs: learner is to have all", third.wait("log", generation=2)["message"])
        # The end of a launcher frees them, whatever ended it.
        second.process.kill()
        self.assertEqual(third.wait("ready", generation=2)["ranks"], 1)
        self.assertEqual(self.lines("ranks", 4)[3][-1], "7")

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

    def test_a_server_whose_port_was_taken_is_started_again_at_another(self):
        launcher = self.launcher()
        self.up_servers(launcher)
        url = launcher.wait("ready")["url"]
        os.kill(int(self.lines("servers")[0][0]), signal.SIGKILL)
        launcher.wait("again")
        with socket.create_server(("127.0.0.1", int(url.rsplit(":", 1)[1]))):
            self.assertNotEqual(launcher.wait("ready", incarnation=3)["url"], url)
        # It took none of its restarts.
        self.assertEqual(sum(event["event"] == "again" for event in launcher.seen), 1)

    def test_a_port_that_is_lost_at_the_start_is_replaced_once(self):
        launcher = self.launcher()
        serve = shlex.join([sys.executable, str(self.folder / "server.py")])
        # Another program takes the first port after the agent releases it and before the program binds it.
        taken = 'echo "$1" > "$2/first"; echo "[Errno 98] Address already in use"; exit 1'
        program = f'[ -e "$2/first" ] || {{ {taken}; }}; exec {serve} "$0" "$@"'
        self.up_servers(launcher, argv=["/bin/sh", "-c", program, "{host}", "{port}", str(self.folder)])
        self.assertIn("a port of server 1 was taken", launcher.wait("log")["message"])
        url = launcher.wait("ready", incarnation=2)["url"]
        self.assertNotEqual(url.rsplit(":", 1)[1], (self.folder / "first").read_text().strip())
        program = "echo address already in use; exit 1"
        self.up_servers(launcher, argv=["/bin/sh", "-c", program])
        self.assertEqual(launcher.wait("died", incarnation=2)["exit"], "exit status: 1")
        self.assertEqual(sum(event["event"] == "log" for event in launcher.seen), 2)

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

    def test_a_log_that_cannot_be_written_ends_nobody(self):
        log, full = str(self.folder / "learner.log"), "cannot be written: No space left on device; lines of it are lost"
        os.symlink("/dev/full", log)
        launcher = self.launcher()
        program = 'for i in $(seq 30); do echo line $i; done; exec "$0" "$@"'
        rank = ["{python}", str(self.folder / "rank.py"), "{listen}", str(self.folder)]
        self.up(launcher, argv=["/bin/sh", "-c", program, *rank])
        self.assertEqual(launcher.wait("log", role="learner")["message"], f"the log {log} {full}")
        launcher.wait("ready", role="learner")
        # The other rank has a file of its own.
        self.assertEqual(len(self.lines("learner_rank_1.log", 32)), 32)
        os.kill(next(int(line[0]) for line in self.lines("ranks", 2) if line[2] == "0"), signal.SIGKILL)
        died = launcher.wait("died", rank=0)
        self.assertEqual((died["exit"], died["log_tail"].splitlines()[-1]), ("signal: 9 (SIGKILL)", "I am rank 0"))
        launcher.send(command="down", role="learner")
        launcher.wait("down", role="learner")
        self.assert_gone()
        self.assertEqual(sum(event["event"] == "log" for event in launcher.seen), 1)

    def test_a_key_is_in_files_for_their_owner_alone(self):
        launcher = self.launcher()
        program = 'stat -c %a "$1"; cat "$1"; exit 3'
        for word, text in (("{key_file}", "s3cret"), ("{key_config}", "api-key: s3cret")):
            self.up(launcher, per_node=1, key="s3cret", argv=["/bin/sh", "-c", program, "sh", word])
            self.assertEqual(launcher.wait("died")["log_tail"], f"600\n{text}")


class TestRestarts(ClusterCase):
    """How often a server is started again."""

    def deaths(self, healthy, most, number):
        """Reports about a server that is killed `number` times, each time when it is ready."""
        said = queue.SimpleQueue()
        program = [sys.executable, str(self.folder / "server.py"), "{host}", "{port}", str(self.folder)]
        request = Request(role="server", index=0, argv=program, log=str(self.folder / "log"))
        found = []
        with mock.patch.multiple("tamis.cluster.group", HEALTHY=healthy, FIRST_PAUSE=0.125, LONGEST_PAUSE=0.25):
            launcher = LocalLauncher([])
            group = Group(request, launcher, lambda event, **values: said.put((event, values)), Restarts(most))
            group.start()
            try:
                while len(found) < number:
                    event, values = said.get(timeout=PATIENCE)
                    if event == "ready":
                        os.kill(int(self.lines("servers")[-1][0]), signal.SIGKILL)
                    elif event == "again":
                        found.append((values["number"], values["pause"]))
                    elif event == "died" and values["is_last"]:
                        found.append("last")
            finally:
                group.end()
                group.join(PATIENCE)
        return found

    def test_one_that_was_healthy_has_all_restarts_again_and_the_first_pause(self):
        self.assertEqual(self.deaths(0.0, 1, 3), [(1, 0.125)] * 3)

    def test_quick_deaths_use_them_up_and_pauses_double(self):
        self.assertEqual(self.deaths(60.0, 3, 4), [(1, 0.125), (2, 0.25), (3, 0.25), "last"])


class Broken:
    """A launcher whose cluster is gone."""

    is_local = False

    def place(self, *_):
        raise RuntimeError("GCS is gone\nat some place")

    def look(self):
        raise RuntimeError("GCS is gone")


class TestNews(unittest.TestCase):
    """Reports of a launcher about its own faults."""

    def test_whatever_ends_a_group_is_told_with_its_reason(self):
        said = []
        request = Request(role="learner", index=0, argv=["x"], log="/nowhere", is_gang=True, generation=3)
        group = Group(request, Broken(), lambda event, **values: said.append((event, values)), Restarts(0))
        with contextlib.redirect_stderr(io.StringIO()) as log:
            group.start()
            deadline = time.monotonic() + PATIENCE
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
            group.end()
            group.join(PATIENCE)
        error = {
            "role": "learner", "index": 0, "generation": 3, "hint": None, "is_last": True,
            "message": "learner cannot be started: RuntimeError: GCS is gone",
        }  # fmt: skip
        down = {"role": "learner", "index": 0, "generation": 3}
        self.assertEqual(said, [("error", error), ("down", down)])
        self.assertIn("at some place", log.getvalue())

    def test_a_place_is_given_back_where_nothing_can_be_begun_in_it(self):
        place, said = mock.Mock(), queue.SimpleQueue()
        launcher = mock.Mock(is_local=True, place=lambda *_: ([place], 1))
        request = Request(role="learner", index=0, argv=["x"], log="/nowhere", is_gang=True)
        with mock.patch("tamis.cluster.group.Log", side_effect=RuntimeError("can't start new thread")):
            with contextlib.redirect_stderr(io.StringIO()):
                group = Group(request, launcher, lambda event, **values: said.put(event), Restarts(0))
                group.start()
                self.assertEqual(said.get(timeout=PATIENCE), "error")
                group.end()
                group.join(PATIENCE)
        place.close.assert_called_once()

    def test_what_is_asked_for_while_an_incarnation_ends_is_kept(self):
        heard = queue.SimpleQueue()
        place = mock.Mock()
        place.receive.return_value = None
        request = Request(role="learner", index=0, argv=["x"], log=os.devnull, is_gang=True)
        incarnation = _Incarnation(request, [place], 1, 1, heard, print)
        heard.put((None, "restart"))
        heard.put(((incarnation, place), {"event": "output", "rank": 7, "text": "of nobody"}))
        with self.assertRaises(IndexError):
            incarnation.close(0.0)
        self.assertEqual(heard.get_nowait(), (None, "restart"))

    def test_machines_that_cannot_be_looked_at_are_none(self):
        said = queue.SimpleQueue()
        roles = Roles(Broken(), lambda event, **values: said.put((event, values)))
        with contextlib.redirect_stderr(io.StringIO()) as log:
            roles.carry_out({"command": "look"})
            self.assertEqual(said.get(timeout=PATIENCE), ("machines", {"machines": []}))
        self.assertIn("RuntimeError: GCS is gone", log.getvalue())


# The parts of Ray that a launcher needs to report that it is connected. It is once a file exists.
RAY = """
import os
class AuthenticationError(Exception): pass
def init(**values):
    if not os.path.exists(os.environ["CLUSTER"]):
        raise eval(os.environ.get("TROUBLE", "ConnectionError('nobody is at home')"))
def put(value): pass
def remote(what): return what
def shutdown(): pass
"""


class Nodes:
    """The parts of a Ray cluster that are needed to find room: the GPUs of its nodes, and the requests."""

    def __init__(self, counts):
        self.counts, self.asked = counts, []

    def nodes(self):
        return [{"Alive": True, "NodeID": str(n), "Resources": {"GPU": count}} for n, count in enumerate(self.counts)]

    def cluster_resources(self):
        return {"GPU": sum(self.counts)}

    available_resources = cluster_resources

    def placement_group(self, bundles, strategy):
        self.asked.append(bundles)
        return self

    def placement_group_table(self, group):
        return {"state": "CREATED", "bundles_to_node_id": {0: "gone"}}

    def remove_placement_group(self, group):
        pass

    def wait(self, seconds):
        return True


class TestClaims(unittest.TestCase):
    """GPUs that launchers of one machine keep for themselves."""

    def claims(self, folder, **names):
        with mock.patch("tamis.cluster.local.find_names", lambda: names), mock.patch("tempfile.gettempdir", lambda: folder):
            return Claims()

    def test_a_gpu_is_the_same_one_whatever_its_number(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        first, other_job = self.claims(folder, **{"0": "GPU-a"}), self.claims(folder, **{"0": "GPU-b"})
        self.assertTrue(first.take("0") and other_job.take("0"))
        self.assertFalse(self.claims(folder).take("GPU-a"))
        first.give_back(["0"])
        self.assertTrue(self.claims(folder).take("GPU-a"))
        other_job.give_back(["0"])


class TestRoom(unittest.TestCase):
    """Requests to a Ray cluster."""

    def setUp(self):
        self.enterContext(mock.patch("tamis.cluster.on_ray.LOOK_EVERY", 0.0))
        self.enterContext(mock.patch("tamis.cluster.on_ray.PATIENCE", 0.0))

    def launcher(self, *counts):
        """A launcher on nodes with so many GPUs."""
        cluster = Nodes(list(counts))
        with mock.patch.object(RayLauncher, "__init__", lambda self: None):
            launcher = RayLauncher()
        launcher._ray = launcher._util = cluster
        launcher._rooms, launcher._decided = {}, {}
        return launcher, cluster

    def gang(self, nodes=2, **more):
        return Request(role="learner", index=0, argv=["x"], log="x", is_gang=True, nodes=nodes, **more)

    def test_gpus_are_counted_when_as_many_nodes_have_some_as_are_asked_for(self):
        for nodes, first, *others in ((2, [8], [8]), (2, [0, 8], [8]), (4, [8, 8], [8], [8]), (1, [0], [8])):
            with self.subTest(nodes=nodes, first=first):
                launcher, cluster = self.launcher(*first)
                said = []

                def say(message):
                    said.append(message)
                    cluster.counts += others.pop(0)

                room = launcher._find_room(self.gang(nodes, device="cuda"), lambda: True, say)
                self.assertEqual((room.each, others), (8, []))
                self.assertEqual(cluster.asked, [[{"GPU": 8, "CPU": 1}] * nodes])
                self.assertIn("with GPUs; the cluster has", said[0])

    def test_a_size_is_not_decided_while_others_would_find_no_room(self):
        launcher, cluster = self.launcher(8)
        said = []

        def say(message):
            said.append(message)
            cluster.counts.append(8)

        room = launcher._find_room(self.gang(1, device="cuda", reserve=8), lambda: True, say)
        self.assertEqual((room.each, cluster.counts), (8, [8, 8]))
        self.assertIn("learner needs a node with GPUs beside 8 GPUs for others; the cluster has", said[0])

    def test_nodes_that_do_not_come_are_told(self):
        launcher, cluster = self.launcher(0, 8)
        with self.assertRaisesRegex(LaunchError, "learner needs 2 nodes with GPUs; .*, on 2 nodes: no room was found"):
            launcher._find_room(self.gang(device="cuda"), lambda: False, lambda message: None)
        self.assertEqual(cluster.asked, [])

    def test_what_comes_back_is_as_large_as_before(self):
        launcher, cluster = self.launcher(8, 8)
        for device, per_node in (("auto", None), ("cuda", None), ("auto", 4)):
            for counts in ([8, 8], [8], [8, 4], [0, 0]):
                with self.subTest(device=device, per_node=per_node, counts=counts):
                    cluster.counts = counts
                    gang = self.gang(device=device, per_node=per_node)
                    room = launcher._find_room(gang, lambda: True, lambda message: None)
                    self.assertEqual(room.bundle, {"GPU": per_node or 8, "CPU": 1})
        # For another gang the decision is made anew.
        cluster.counts = [4, 8]
        room = launcher._find_room(self.gang(1, device="cuda", reserve=5), lambda: True, lambda message: None)
        self.assertEqual(room.each, 7)

    def test_room_that_fails_is_looked_for_anew_once_where_it_was_there_before(self):
        launcher, _ = self.launcher(8, 8)
        gang, tried = self.gang(device="cuda"), []
        room = launcher._find_room(gang, lambda: True, lambda message: None)

        def place(request, is_wanted, say):
            tried.append(launcher._rooms.get((request.role, request.index)))
            if tried[-1] is None and request is gang:
                return [], 8
            raise LaunchError("its node is gone", "")

        launcher._place = place
        self.assertEqual(launcher.place(gang, lambda: True, lambda message: None), ([], 8))
        self.assertEqual(tried, [room, None])
        first = Request(role="server", index=0, argv=["x"], log="x")
        with self.assertRaisesRegex(LaunchError, "its node is gone"):
            launcher.place(first, lambda: True, lambda message: None)
        self.assertEqual(tried, [room, None, None])

    def test_a_cluster_without_gpus_gives_cores(self):
        launcher, cluster = self.launcher(0)
        gang, said = self.gang(per_node=3), []

        def say(message):
            said.append(message)
            if "needs" in message:
                cluster.counts.append(0)

        room = launcher._find_room(gang, lambda: True, say)
        self.assertEqual((room.bundle, cluster.counts), ({"CPU": 3}, [0, 0]))
        self.assertRegex(said[-1], "^no node has a GPU: learner is on CPUs .*`learner.device: cuda`")


class TestBench(ClusterCase):
    """How `bench/kills.py` finds the remains of a run."""

    def test_agents_and_guards_are_found(self):
        spec = importlib.util.spec_from_file_location("kills", PACKAGE.parent / "bench" / "kills.py")
        kills = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kills)
        launcher = self.launcher(**{kills.MARK: str(self.folder)})
        self.up(launcher, per_node=1)
        launcher.wait("ready")
        rank = int(self.lines("ranks", 1)[0][0])
        agent = int(pathlib.Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[1])
        found = set(kills.left_over(self.folder))
        self.assertLessEqual({launcher.process.pid, agent, *self.pids()}, found)
        # And the agent's guard.
        self.assertEqual(len(found), 5)
        launcher.process.kill()
        self.assertEqual(kills.wait_for_none(self.folder, PATIENCE), [])


class TestWithoutRay(ClusterCase):
    """The launcher on an interpreter that has no Ray, and without a cluster."""

    def without_cluster(self, *arguments, **surroundings):
        ray, path = self.folder / "ray", f"{self.folder}{os.pathsep}{PACKAGE}"
        (ray / "util").mkdir(parents=True)
        (ray / "__init__.py").write_text(RAY)
        (ray / "util" / "__init__.py").write_text("")
        strategies = "NodeAffinitySchedulingStrategy = PlacementGroupSchedulingStrategy = None\n"
        (ray / "util" / "scheduling_strategies.py").write_text(strategies)
        surroundings = {"PYTHONPATH": path, "CLUSTER": str(self.folder / "cluster"), **surroundings}
        return self.launcher("--launcher", "ray", *arguments, **surroundings)

    def test_a_cluster_that_comes_back_is_waited_for(self):
        launcher = self.without_cluster("--wait", "30")
        waiting = launcher.wait("log")["message"]
        self.assertEqual(waiting, "no Ray cluster answers: nobody is at home; it is waited for, for 30 s at most")
        (self.folder / "cluster").touch()
        launcher.wait("connected")
        self.assertEqual([event["event"] for event in launcher.seen], ["log", "connected"])
        self.assertEqual(launcher.close(), 0)

    def test_an_address_at_which_nobody_listens_is_told_at_once(self):
        (self.folder / "cluster").touch()
        with socket.create_server(("127.0.0.1", 0)) as held:
            address = f"127.0.0.1:{held.getsockname()[1]}"
            launcher = self.without_cluster("--address", address)
            launcher.wait("connected")
            launcher.close()
        shutil.rmtree(self.folder / "ray")
        launcher = self.without_cluster("--address", address)
        self.assertEqual(
            launcher.wait("error")["message"],
            f"no Ray cluster answers at {address}: [Errno 111] Connection refused",
        )

    def test_a_token_that_differs_is_told_at_once_with_the_fix(self):
        # Ray reports most of them only in its log.
        log = "gcs_client.cc:210: Failed to get cluster ID: Unauthenticated: RPC error: it is incorrect\\n"
        logged = f"os.write(2, b'{log}') and ConnectionError('Failed to connect')"
        for error in ("AuthenticationError('it is incorrect')", logged):
            with self.subTest(error):
                launcher = self.without_cluster("--wait", "600", "--address", "auto", TROUBLE=error)
                told = launcher.wait("error")
                self.assertIn("the Ray cluster wants a token that this process does not send: ", told["message"])
                self.assertIn("it is incorrect", told["message"])
                self.assertIn("RAY_AUTH_MODE=token", told["hint"])
                self.assertIn("copy its ~/.ray/auth_token", told["hint"])
                self.assertIn("RAY_AUTH_MODE=disabled", told["hint"])
                self.assertEqual(launcher.process.wait(PATIENCE), 1)
                shutil.rmtree(self.folder / "ray")

    def test_a_cluster_that_is_half_dead_is_waited_for(self):
        launcher = self.without_cluster("--wait", "30", TROUBLE="KeyError('node_ip_address')")
        self.assertIn("no Ray cluster answers: KeyError: 'node_ip_address'; it is waited", launcher.wait("log")["message"])
        (self.folder / "cluster").touch()
        launcher.wait("connected")
        self.assertEqual(launcher.close(), 0)

    def test_a_launcher_whose_run_is_gone_waits_no_longer(self):
        launcher = self.without_cluster("--wait", "600")
        launcher.wait("log")
        self.assertEqual(launcher.close(), 0)

    def test_a_cluster_that_does_not_come_is_told(self):
        for arguments in ((), ("--wait", "1")):
            with self.subTest(arguments):
                launcher = self.without_cluster(*arguments)
                self.assertIn("no Ray cluster answers: nobody is at home", launcher.wait("error")["message"])
                self.assertEqual(launcher.process.wait(PATIENCE), 1)
                shutil.rmtree(self.folder / "ray")

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
