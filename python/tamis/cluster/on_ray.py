"""Places on the nodes of a Ray cluster, by placement groups.

A place is an actor that writes this package into a folder of its node and starts the agent there, so the program needs
no shared file system. Ray carries only commands and output, never training data.
"""

import contextlib
import os
import pathlib
import queue
import socket
import sys
import tempfile
import threading
import time
from collections import deque

from .agent import GRACE
from .request import Abandoned, LaunchError

# The tested version.
TESTED = "2.60.0"
# Seconds of waiting for room after which it is first reported; then again whenever they have doubled.
PATIENCE = 5.0
# Seconds between two attempts to get room.
LOOK_EVERY = 1.0
# Longest time for a cluster's head to take a connection.
CONNECT_TIMEOUT = 5.0
# Longest time for the nodes to describe themselves.
LONGEST_LOOK = 120.0


# Since Ray 2.60 a cluster wants a token as soon as its head has the file, but a process that joins by an address sends
# none.
TOKEN_HINT = (
    "set RAY_AUTH_MODE=token for the run and for every node, and give all of them the token of the head: copy its "
    "~/.ray/auth_token, or name the file in RAY_AUTH_TOKEN_PATH; a cluster without tokens is started with "
    "RAY_AUTH_MODE=disabled"
)


def find_token_trouble(error, said):
    """What a failed attempt to connect reveals about a token. Ray raises an error of its own only in some cases;
    otherwise it writes the reason to standard error.
    """
    if type(error).__name__ == "AuthenticationError":
        # Ray's text ends in a hint that omits the mode.
        return first_line(getattr(error, "message", error))
    for line in f"{error}\n{said}".splitlines():
        _, found, reason = line.partition("Unauthenticated: ")
        if found:
            return reason.strip()
    return None


@contextlib.contextmanager
def overhear():
    """Collects what is written to standard error in this context, and still writes it there. The list is filled at the
    end.
    """
    heard = []
    with tempfile.TemporaryFile() as file:
        own = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(own, 2)
            file.seek(0)
            said = file.read()
            heard.append(said.decode(errors="replace"))
            while said:
                said = said[os.write(own, said) :]
            os.close(own)


def knock(address):
    """Checks that a cluster's address accepts connections, if it is known. Ray itself would try for minutes, and handle
    no signal meanwhile.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()


def _make_node(ray):
    """The class of a place's actor. A class that a function returns is sent to the node as it is, whatever is
    installed.
    """

    class Node:
        def __init__(self, files):
            folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-program-"))
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
            sys.path.insert(0, str(folder))
            from tamis.cluster.channel import Channel

            self._channel = Channel(program=folder)
            self._said = queue.SimpleQueue()
            threading.Thread(target=self._pump, daemon=True).start()

        def _pump(self):
            message = self._channel.hello
            while message is not None:
                message = self._channel.receive()
                self._said.put(message)

        def identify(self):
            context = ray.get_runtime_context()
            return {
                "address": ray.util.get_node_ip_address(),
                "node": context.get_node_id(),
                "gpus": [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])],
                "hello": self._channel.hello,
            }

        def send(self, message):
            self._channel.send(message)

        def receive(self):
            try:
                said = [self._said.get(timeout=LOOK_EVERY)]
            except queue.Empty:
                return []
            while not self._said.empty():
                said.append(self._said.get())
            return said

        def close(self, grace):
            self._channel.close(grace)

    return Node


def _make_look():
    """The function by which a node describes itself, sent to the node as it is."""

    def look():
        import shutil
        import subprocess

        memory, gpus = None, []
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    memory = int(line.split()[1]) * 1024
        program = shutil.which("nvidia-smi")
        if program is not None:
            query = "--query-gpu=index,memory.total,memory.used,name"
            command = [program, query, "--format=csv,noheader,nounits"]
            try:
                found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
            except (OSError, subprocess.SubprocessError):
                found = ""
            for line in found.splitlines():
                number, total, used, name = (part.strip() for part in line.split(",", 3))
                if total.isdigit() and used.isdigit():
                    gpus.append({"id": number, "name": name, "memory": int(total) << 20, "used": int(used) << 20})
        return {"memory": memory, "gpus": gpus}

    return look


class Place:
    """A place on a node."""

    def __init__(self, ray, actor, identity, gpus):
        self._ray, self._actor = ray, actor
        self.gpus = gpus if gpus is not None else identity["gpus"] or None
        self.address, self.hello = identity["address"], identity["hello"]
        self.name = f"{self.address} (Ray node {identity['node'][:12]})"
        self._said = deque()
        self._end = "its agent was ended"

    def send(self, message):
        """Sends the agent a command."""
        self._actor.send.remote(message)

    def receive(self):
        """Waits for the agent's next message; `None` once it has ended, or its node is gone."""
        while not self._said:
            try:
                self._said.extend(self._ray.get(self._actor.receive.remote()))
            except self._ray.exceptions.RayError as error:
                self._end = f"its actor is gone: {first_line(error)}"
                return None
        return self._said.popleft()

    def describe_end(self):
        """Why nothing comes from it any more."""
        return self._end

    def close(self, grace):
        """Ends everything there."""
        try:
            self._ray.get(self._actor.close.remote(grace), timeout=grace + 3 * GRACE)
        except self._ray.exceptions.RayError:
            # The agent ends everything when its actor is gone.
            pass
        self._ray.kill(self._actor)


