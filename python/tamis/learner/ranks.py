"""Several ranks as one learner: processes, each with a part of the weights, that carry out every call together.

    controller --HTTP--> rank 0 --gloo--> ranks 1, 2, ...      calls out, outcomes back
                         rank 0 <--TCP--- ranks 1, 2, ...      signs of life, on threads of their own

Ranks find each other as torchrun has it, by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Passes and
steps meet in collective operations, of which none can be broken off: where a rank is gone or stands still, the others
wait in one for ever. So every rank shows that it is alive, and where one does not, rank 0 answers what is asked of it
with the error `lost`, and all processes end: whoever started them starts them again.
"""

import datetime
import hmac
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .device import is_out_of_memory
from .protocol import LearnerError

# What a process ends with whose gang is lost.
EXIT_LOST = 75
# Collective operations end when a rank is lost, and not by themselves.
_FOR_EVER = datetime.timedelta(days=365)
# Silences after which a rank takes rank 0 for lost, in heartbeats.
_SILENCES_OF_THE_FIRST = 3


class GangError(Exception):
    """The ranks did not find each other."""


def number_of_ranks():
    """How many ranks the environment tells of."""
    number = os.environ.get("WORLD_SIZE", "1")
    if not number.isascii() or not number.isdigit() or int(number) < 1:
        raise GangError(f"WORLD_SIZE is {number}, and must be a whole number from 1 on")
    return int(number)


@dataclass
class _Peer:
    """A rank as rank 0 knows it."""

    rank: int
    host: str
    pid: int
    heard: float
    connection: socket.socket | None = None

    def __str__(self):
        return f"rank {self.rank} ({self.host}, process {self.pid})"


