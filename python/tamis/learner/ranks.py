"""Several ranks as one learner: processes that each hold a part of the weights and carry out every call together.

    controller --HTTP--> rank 0 --gloo--> ranks 1, 2, ...      calls out, outcomes back
                         rank 0 <--TCP--- ranks 1, 2, ...      heartbeats, on threads of their own

Ranks find each other as torchrun has it, by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Passes and steps
contain collective operations that cannot be interrupted: if one rank is gone or hangs, the others wait in one for ever.
So every rank sends heartbeats with its progress. Rank 0 reports the gang as `lost` if a heartbeat stops, if ranks are
still in a call long after others have ended it, if they disagree about an error, or if a call times out. All processes
then end, to be restarted by whoever started them.
"""

import datetime
import hmac
import ipaddress
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
from .protocol import DiskError, LearnerError

# Exit code of a process whose gang is lost.
EXIT_LOST = 75
# Between two calls ranks wait as long as a run samples; heartbeats reveal a rank that ended.
_FOR_EVER = datetime.timedelta(days=365)
# Seconds that a rank may still be in a call that others have ended: a multiple of the time that it took, and a minimum.
_TIMES_LATER, _LEAST_LATER = 4.0, 30.0
# The same if a rank has ended it with an error: the others would otherwise get it too.
_AFTER_ERROR = 10.0
# Seconds that a pass may take: a multiple of the slowest so far for as much work, and a minimum.
_TIMES_SLOWEST, _LEAST_PASS = 20.0, 60.0
# Calls in which only rank 0 writes to a disk.
_OF_DISKS = ("/v1/save", "/v1/publish", "/v1/load", "/v1/open")
# Seconds for which the others are waited for at the end.
_LONGEST_LEAVE = 30.0
# Longest time-out of process groups, beyond that of a call.
_MARGIN = 60.0
# Seconds for which an error waits: another rank's end, of which it may be an effect, is known by then.
_EFFECT = 1.0
# Silences after which a rank counts rank 0 as lost, in heartbeats.
_SILENCES_OF_THE_FIRST = 3


class GangError(Exception):
    """The ranks did not find each other."""


def number_of_ranks():
    """The number of ranks, by the environment."""
    number = os.environ.get("WORLD_SIZE", "1")
    if not number.isascii() or not number.isdigit() or int(number) < 1:
        raise GangError(f"WORLD_SIZE is {number}, and must be a whole number from 1 on")
    return int(number)


@dataclass
class _Peer:
    """Rank 0's record of a rank."""

    rank: int
    host: str
    pid: int
    heard: float
    connection: socket.socket | None = None
    # The number of the call that it is in or has ended, and when rank 0 first learned that it had.
    call: int = 0
    ended: float | None = None
    error: str | None = None

    def note(self, call, is_ended, error):
        """Stores a rank's progress."""
        if call != self.call:
            self.call, self.ended, self.error = call, None, None
        if is_ended and self.ended is None:
            self.ended, self.error = time.monotonic(), error

    def __str__(self):
        return f"rank {self.rank} ({self.host}, process {self.pid})"


