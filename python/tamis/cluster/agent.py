"""The processes of a gang or a server at one place. An agent starts them, reports their output and their ends, and ends
them when its own input ends.

It exchanges lines of JSON on its standard streams. It first sends `hello` (free ports, a private folder), then accepts
`start` and `end`. It needs only the standard library, and is run as a file.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

# Seconds between two checks whether a process answers.
LOOK_EVERY = 0.1
# The same for a process that has answered before.
WATCH_EVERY = 3.0
# Longest time for one check.
LOOK_TIMEOUT = 5.0
# Seconds that processes get to end by themselves.
GRACE = 5.0
# Most characters of an output line that are passed on.
LONGEST_LINE = 8192
# A socket's path has at most 107 bytes.
LONGEST_FOLDER = 90


def describe(code):
    """How a process ended, in tamis's words."""
    if code >= 0:
        return f"exit status: {code}"
    try:
        return f"signal: {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal: {-code}"


def kill_group(group, number):
    """Sends a signal to everything left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def answers(url, path):
    """Whether a server answers at this address."""
    try:
        if url.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(LOOK_TIMEOUT)
                probe.connect(url.removeprefix("unix:"))
            return True
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(url + path, timeout=LOOK_TIMEOUT) as answer:
            return answer.status == 200
    except (OSError, urllib.error.HTTPError, ValueError):
        return False


def begin_guard(folders):
    """Starts a guard, a process that cleans up after an agent that is killed: it ends process groups, as the agent
    names them, and removes folders. It has no parent, because Ray kills the children of a worker one by one.
    Returns the pipe for the names.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child > 0:
        os.close(reading)
        os.waitpid(child, 0)
        return os.fdopen(writing, "w", buffering=1)
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.close(writing)
    # Readers of the agent's output must not wait for the guard.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    groups = set()
    with os.fdopen(reading) as named:
        for line in named:
            sign, group = line.split()
            (groups.add if sign == "+" else groups.discard)(int(group))
    for group in groups:
        kill_group(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class Agent:
    """What one agent started."""

    def __init__(self):
        self._writing = threading.Lock()
        self._processes = {}
        self._watches = []
        folder = tempfile.mkdtemp(prefix="tamis-")
        if len(folder) > LONGEST_FOLDER:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="tamis-", dir="/tmp")
        self.folder = pathlib.Path(folder)
        # Also its program, if it has a copy for itself.
        self._guard = begin_guard([folder, *sys.argv[1:]])
        # Ports stay bound until they are needed, so that no other process gets them.
        self._held = [socket.create_server(("", 0)) for _ in range(2)]

    def say(self, event, **values):
        """Sends an event to the launcher. If the launcher is gone, the end of the input ends this agent."""
        line = json.dumps({"event": event, **values}) + "\n"
        with self._writing:
            try:
                sys.stdout.write(line)
                sys.stdout.flush()
            except BrokenPipeError:
                # The rest of the line would be written again at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def hello(self):
        """The place: host, ports and folder."""
        ports = [held.getsockname()[1] for held in self._held]
        host, folder = socket.gethostname(), str(self.folder)
        self.say("hello", pid=os.getpid(), host=host, ports=ports, folder=folder, python=sys.executable)

    def start(self, processes, folder=None, key=None, ready=None):
        """Starts processes; `ready` has the rank that must answer, its URL, and the path to request."""
        for held in self._held:
            held.close()
        if key is not None:
            # For programs that read only the key, and for those that read a configuration.
            for name, text in (("key", key), ("key.yaml", f"api-key: {key}\n")):
                with open(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(text)
        for process in processes:
            self._start(folder=folder if folder and os.path.isdir(folder) else str(self.folder), **process)
        if ready is not None:
            threading.Thread(target=self._await, kwargs=ready, daemon=True).start()

    def _start(self, rank, argv, environment, folder, package=False):
        variables = {**os.environ, **environment}
        if package:
            root = str(pathlib.Path(__file__).resolve().parents[2])
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [root, variables.get("PYTHONPATH")]))
            # A file in the working folder must not hide a module of the package.
            variables["PYTHONSAFEPATH"] = "1"
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            self.say("exit", rank=rank, pid=None, exit=f"cannot start `{argv[0]}`: {error.strerror}")
            return
        self._guard.write(f"+ {process.pid}\n")
        self._processes[rank] = process
        self.say("started", rank=rank, pid=process.pid)
        reading = threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True)
        reading.start()
        watch = threading.Thread(target=self._watch, args=(rank, process, reading), daemon=True)
        watch.start()
        self._watches.append(watch)

    def _read(self, rank, output):
        for line in iter(lambda: output.readline(LONGEST_LINE), b""):
            self.say("output", rank=rank, text=line.decode(errors="replace").rstrip("\r\n"))

    def _watch(self, rank, process, reading):
        # Its workers would keep their GPU. They are ended at once, while the group still has its number.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kill_group(process.pid, signal.SIGKILL)
        self._guard.write(f"- {process.pid}\n")
        reading.join(1.0)
        self.say("exit", rank=rank, pid=process.pid, exit=describe(process.wait()))

    def _await(self, rank, url, path, silence=None):
        process, heard = self._processes.get(rank), None
        while process is not None and process.returncode is None:
            if answers(url, path):
                if heard is None:
                    self.say("ready")
                heard = time.monotonic()
            elif heard is not None and time.monotonic() - heard >= silence:
                self.say("output", rank=rank, text=f"no health check was answered for {silence:g} s: it is ended")
                kill_group(process.pid, signal.SIGKILL)
                return
            if heard is None:
                time.sleep(LOOK_EVERY)
            elif silence is None:
                return
            else:
                time.sleep(min(WATCH_EVERY, silence / 4))

    def end(self, grace=GRACE):
        """Asks all processes to end, and kills those that do not in time."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, GRACE)):
            deadline = time.monotonic() + patience
            for process, watch in zip(self._processes.values(), self._watches, strict=True):
                if watch.is_alive():
                    kill_group(process.pid, number)
            for watch in self._watches:
                watch.join(max(0.0, deadline - time.monotonic()))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.say("ended")


class _Asked(BaseException):
    """A signal asked the agent to end."""


def _ask(*_):
    raise _Asked


def main():
    """Carries out commands until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ask)
    agent = Agent()
    grace = GRACE
    try:
        agent.hello()
        for line in sys.stdin:
            message = json.loads(line)
            if message.pop("do") == "end":
                grace = message["grace"]
                break
            agent.start(**message)
    except _Asked:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        agent.end(grace)


if __name__ == "__main__":
    main()