class Ranks:
    """The ranks of which this process is one."""

    def __init__(self, number, rank, store, heartbeat):
        self.number, self.rank, self.heartbeat = number, rank, heartbeat
        self._store = store
        self._meshes = {}
        # Calls and outcomes go through a group of their own: passes never wait behind them.
        self._calls = dist.new_group(backend="gloo", timeout=_FOR_EVER)

    @classmethod
    def join(cls, heartbeat, startup_timeout):
        """Waits until all ranks are there."""
        number, rank = number_of_ranks(), _number("RANK")
        host, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT")
        if host is None:
            raise GangError("MASTER_ADDR is not set; torchrun sets it")
        if rank >= number:
            raise GangError(f"RANK is {rank}, and WORLD_SIZE {number}")
        if torch.cuda.is_available():
            torch.cuda.set_device(_number("LOCAL_RANK") % torch.cuda.device_count())
        timeout = datetime.timedelta(seconds=startup_timeout)
        # torchrun keeps the store itself.
        keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            store = dist.TCPStore(host, port, None, keeps, timeout, wait_for_workers=False)
            store = dist.PrefixStore(f"tamis/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            store.set(f"here/{rank}", f"{socket.gethostname()} {os.getpid()}")
            _wait_for_all(store, number, startup_timeout)
        except (RuntimeError, ValueError) as error:
            text = str(error).strip().splitlines()[0]
            raise GangError(f"rank {rank} did not find the others at {host}:{port} in {startup_timeout:g} s: {text}") from None
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=number, timeout=_FOR_EVER)
        return cls(number, rank, store, heartbeat)

    def mesh(self, device_type):
        """All ranks in a row, computing on devices of this type."""
        if device_type not in self._meshes:
            self._meshes[device_type] = dist.device_mesh.init_device_mesh(device_type, (self.number,))
        return self._meshes[device_type]

    def sum(self, value):
        """The sum of a number over all ranks, which all ask for it."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self._calls)
        return float(tensor)

    def agree(self, act):
        """What `act` gives on rank 0, or its error, on every rank."""
        outcome = [None]
        if self.rank == 0:
            try:
                outcome = [(act(), None)]
            except LearnerError as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, group=self._calls)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def tell(self, call):
        """Tells the others of a call."""
        dist.broadcast_object_list([call], group=self._calls)

    def hear(self):
        """The next call that rank 0 tells of."""
        call = [None]
        dist.broadcast_object_list(call, group=self._calls)
        return call[0]

    def gather(self, outcome):
        """The outcomes of all ranks, on rank 0."""
        outcomes = [None] * self.number if self.rank == 0 else None
        dist.gather_object(outcome, outcomes, group=self._calls)
        return outcomes


def _number(name):
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise GangError(f"{name} is {text or 'not set'}, and must be a whole number; torchrun sets it")
    return int(text)


def _wait_for_all(store, number, seconds):
    until = time.monotonic() + seconds
    missing = list(range(number))
    while missing:
        missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        if missing and time.monotonic() > until:
            here = [f"{rank} ({store.get(f'here/{rank}').decode()})" for rank in range(number) if rank not in missing]
            names = ", ".join(map(str, missing))
            raise ValueError(f"missing are the ranks {names}; here are {', '.join(here)}")
        if missing:
            time.sleep(0.05)


# The first rank


class Gang:
    """The learner of rank 0 together with those of the other ranks, called as one."""

    def __init__(self, learner, ranks):
        self._learner, self.ranks = learner, ranks
        self.num_ranks = ranks.number
        self.calls = {path: lambda *asked, path=path: self._call(path, *asked) for path in learner.calls}

    def open(self, settings, columns):
        """As that of a learner."""
        return self.calls["/v1/open"](settings, columns)

    def _call(self, path, settings, columns):
        self.ranks.tell((path, settings, columns))
        outcome = carry_out(self._learner, path, settings, columns)
        outcomes = self.ranks.gather(outcome)
        errors = [(rank, one.error) for rank, one in enumerate(outcomes) if one.error is not None]
        if errors:
            rank, error = errors[0]
            if len(errors) < len(outcomes):
                # Those that had none have changed what they hold.
                error.message = f"{error.message} (rank {rank})"
            raise error
        return _join(path, outcomes)

    def __getattr__(self, name):
        return getattr(self._learner, name)


@dataclass
class _Outcome:
    """What a call came to on one rank."""

    values: dict | None = None
    columns: dict | None = None
    error: LearnerError | None = None
    # Seconds that it computed; `None` where that is not known.
    seconds: float | None = None


def carry_out(learner, path, settings, columns):
    """Carries a call out on this rank."""
    began = time.process_time()
    try:
        values, columns = learner.calls[path](settings, columns)
        learner.wait()
    except LearnerError as error:
        return _Outcome(error=error)
    # A GPU's work is none of the process's, and waiting for the others on a CPU is none, too.
    on_cpu = learner.computes_on_cpu
    seconds = (time.process_time() - began) / torch.get_num_threads() if on_cpu else None
    return _Outcome(values, {name: one.cpu() for name, one in columns.items()}, None, seconds)


# Calls that say how long each rank computed.
_PASSES = ("/v1/forward", "/v1/forward_hold", "/v1/backward")


def _join(path, outcomes):
    """One answer of all ranks: columns of tokens one after the other, everything else as the first has it."""
    first = outcomes[0]
    values, columns = dict(first.values), dict(first.columns)
    for name in columns:
        if name in ("logprob", "entropy", "value"):
            columns[name] = torch.cat([one.columns[name] for one in outcomes])
    if "not_finite" in values:
        values["not_finite"] = next((one.values["not_finite"] for one in outcomes if one.values["not_finite"]), None)
    seconds = [one.seconds for one in outcomes]
    if path in _PASSES and None not in seconds:
        values["rank_seconds"] = seconds
    return values, columns


class Watch:
    """Hears of the other ranks, and says when one is lost: `lost` is called with what is known, once."""

    def __init__(self, ranks, lost):
        self._ranks, self._lost, self._told = ranks, lost, threading.Lock()
        now = time.monotonic()
        own = _Peer(0, socket.gethostname(), os.getpid(), now)
        self._peers = [own]
        for rank in range(1, ranks.number):
            host, pid = ranks._store.get(f"here/{rank}").decode().split(" ")
            self._peers.append(_Peer(rank, host, int(pid), now))
        self._secret = secrets.token_hex(16)
        self._server = socket.create_server(("", 0))
        host = os.environ["MASTER_ADDR"] if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" else socket.gethostname()
        ranks._store.set("watch", f"{host} {self._server.getsockname()[1]} {self._secret}")
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._look, daemon=True).start()

    def describe(self):
        """Each rank with its host, its process, and the age of its last sign of life."""
        self._peers[0].heard = time.monotonic()
        return [
            {"rank": one.rank, "host": one.host, "pid": one.pid, "age_seconds": time.monotonic() - one.heard}
            for one in self._peers
        ]

    def _accept(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection):
        connection.settimeout(self._ranks.heartbeat)
        peer, ended, full_at = None, "its connection broke", None
        try:
            with connection.makefile("rw") as lines:
                secret, _, rank = lines.readline().strip().partition(" ")
                if not hmac.compare_digest(secret, self._secret) or not rank.isdigit() or not 0 < int(rank) < len(self._peers):
                    return
                peer = self._peers[int(rank)]
                peer.connection = connection
                while line := lines.readline():
                    peer.heard = time.monotonic()
                    said = json.loads(line)
                    if said:
                        ended, full_at = said
                        break
                    lines.write("0\n")
                    lines.flush()
                else:
                    ended = "it ended"
        except TimeoutError:
            ended = f"it has given no sign of life for {self._ranks.heartbeat:g} s"
        except (OSError, ValueError):
            pass
        if peer is not None:
            self._tell(f"{peer} is lost: {ended}", full_at)

    def _look(self):
        """A rank that has not connected gives no sign of life, either."""
        time.sleep(max(30.0, self._ranks.heartbeat))
        for peer in self._peers[1:]:
            if peer.connection is None:
                self._tell(f"{peer} is lost: it has given no sign of life since it began")

    def lose(self, what, full_at=None):
        """Says that this rank goes no further, unless it is another one's loss that shows here first.

        `full_at`: the call for which there was not enough memory.
        """
        threading.Timer(self._ranks.heartbeat, self._tell, (what, full_at)).start()

    def _tell(self, what, full_at=None):
        if self._told.acquire(blocking=False):
            self._lost(what, full_at)


# The other ranks


def follow(learner, ranks):
    """Carries out what rank 0 is asked for, until it ends."""
    # No wait of PyTorch hears of a signal: the system's own answer to one ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pulse = _Pulse(ranks)
    while (call := pulse.unless_lost(ranks.hear)) is not None:
        try:
            outcome = carry_out(learner, *call)
        except Exception as error:
            # The others wait for this rank in the middle of the call.
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            pulse.fail(text, call[0] if is_out_of_memory(error) else None)
            raise
        pulse.unless_lost(lambda: ranks.gather(outcome))


class _Pulse:
    """Shows rank 0 that this one is alive, and ends the process where rank 0 is not."""

    def __init__(self, ranks):
        self._ranks = ranks
        host, port, secret = ranks._store.get("watch").decode().split(" ")
        self._connection = socket.create_connection((host, int(port)), timeout=30.0)
        self._connection.settimeout(_SILENCES_OF_THE_FIRST * ranks.heartbeat)
        self._lines = self._connection.makefile("rw")
        self._write = threading.Lock()
        self._say(f"{secret} {ranks.rank}\n")
        threading.Thread(target=self._beat, daemon=True).start()

    def _say(self, line):
        with self._write:
            self._lines.write(line)
            self._lines.flush()

    def _beat(self):
        why = "ended"
        try:
            while True:
                self._say("0\n")
                if not self._lines.readline():
                    break
                time.sleep(self._ranks.heartbeat / 4)
        except TimeoutError:
            why = f"has given no sign of life for {_SILENCES_OF_THE_FIRST * self._ranks.heartbeat:g} s"
        except (OSError, ValueError):
            why = "is gone"
        print(f"rank {self._ranks.rank} ends: rank 0 {why}", file=sys.stderr, flush=True)
        os._exit(EXIT_LOST)

    def unless_lost(self, act):
        """What `act` gives, which waits for rank 0. Where that is gone, the thread that listens to it says so."""
        try:
            return act()
        except RuntimeError:
            time.sleep(2 * _SILENCES_OF_THE_FIRST * self._ranks.heartbeat)
            raise

    def fail(self, what, full_at):
        """Says why this rank goes no further, and for which call it had not enough memory."""
        self._say(json.dumps([what, full_at]) + "\n")


__all__ = ["EXIT_LOST", "Gang", "GangError", "Ranks", "Watch", "follow", "number_of_ranks"]