class Ranks:
    """The ranks, this process being one of them."""

    def __init__(self, number, rank, store, heartbeat, call_timeout):
        self.number, self.rank, self.heartbeat, self.call_timeout = number, rank, heartbeat, call_timeout
        self._store = store
        self._meshes = {}
        # Calls and outcomes use a group of their own, so that passes never wait for them.
        self._calls = dist.new_group(backend="gloo", timeout=_FOR_EVER)

    @classmethod
    def join(cls, heartbeat, startup_timeout, call_timeout):
        """Waits until all ranks have connected. `call_timeout`: seconds after which a call that no rank has ended is
        given up.
        """
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
            store = _meet(dist.PrefixStore("tamis", store), number, rank, startup_timeout)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            longest = datetime.timedelta(seconds=call_timeout + _MARGIN)
            group = dist.PrefixStore("group", store)
            group.set_timeout(timeout)
            dist.init_process_group(backend, store=group, rank=rank, world_size=number, timeout=longest)
            return cls(number, rank, store, heartbeat, call_timeout)
        except (RuntimeError, ValueError) as error:
            text = str(error).strip().splitlines()[0]
            raise GangError(f"rank {rank} did not find the others at {host}:{port} in {startup_timeout:g} s: {text}") from None

    def mesh(self, device_type):
        """A one-dimensional mesh of all ranks, on devices of this type."""
        if device_type not in self._meshes:
            self._meshes[device_type] = dist.device_mesh.init_device_mesh(device_type, (self.number,))
        return self._meshes[device_type]

    def sum(self, value):
        """The sum of a number over all ranks; collective."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self._calls)
        return float(tensor)

    def most(self, value):
        """The largest of a number over all ranks; collective."""
        tensor = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._calls)
        return int(tensor)

    def agree(self, act):
        """Rank 0's result of `act`, or its error, on every rank."""
        outcome = [None]
        if self.rank == 0:
            try:
                outcome = [(act(), None)]
            except LearnerError as error:
                outcome = [(None, error)]
            except OSError as error:
                outcome = [(None, DiskError("open", error.filename or "a file", error))]
        dist.broadcast_object_list(outcome, group=self._calls)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def first(self, value):
        """Rank 0's value; each rank computes one."""
        value = [value]
        dist.broadcast_object_list(value, group=self._calls)
        return value[0]

    def any(self, value):
        """The first rank's value that is not `None`."""
        values = [None] * self.number
        dist.all_gather_object(values, value, group=self._calls)
        return next((one for one in values if one is not None), None)

    def together(self, act):
        """The result of `act` on this rank. If it fails on any, all raise the error of the first of these."""
        value = error = None
        try:
            value = act()
        except LearnerError as one:
            error = one
        errors = [None] * self.number
        dist.all_gather_object(errors, error, group=self._calls)
        failed = [(rank, one) for rank, one in enumerate(errors) if one is not None]
        if failed:
            raise _of_rank(*failed[0], len(failed) < self.number)
        return value

    def tell(self, call):
        """Sends a call to the others."""
        dist.broadcast_object_list([call], group=self._calls)

    def hear(self):
        """Waits for the next call from rank 0."""
        call = [None]
        dist.broadcast_object_list(call, group=self._calls)
        return call[0]

    def leave(self):
        """Ends the groups once all ranks have reached this; waits only briefly for them."""
        late = threading.Timer(_LONGEST_LEAVE, os._exit, (0,))
        late.daemon = True
        late.start()
        dist.barrier(group=self._calls)
        dist.destroy_process_group()
        late.cancel()

    def gather(self, outcome):
        """The outcomes of all ranks, on rank 0."""
        outcomes = [None] * self.number if self.rank == 0 else None
        dist.gather_object(outcome, outcomes, group=self._calls)
        return outcomes


def _of_rank(rank, error, is_own):
    """An error with the name of its rank, unless all have it."""
    if is_own:
        error.message = f"{error.message} (rank {rank})"
    return error


def _number(name):
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise GangError(f"{name} is {text or 'not set'}, and must be a whole number; torchrun sets it")
    return int(text)


def _meet(store, number, rank, seconds):
    """The store of this start of all ranks, once all have connected.

    A store that torchrun keeps outlives the ranks, and its agents count restarts separately. So every rank draws a
    random word. Rank 0 draws one for all and publishes it together with the words that it has seen; a rank accepts it
    if its own is among them.
    """
    until, own = time.monotonic() + seconds, secrets.token_hex(8)
    store.set(f"ask/{rank}", f"{own} {socket.gethostname()} {os.getpid()}")
    start = secrets.token_hex(8)

    def read_asked():
        return {one: store.get(f"ask/{one}").decode() for one in range(number) if store.check([f"ask/{one}"])}

    asked, met, said = {}, [], None
    while True:
        if rank == 0:
            asked = read_asked()
            store.set("start", json.dumps([start, asked]))
            met = [one for one in range(number) if one == 0 or store.check([f"met/{start}/{one}"])]
        else:
            said, heard = json.loads(store.get("start")) if store.check(["start"]) else (None, {})
            if heard.get(str(rank), "").startswith(own):
                start = said
                store.set(f"met/{start}/{rank}", "")
            met = [one for one in range(number) if start == said and store.check([f"all/{start}"])]
        if len(met) == number:
            break
        if time.monotonic() > until:
            asked = read_asked()
            # Ranks that never asked; if all have, those that asked only at an earlier start, which rank 0 knows.
            missing = [one for one in range(number) if one not in asked] or [one for one in range(1, number) if one not in met]
            here = [f"{one} ({' '.join(asked[one].split()[1:])})" for one in range(number) if one not in missing]
            names = ", ".join(map(str, missing))
            raise ValueError(f"missing are the ranks {names}; here are {', '.join(here)}")
        time.sleep(0.05)
    ours = dist.PrefixStore(start, store)
    if rank == 0:
        for one, words in asked.items():
            ours.set(f"here/{one}", words.partition(" ")[2])
        store.set(f"all/{start}", "")
    return ours


