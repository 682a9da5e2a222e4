"""Places on this machine, and its GPUs."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
from urllib.parse import quote

from .channel import Channel
from .request import LaunchError


# Seconds between two checks of GPUs that other runs have.
LOOK_EVERY = 0.5


class Place:
    """A place for processes on this machine."""

    address = "127.0.0.1"

    def __init__(self, gpus):
        self.gpus = gpus
        self._channel = Channel()
        self.hello = self._channel.hello
        self.name = self.hello["host"]
        self.send, self.receive, self.close = self._channel.send, self._channel.receive, self._channel.close

    def describe_end(self):
        """Why nothing comes from it any more."""
        return "the agent that started it was ended"


def find_gpus():
    """The usable GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.split()


class AllTaken(LaunchError):
    """Other runs have all GPUs."""


def find_names():
    """The UUID of each GPU by its number; empty without `nvidia-smi`."""
    asked = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(line.split(", ", 1) for line in found.splitlines() if ", " in line)


class Claims:
    """GPUs that this launcher holds, against other runs of this user on this machine: a lock on a file for each GPU,
    which the system releases with the process.
    """

    def __init__(self):
        self._folder = pathlib.Path(tempfile.gettempdir()) / f"tamis-gpus-{os.getuid()}"
        self._held = {}
        # Jobs and containers that see other GPUs use the same numbers.
        self._names = find_names()

    def has(self, gpu):
        """Whether this launcher holds it."""
        return gpu in self._held

    def take(self, gpu):
        """Takes it, unless another launcher holds it. Returns whether it did."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            name = self._names.get(gpu, gpu)
            file = os.open(self._folder / quote(name, safe=""), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            # If no file can be written, other runs are unknown.
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)
        self._held[gpu] = file
        return True

    def give_back(self, gpus):
        """Releases them."""
        for gpu in gpus:
            if gpu in self._held:
                os.close(self._held.pop(gpu))


class LocalLauncher:
    """Hands out this machine's GPUs."""

    # Processes are reached by a socket in the file system.
    is_local = True

    def __init__(self, gpus=None):
        self._gpus = find_gpus() if gpus is None else gpus
        # GPUs stay with a group when its processes end: new ones will use them, and others may share them.
        self._taken = {}
        self._claims = Claims()
        self._lock = threading.Lock()

    def look(self):
        """Nothing: the run reads this machine itself."""
        raise LaunchError("only the machines of a Ray cluster are looked at", "take `tamis` from the same build")

    def place(self, request, is_wanted, say):
        """The places of a gang or a server, and the number of its processes at each."""
        if request.nodes > 1:
            raise LaunchError(
                f"{request.nodes} nodes are asked for, and this launcher starts processes on one machine",
                "set `cluster.launcher: ray`, or `learner.nodes: 1`",
            )
        gpus = self._wait(request, is_wanted, say)
        return [Place(gpus)], (len(gpus) if gpus else request.per_node or 1) if request.is_gang else 1

    def _wait(self, request, is_wanted, say):
        is_told = False
        while True:
            try:
                with self._lock:
                    gpus = self._take(request, say)
                    self._taken[request.role, request.index] = gpus or []
                    return gpus
            except AllTaken as error:
                # They may belong to a run that is about to end.
                if not is_wanted():
                    raise
                if not is_told:
                    say(f"waiting for GPUs: {error}")
                    is_told = True
            time.sleep(LOOK_EVERY)

    def _take(self, request, say):
        if request.device == "cpu" or (request.device == "auto" and not self._gpus):
            return None
        if request.share is not None:
            shared, each = self._taken.get((request.share, 0), []), request.per_node or 1
            gpus = shared[request.index * each : (request.index + 1) * each]
            if len(gpus) < each:
                raise LaunchError(
                    f"{request.name} is to have {each} of the GPUs of {request.share}, which has {len(shared)} and "
                    f"shares them with others of its kind",
                    "lower `rollout.launch.replicas` or `rollout.launch.tensor_parallel`",
                )
            return gpus
        before = self._taken.get((request.role, request.index))
        if before and request.per_node in (None, len(before)):
            # Others may share them.
            return before
        taken = {
            gpu
            for owner, gpus in self._taken.items()
            if owner != (request.role, request.index)
            for gpu in gpus
        }
        left = [gpu for gpu in self._gpus if gpu not in taken]
        free, others, held = [], [], [gpu for gpu in left if self._claims.has(gpu)]
        for gpu in left:
            # No more than it needs: another launcher may be looking for GPUs now.
            if request.per_node is not None and len(free) == request.per_node:
                break
            (free if gpu in held or self._claims.take(gpu) else others).append(gpu)
        ours = len(self._gpus) - len(others)
        wanted = request.gpus_per_node([ours])
        if request.per_node is not None:
            if len(free) < wanted <= len(left):
                shared = others[: wanted - len(free)]
                say(f"{request.name} shares GPUs with other runs on this machine: {', '.join(shared)}")
                free += shared
        elif others:
            theirs = ", ".join(others)
            # One for it, and those of other groups of its run.
            if not free or ours < min(1 + request.reserve, len(self._gpus)):
                # Two waiting groups must not hold what the other needs.
                self._claims.give_back([gpu for gpu in free if gpu not in held])
                beside = f" beside {request.reserve} for others" if request.reserve else ""
                raise AllTaken(
                    f"{request.name} is to have all GPUs that are free{beside}, and other runs on this machine have {theirs}",
                    "wait until they end, or set the number of GPUs to share with them (`learner.gpus_per_node`)",
                )
            say(f"{request.name} has {wanted} of {len(self._gpus)} GPUs: other runs on this machine have {theirs}")
        if len(free) < wanted:
            raise LaunchError(
                f"{request.name} is to have {wanted} GPUs: {len(self._gpus)} are there, {len(free)} of them free",
                "lower `learner.gpus_per_node` or `rollout.launch.replicas`, have learner and servers share GPUs "
                "(`cluster.colocate: true`), or check `CUDA_VISIBLE_DEVICES`",
            )
        return free[:wanted]

    def close(self):
        """There is nothing to return."""