class RayLauncher:
    """Requests room from Ray."""

    is_local = False

    def __init__(self, address, wait, is_wanted, say):
        """`wait`: seconds for which the cluster may be unavailable."""
        # Each attempt takes 40 s. Ray reads their number when it is imported.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        try:
            import ray
            from ray import util
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
        except ImportError as error:
            raise LaunchError(
                f"{sys.executable} has no Ray ({error})", f"{sys.executable} -m pip install 'ray=={TESTED}'"
            ) from None
        self._ray, self._util = ray, util
        self._strategy, self._on_node = PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy
        self._connect(address, wait, is_wanted, say)
        root = pathlib.Path(__file__).parents[1]
        files = {f"tamis/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*.py")}
        self._files = ray.put(files)
        self._node = ray.remote(_make_node(ray))
        # Room that was found. It outlives its processes: others may share it, and new ones will use it.
        self._rooms = {}
        # Decisions for groups that had room once.
        self._decided = {}

    def _connect(self, address, wait, is_wanted, say):
        deadline, is_told = time.monotonic() + wait, False
        while True:
            try:
                heard = []
                knock(address)
                with overhear() as heard:
                    self._ray.init(address=address, log_to_driver=False, logging_level="warning")
                return
            except Exception as error:
                # A cluster that is half dead raises errors of many kinds.
                where = f" at {address}" if address != "auto" else ""
                token_trouble = find_token_trouble(error, "".join(heard))
                if token_trouble is not None:
                    # Waiting does not help.
                    message = f"the Ray cluster{where} wants a token that this process does not send: {token_trouble}"
                    raise LaunchError(message, TOKEN_HINT) from None
                is_usual = isinstance(error, ConnectionError | RuntimeError | ValueError | OSError)
                kind = "" if is_usual else f"{type(error).__name__}: "
                trouble = f"no Ray cluster answers{where}: {kind}{first_line(error)}"
            # Remains of the attempt would disturb the next.
            self._ray.shutdown()
            if time.monotonic() >= deadline:
                raise LaunchError(
                    trouble,
                    "start one (`ray start --head`), name its address (`cluster.address`, `RAY_ADDRESS`), or start the "
                    "run on a node of it (`ray job submit`)",
                )
            if not is_told:
                say(f"{trouble}; it is waited for, for {wait:g} s at most")
                is_told = True
            if not is_wanted():
                raise Abandoned
            time.sleep(LOOK_EVERY)

    def look(self):
        """The machines of the cluster. For one that does not answer in time, what Ray knows of it."""
        described = []
        ask = self._ray.remote(_make_look())
        for node in self._nodes():
            strategy = self._on_node(node["NodeID"], soft=False)
            asked = ask.options(num_cpus=0, scheduling_strategy=strategy, max_retries=0).remote()
            described.append((node, asked))
        self._ray.wait([asked for _, asked in described], num_returns=len(described), timeout=LONGEST_LOOK)
        machines = []
        for node, asked in described:
            try:
                found = self._ray.get(asked, timeout=0)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                print(f"{node['NodeManagerAddress']} does not describe itself: {first_line(error)}", file=sys.stderr)
                found = {"gpus": [], "memory": None}
            resources = node["Resources"]
            gpus, count = found["gpus"], int(resources.get("GPU", 0))
            if len(gpus) < count:
                # It does not report all of them.
                return []
            if len(gpus) > count:
                # Which of them Ray was given is unknown here.
                gpus = [{**gpu, "used": 0} for gpu in gpus[:count]]
            cores = int(resources.get("CPU", 0))
            machines.append({"name": node["NodeManagerAddress"], "cores": cores, "memory": found["memory"], "gpus": gpus})
        return machines

    def place(self, request, is_wanted, say):
        """The places of a gang or a server, and the number of its processes at each."""
        key = (request.role, request.index)
        before = self._rooms.get(key)
        try:
            return self._place(request, is_wanted, say)
        except LaunchError:
            if before is None or self._rooms.get(key) is not before:
                raise
        # A node of its previous room may be gone before Ray notices.
        self._util.remove_placement_group(self._rooms.pop(key).group)
        return self._place(request, is_wanted, say)

    def _place(self, request, is_wanted, say):
        if request.share is not None:
            room, offers = self._share(request)
        else:
            room = self._find_room(request, is_wanted, say)
            offers = [(index, room.bundle, None) for index in range(request.nodes)]
        actors = []
        try:
            for index, resources, _ in offers:
                strategy = self._strategy(room.group, placement_group_bundle_index=index)
                actors.append(
                    self._node.options(
                        num_cpus=resources.get("CPU", 0),
                        num_gpus=resources.get("GPU", 0),
                        scheduling_strategy=strategy,
                        max_concurrency=4,
                        max_restarts=0,
                    ).remote(self._files)
                )
            places = [
                Place(self._ray, actor, self._identify(request, actor, is_wanted), gpus)
                for actor, (_, _, gpus) in zip(actors, offers, strict=True)
            ]
        except BaseException:
            for actor in actors:
                self._ray.kill(actor)
            raise
        room.gpus = [place.gpus for place in places] if request.share is None else room.gpus
        return places, room.each if request.is_gang else 1

    def _identify(self, request, actor, is_wanted):
        asked = actor.identify.remote()
        while is_wanted():
            if self._ray.wait([asked], timeout=LOOK_EVERY)[0]:
                try:
                    return self._ray.get(asked)
                except self._ray.exceptions.RayError as error:
                    raise LaunchError(
                        f"the agent of {request.name} cannot be started: {first_line(error)}",
                        "more is in Ray's logs, in /tmp/ray/session_latest/logs of its node",
                    ) from None
        raise LaunchError(
            f"the agent of {request.name} did not come up within {request.startup_timeout:g} s",
            "more is in Ray's logs, in /tmp/ray/session_latest/logs of the head node",
        )

    def _nodes(self):
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _find_room(self, request, is_wanted, say):
        key = (request.role, request.index)
        room = self._rooms.get(key)
        if room is not None and self._is_there(room):
            return room
        if room is not None:
            # One of its nodes is gone: use others.
            self._util.remove_placement_group(self._rooms.pop(key).group)
        bundle, each = self._decide(request, is_wanted, say)
        strategy = "STRICT_SPREAD" if request.nodes > 1 else "STRICT_PACK"
        group = self._util.placement_group([bundle] * request.nodes, strategy=strategy)
        self._rooms[key] = _Room(group, bundle, each)
        try:
            needs = describe(bundle, request.nodes)
            self._wait(request, needs, lambda: group.wait(LOOK_EVERY), is_wanted, say)
        except BaseException:
            del self._rooms[key]
            # If the cluster is gone, so is the group.
            with contextlib.suppress(Exception):
                self._util.remove_placement_group(group)
            raise
        self._decided[_shape(request)] = bundle, each
        return self._rooms[key]

    def _decide(self, request, is_wanted, say):
        """What each node must provide, and the number of processes there. A group that is restarted gets what it had,
        because nodes may be missing then.
        """
        decided = self._decided.get(_shape(request))

        def look():
            nonlocal decided
            decided = decided or decide(request, [int(node["Resources"].get("GPU", 0)) for node in self._nodes()])
            if decided is None:
                time.sleep(LOOK_EVERY)
            return decided

        needs = f"{request.nodes} nodes with GPUs" if request.nodes > 1 else "a node with GPUs"
        needs += f" beside {request.reserve} GPUs for others" if request.reserve else ""
        self._wait(request, needs, look, is_wanted, say)
        if request.device == "auto" and "GPU" not in decided[0]:
            say(f"no node has a GPU: {request.name} is on CPUs (`learner.device: cuda` waits for nodes with GPUs)")
        return decided

    def _wait(self, request, needs, look, is_wanted, say):
        began, patience = time.monotonic(), PATIENCE
        while not look():
            lacking = f"{request.name} needs {needs}; {self._describe_cluster()}"
            if not is_wanted():
                raise LaunchError(
                    f"{lacking}: no room was found within {request.startup_timeout:g} s",
                    "add nodes, end what has the others, ask for less (`learner.nodes`, `learner.gpus_per_node`, "
                    "`rollout.launch`), have learner and servers share GPUs (`cluster.colocate`), or wait longer "
                    "(`learner.startup_timeout`, `rollout.launch.startup_timeout`)",
                )
            if time.monotonic() - began >= patience:
                patience *= 2
                say(f"waiting for room: {lacking}")

    def _is_there(self, room):
        found = self._util.placement_group_table(room.group)
        alive = {node["NodeID"] for node in self._nodes()}
        return found["state"] == "CREATED" and set(found["bundles_to_node_id"].values()) <= alive

    def _share(self, request):
        room = self._rooms.get((request.share, 0))
        if room is None or not room.gpus:
            raise LaunchError(f"{request.name} is to share GPUs of {request.share}, which is not up", "start it first")
        if not any(room.gpus):
            return room, [(request.index % len(room.gpus), {}, None)]
        each = request.per_node or 1
        offers = [
            (index, {}, gpus[first : first + each])
            for index, gpus in enumerate(room.gpus)
            for first in range(0, len(gpus) - each + 1, each)
        ]
        if request.index >= len(offers):
            raise LaunchError(
                f"{request.name} is to have {each} of the GPUs of {request.share} on one node, which are enough for "
                f"{len(offers)} of its kind",
                "lower `rollout.launch.replicas` or `rollout.launch.tensor_parallel`",
            )
        return room, [offers[request.index]]

    def _describe_cluster(self):
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        kinds = [f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s free" for kind in ("CPU", "GPU")]
        return f"the cluster has {' and '.join(kinds)}, on {len(self._nodes())} nodes"

    def close(self):
        """Returns all room."""
        for room in self._rooms.values():
            self._util.remove_placement_group(room.group)
        self._ray.shutdown()


class _Room:
    def __init__(self, group, bundle, each):
        self.group, self.bundle, self.each = group, bundle, each
        self.gpus = []


def _shape(request):
    """What a decision depends on, besides the nodes."""
    return request.role, request.index, request.device, request.nodes, request.per_node, request.reserve


def decide(request, counts):
    """What each node must provide, and the number of processes there, if enough nodes with GPUs are up; otherwise
    `None`.
    """
    counts_of_gpus = [count for count in counts if count > 0]
    if request.device == "auto" and not counts_of_gpus and len(counts) < request.nodes:
        return None
    if request.device == "cpu" or (request.device == "auto" and not counts_of_gpus):
        each = request.per_node or 1
        return {"CPU": each if request.is_gang else 1}, each
    # If others find no room beside one process on each node, nodes are still starting.
    if request.per_node is None and (
        len(counts_of_gpus) < request.nodes or sum(counts_of_gpus) < request.nodes + request.reserve
    ):
        return None
    each = request.gpus_per_node(counts_of_gpus)
    return {"GPU": each, "CPU": 1}, each


def describe(bundle, nodes):
    """The request, in words."""
    each = " and ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in bundle.items())
    return f"{nodes} nodes with {each} each" if nodes > 1 else f"a node with {each}"


def first_line(error):
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