def _own_address():
    """This machine's address on its way to rank 0, by which others can reach it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as found:
        # Nothing is sent: the system only looks up the route.
        found.connect(address)
        return found.getsockname()[0]


def _listen():
    """A socket that listens at all addresses, of IPv4 and IPv6 if both exist."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


# The first rank


class Gang:
    """Rank 0's learner together with those of the other ranks, called as one."""

    def __init__(self, learner, ranks):
        self._learner, self.ranks = learner, ranks
        # The receiver of the ranks' progress, and the number of the last call.
        self.watch, self._number, self._pace, self._passed = None, 0, _Pace(), None
        self.num_ranks = ranks.number
        self.calls = {path: lambda *asked, path=path: self._call(path, *asked) for path in learner.calls}

    def open(self, *asked):
        """As for a learner."""
        return self.calls["/v1/open"](*asked)

    def _call(self, path, *asked):
        self._number += 1
        work = _Work.of(path, *asked)
        if path == "/v1/open":
            # Another model has another pace.
            self._pace, self._passed = _Pace(), None
        elif path == "/v1/forward_hold":
            self._passed = work
        elif path == "/v1/backward" and self._passed is not None:
            # It takes as long as its pass has tokens, those of prompts included.
            work = _Work((path, *self._passed.kind), self._passed.size)
        self.watch.begin(self._number, path, self._pace.limit(work))
        began = time.monotonic()
        self.ranks.tell((path, *asked))
        outcome = carry_out(self._learner, path, *asked)
        self.watch.note(0, self._number, True, outcome.reason)
        outcomes = self.ranks.gather(outcome)
        self.watch.end()
        errors = [(rank, one.error) for rank, one in enumerate(outcomes) if one.error is not None]
        if errors:
            # Ranks without an error have changed their state.
            raise _of_rank(*errors[0], len(errors) < len(outcomes))
        self._pace.note(work, time.monotonic() - began)
        return _join(path, outcomes)

    def __getattr__(self, name):
        return getattr(self._learner, name)


@dataclass
class _Outcome:
    """The outcome of a call on one rank."""

    values: dict | None = None
    columns: dict | None = None
    error: LearnerError | None = None
    # Seconds that it computed; `None` if unknown.
    seconds: float | None = None

    @property
    def reason(self):
        """Its error's message, if any."""
        return None if self.error is None else self.error.message


def carry_out(learner, path, *asked):
    """Carries out a call on this rank."""
    began = time.process_time()
    try:
        values, columns = learner.calls[path](*asked)
        learner.wait()
    except LearnerError as error:
        return _Outcome(error=error)
    # A GPU's work is not in the process's time, and waiting for others on a CPU is not either.
    on_cpu = learner.computes_on_cpu
    seconds = (time.process_time() - began) / torch.get_num_threads() if on_cpu else None
    return _Outcome(values, {name: one.cpu() for name, one in columns.items()}, None, seconds)


# Calls that report how long each rank computed.
_PASSES = ("/v1/forward", "/v1/forward_hold", "/v1/backward")


@dataclass(frozen=True)
class _Work:
    """The work of a call: its kind, and its amount, by the numbers that come with it."""

    kind: tuple
    size: int

    @classmethod
    def of(cls, path, settings, columns, *_):
        """`None` for a call whose time does not predict the next one's."""
        if path not in (*_PASSES, "/v1/optim_step"):
            return None
        network = str(settings.others_than().get("network"))
        return cls((path, network), max(1, sum(one.numel() for one in columns.values())))


class _Pace:
    """The pace of passes: one that takes far longer hangs on all ranks, for example in a collective or on a GPU."""

    def __init__(self):
        # Seconds per number, and in total, of the slowest so far.
        self._slowest = {}

    def limit(self, work):
        """Seconds after which a call is abandoned; `None` if no similar call is known."""
        if work is None or work.kind not in self._slowest:
            return None
        rate, longest = self._slowest[work.kind]
        return max(_LEAST_PASS, _TIMES_SLOWEST * max(longest, rate * work.size))

    def note(self, work, seconds):
        """Records a call that all ranks have ended."""
        if work is not None:
            rate, longest = self._slowest.get(work.kind, (0.0, 0.0))
            self._slowest[work.kind] = max(rate, seconds / work.size), max(longest, seconds)


