"""The processes of a gang or a server at one place: a program that starts them, tells what they write and how they
end, and ends them where its own input ends.

Lines of JSON on its standard streams. First it says where it is (`hello`: ports that are free, a folder for it alone);
then it takes `start` and `end`. It needs the standard library alone, and is run as a file.
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

# Seconds between two looks at whether a process answers.
LOOK_EVERY = 0.1
# The same of one that has answered before.
WATCH_EVERY = 3.0
# Longest time for one such look.
LOOK_TIMEOUT = 5.0
# Seconds in which processes end that are asked to.
GRACE = 5.0
# Most characters of a line of output that are passed on.
LONGEST_LINE = 8192
# A socket's path has at most 107 bytes.
LONGEST_FOLDER = 90


def describe(code):
    """How a process ended, in the words of the rest of tamis."""
    if code >= 0:
        return f"exit status: {code}"
    try:
        return f"signal: {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal: {-code}"


def kill_group(group, number):
    """Sends a signal to all that is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def answers(url, path):
    """Whether something answers there."""
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
    """A process that ends what an agent leaves behind which is killed: process groups, as the agent names them, and
    folders. It is nobody's child, for Ray kills the children of a worker one by one. Returns where they are named.
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
    # Whoever waits for the end of the agent's output is not to wait for this one.
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
        # That of its program, too, where it has one for itself.
        self._guard = begin_guard([folder, *sys.argv[1:]])
        # They are held until they are needed, so that nobody else is given them.
        self._held = [socket.create_server(("", 0)) for _ in range(2)]

    def say(self, event, **values):
        """Tells the launcher; one that is gone ends this agent by the end of its input."""
        line = json.dumps({"event": event, **values}) + "\n"
        with self._writing:
            try:
                sys.stdout.write(line)
                sys.stdout.flush()
            except BrokenPipeError:
                # What is left of the line would be tried again at the end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def hello(self):
        """Where it is."""
        ports = [held.getsockname()[1] for held in self._held]
        host, folder = socket.gethostname(), str(self.folder)
        self.say("hello", pid=os.getpid(), host=host, ports=ports, folder=folder, python=sys.executable)

    def start(self, processes, folder=None, key=None, ready=None):
        """Starts processes; `ready`: the rank that is to answer, its URL, and the path to ask for."""
        for held in self._held:
            held.close()
        if key is not None:
            # For programs that read the key alone, and for those that read a configuration.
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
            # A file of the working folder is no module of the package.
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
        # Its workers, which would keep their GPU, end with it: at once, while the group has its number.
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
        """Asks all processes to end, and ends them where they do not in time."""
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
    """Carries out what comes in, until that ends."""
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
