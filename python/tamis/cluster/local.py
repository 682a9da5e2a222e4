"""Places on this machine, and its GPUs."""

import os
import shutil
import subprocess
import threading

from .channel import Channel
from .request import LaunchError


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
        """Why nothing is heard from it any more."""
        return "the agent that started it was ended"


def find_gpus():
    """The GPUs of this machine that may be used, as `CUDA_VISIBLE_DEVICES` names them."""
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


class LocalLauncher:
    """Hands out this machine's GPUs."""

    # What it starts is reached by a socket in the file system.
    is_local = True

    def __init__(self, gpus=None):
        self._gpus = find_gpus() if gpus is None else gpus
        # It stays theirs when their processes end: new ones come into it, and others may share it.
        self._taken = {}
        self._lock = threading.Lock()

    def place(self, request, is_wanted, say):
        """The places of a gang or a server, and the number of its processes at each of them."""
        if request.nodes > 1:
            raise LaunchError(
                f"{request.nodes} nodes are asked for, and this launcher starts processes on one machine",
                "set `cluster.launcher: ray`, or `learner.nodes: 1`",
            )
        with self._lock:
            gpus = self._take(request)
            self._taken[request.role, request.index] = gpus or []
        return [Place(gpus)], (len(gpus) if gpus else request.per_node or 1) if request.is_gang else 1

    def _take(self, request):
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
        taken = {
            gpu
            for owner, gpus in self._taken.items()
            if owner != (request.role, request.index)
            for gpu in gpus
        }
        free = [gpu for gpu in self._gpus if gpu not in taken]
        wanted = request.gpus_per_node([len(self._gpus)])
        if len(free) < wanted:
            raise LaunchError(
                f"{request.name} is to have {wanted} GPUs: {len(self._gpus)} are there, {len(free)} of them free",
                "lower `learner.gpus_per_node` or `rollout.launch.replicas`, have learner and servers share GPUs "
                "(`cluster.colocate: true`), or see what `CUDA_VISIBLE_DEVICES` names",
            )
        return free[:wanted]

    def close(self):
        """Nothing is left to give back."""