def _join(path, outcomes):
    """One answer of all ranks: per-token columns concatenated, everything else from the first."""
    first = outcomes[0]
    values, columns = dict(first.values), dict(first.columns)
    for name in columns:
        if name in ("logprob", "entropy", "value", "candidate", "top_token", "top_logprob"):
            columns[name] = torch.cat([one.columns[name] for one in outcomes])
    if "not_finite" in values:
        values["not_finite"] = next((one.values["not_finite"] for one in outcomes if one.values["not_finite"]), None)
    seconds = [one.seconds for one in outcomes]
    if path in _PASSES and None not in seconds:
        values["rank_seconds"] = seconds
    return values, columns


class Watch:
    """Receives the other ranks' heartbeats, and reports a lost one: `lost` is called once with the reason."""

    def __init__(self, ranks, lost):
        self._ranks, self._lost, self._told = ranks, lost, threading.Lock()
        now = time.monotonic()
        own = _Peer(0, socket.gethostname(), os.getpid(), now)
        self._peers = [own]
        for rank in range(1, ranks.number):
            host, pid = ranks._store.get(f"here/{rank}").decode().split(" ")
            self._peers.append(_Peer(rank, host, int(pid), now))
        self._secret = secrets.token_hex(16)
        # The running call, its path, and when it began.
        self._running = None
        self._server = _listen()
        ranks._store.set("watch", f"{_own_address()} {self._server.getsockname()[1]} {self._secret}")
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._look, daemon=True).start()

    def describe(self):
        """Each rank with its host, its process, and the age of its last heartbeat."""
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
        peer, ended = None, "has broken its connection"
        try:
            with connection.makefile("rw") as lines:
                # Any client may connect and write anything.
                secret, _, rank = lines.readline(100).strip().partition(" ")
                is_ours = hmac.compare_digest(secret.encode(), self._secret.encode())
                if not is_ours or not rank.isdecimal() or not 0 < int(rank) < len(self._peers):
                    return
                peer = self._peers[int(rank)]
                peer.connection = connection
                while line := lines.readline():
                    peer.heard = time.monotonic()
                    said = json.loads(line)
                    if "failed" in said:
                        return self.lose(f"{peer} failed: {said['failed']}", said["full_at"])
                    peer.note(said["call"], said["ended"], said["error"])
                    lines.write("0\n")
                    lines.flush()
                ended = "has ended"
        except TimeoutError:
            ended = f"has given no sign of life for {self._ranks.heartbeat:g} s"
        except (OSError, ValueError):
            pass
        if peer is not None:
            self._tell(f"{peer} {ended}")

    def begin(self, number, path, limit=None):
        """Rank 0 begins a call, which is abandoned after `limit` seconds."""
        self._peers[0].note(number, False, None)
        self._running = (number, path, time.monotonic(), limit)

    def note(self, rank, *progress):
        """The progress of a rank."""
        self._peers[rank].note(*progress)

    def end(self):
        """All have ended the call."""
        self._running = None

    def close(self):
        """The ranks end by themselves from here on."""
        self._told.acquire(blocking=False)

    def _look(self):
        began = time.monotonic()
        while True:
            time.sleep(min(1.0, self._ranks.heartbeat / 2))
            # A rank that has not connected sends no heartbeat, either.
            silent = [peer for peer in self._peers[1:] if peer.connection is None]
            if silent and time.monotonic() - began > max(30.0, self._ranks.heartbeat):
                self._tell(f"{silent[0]} has given no sign of life since it began")
            running = self._running
            if running is not None and (why := self._find_split(*running)) is not None:
                self._tell(why)

    def _find_split(self, number, path, began, limit=None):
        """Why the ranks will never agree in the running call, if that is so."""
        now = time.monotonic()
        ended = [peer for peer in self._peers if peer.call == number and peer.ended is not None]
        others = [peer for peer in self._peers if peer not in ended]
        if not others:
            return None
        waiting = f"and {others[0]} has not ended {path}"
        failed = next((peer for peer in ended if peer.error is not None), None)
        if failed is not None:
            return f"{failed} failed: {failed.error}; {waiting}" if now - failed.ended > _AFTER_ERROR else None
        if ended:
            first = min(peer.ended for peer in ended)
            later = max(_LEAST_LATER, 4 * self._ranks.heartbeat, _TIMES_LATER * (first - began))
            writes = path in _OF_DISKS and others == self._peers[:1]
            if now - first > later and not writes:
                return f"{others[0]} has been in {path} for {now - began:.0f} s, {now - first:.0f} s longer than {ended[0]}"
        who = f"{', '.join(map(str, others))} has not" if ended else "no rank has"
        if now - began > self._ranks.call_timeout:
            return f"{who} ended {path} for {now - began:.0f} s, the longest that a call may take"
        if limit is not None and now - began > limit:
            return f"{who} ended {path} for {now - began:.0f} s, {_TIMES_SLOWEST:.0f} times the slowest for as many tokens"
        return None

    def lose(self, what, full_at=None):
        """Reports that a rank cannot continue, unless another one, of which this is an effect, is reported first.

        `full_at`: the call that ran out of memory, which is not an effect of another rank.
        """
        if full_at is not None:
            return self._tell(what, full_at)
        threading.Timer(_EFFECT, self._tell, (what,)).start()

    def _tell(self, what, full_at=None):
        if self._told.acquire(blocking=False):
            self._lost(what, full_at)


# The other ranks


def follow(learner, ranks):
    """Carries out rank 0's calls until it ends."""
    # PyTorch's waits handle no signal, so the system's default ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pulse = _Pulse(ranks)
    while (call := pulse.unless_lost(ranks.hear)) is not None:
        pulse.begin()
        try:
            outcome = carry_out(learner, *call)
        except Exception as error:
            # The others wait for this rank in the middle of the call.
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            pulse.fail(text, call[0] if is_out_of_memory(error) else None)
            raise
        pulse.end(outcome.reason)
        pulse.unless_lost(lambda: ranks.gather(outcome))
    pulse.close()
    ranks.leave()


class _Pulse:
    """Sends rank 0 heartbeats, and ends the process if rank 0 is gone."""

    def __init__(self, ranks):
        self._ranks = ranks
        host, port, secret = ranks._store.get("watch").decode().split(" ")
        if ipaddress.ip_address(host).is_loopback:
            # MASTER_ADDR is rank 0's own machine, whose name for itself is no address for others.
            host = os.environ["MASTER_ADDR"]
        try:
            self._connection = socket.create_connection((host, int(port)), timeout=30.0)
        except OSError as error:
            reason = f"rank {ranks.rank} cannot reach rank 0 at {host}, port {port}: {error}"
            raise GangError(f"{reason}; is a firewall between them?") from None
        # The call that it is in, whether it has ended, and its error.
        self._at, self._is_closed = {"call": 0, "ended": True, "error": None}, False
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
                self._show()
                if not self._lines.readline():
                    break
                time.sleep(self._ranks.heartbeat / 4)
        except TimeoutError:
            why = f"has given no sign of life for {_SILENCES_OF_THE_FIRST * self._ranks.heartbeat:g} s"
        except (OSError, ValueError):
            why = "is gone"
        if self._is_closed:
            return
        print(f"rank {self._ranks.rank} ends: rank 0 {why}", file=sys.stderr, flush=True)
        os._exit(EXIT_LOST)

    def _show(self):
        self._say(json.dumps(self._at) + "\n")

    def begin(self):
        """A call begins."""
        self._at = {"call": self._at["call"] + 1, "ended": False, "error": None}

    def end(self, error):
        """The call has ended, with an error or without."""
        self._at = {**self._at, "ended": True, "error": error}

    def close(self):
        """This rank ends, as rank 0 requested."""
        self._is_closed = True

    def unless_lost(self, act):
        """The result of `act`, which waits for rank 0. If rank 0 is gone, the thread that listens to it reports that.
        """
        try:
            return act()
        except RuntimeError:
            time.sleep(2 * _SILENCES_OF_THE_FIRST * self._ranks.heartbeat)
            raise

    def fail(self, what, full_at):
        """Reports why this rank cannot continue, and which call ran out of memory."""
        self._say(json.dumps({"failed": what, "full_at": full_at}) + "\n")


__all__ = ["EXIT_LOST", "Gang", "GangError", "Ranks", "Watch", "follow", "number_of_ranks"]
