"""A gang or a server: its incarnations, one after the other."""

import contextlib
import functools
import pathlib
import queue
import threading
import time
import traceback
from collections import deque

from .agent import GRACE
from .request import Abandoned, LaunchError

# Seconds before a server is started again; they double each time.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
# Seconds of being ready after which all restarts and the first pause are available again.
HEALTHY = 3600.0
# Seconds within which the ends of several ranks count as one.
SETTLE = 0.25
# Seconds that a gang gets to end after losing a rank.
SHORT_GRACE = 1.0
# Last lines of an output that a message shows.
LAST_LINES = 20


class Restarts:
    """Counts restarts of all servers of a role."""

    def __init__(self, most):
        self.most = most
        self._made = 0
        self._lock = threading.Lock()

    def take(self):
        """The number of this restart, or `None` if all are used up."""
        with self._lock:
            if self._made == self.most:
                return None
            self._made += 1
            return self._made

    def give_back(self):
        """Starts counting again."""
        with self._lock:
            self._made = 0


class Log:
    """The output of one process: a file, and its last lines."""

    def __init__(self, path, shown, say):
        self.path, self.tail = str(path), deque(maxlen=LAST_LINES)
        self._say, self._file, self._is_told = say, None, False
        self._write(f"$ {shown}")

    def add(self, line):
        """Appends a line."""
        self.tail.append(line)
        self._write(line)

    def _write(self, line):
        try:
            if self._file is None:
                self._file = open(self.path, "ab", buffering=0)
            left = f"{line}\n".encode(errors="replace")
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            # The process works all the same; the next line may find room.
            if not self._is_told:
                self._say(f"the log {self.path} cannot be written: {error.strerror}; lines of it are lost")
                self._is_told = True

    def close(self):
        """Closes the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def in_a_line(error):
    """The first line of an error of other code."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".removesuffix(": ")


class Group(threading.Thread):
    """Starts processes that belong together and watches them. A server is restarted when it ends, or on demand."""

    def __init__(self, request, launcher, emit, restarts):
        super().__init__(name=request.name, daemon=True)
        self.index, self.generation, self.is_gang = request.index, request.generation, request.is_gang
        self._request, self._launcher, self._restarts = request, launcher, restarts
        self._emit = functools.partial(emit, role=request.role, index=request.index, generation=request.generation)
        self._heard = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._incarnation = 0
        self._last = (None, None)
        self._was_ready = False
        # When this incarnation became ready.
        self._ready_at = None
        self._pause = FIRST_PAUSE
        # Whether it was restarted with other ports since it was ready.
        self._has_moved = False
        # The restart that follows the last end.
        self._again = None

    def restart(self):
        """Ends the processes, and begins a new incarnation."""
        self._heard.put((None, "restart"))

    def end(self):
        """Ends everything."""
        self._is_over.set()
        self._heard.put((None, "end"))

    def run(self):
        """Runs one incarnation after the other."""
        try:
            while not self._is_over.is_set():
                self._incarnation += 1
                self._again, self._ready_at = None, None
                try:
                    is_asked = self._live()
                except Abandoned:
                    break
                except LaunchError as error:
                    self._tell_trouble(str(error), error.hint)
                    is_asked = False
                except Exception as error:
                    # A lost cluster raises unknown errors. A group that reported nothing would be waited for.
                    with contextlib.suppress(OSError):
                        traceback.print_exc()
                    what = "is lost" if self._ready_at is not None else "cannot be started"
                    self._tell_trouble(f"{self._request.name} {what}: {in_a_line(error)}", None)
                    is_asked = False
                if not is_asked:
                    if self._again is not None:
                        self._emit("again", pause=self._pause, number=self._again, most=self._restarts.most)
                    self._wait_until_asked(None if self._again is None else self._pause)
                    self._pause = min(self._pause * 2, LONGEST_PAUSE)
        finally:
            self._emit("down")

    def _wait_until_asked(self, pause):
        deadline = None if pause is None else time.monotonic() + pause
        while not self._is_over.is_set():
            with contextlib.suppress(queue.Empty):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                source, what = self._heard.get(timeout=left)
                if source is None and what == "restart":
                    return
                continue
            return

    def _live(self):
        """Runs one incarnation to its end. Returns whether it was asked to end."""
        deadline = time.monotonic() + self._request.startup_timeout

        def is_wanted():
            if self._is_over.is_set():
                raise Abandoned
            return time.monotonic() < deadline

        def say(message):
            self._emit("log", message=message)

        places, each = self._launcher.place(self._request, is_wanted, say)
        try:
            incarnation = _Incarnation(self._request, places, each, self._incarnation, self._heard, say)
        except BaseException:
            for place in places:
                place.close(SHORT_GRACE)
            raise
        grace = SHORT_GRACE
        try:
            # Until it is ready there again, its port may belong to another program.
            last, self._last = self._last, (None, None)
            url = incarnation.start(last, self._launcher.is_local)
            is_asked = self._watch(incarnation, url, deadline)
            grace = GRACE if is_asked else SHORT_GRACE
            return is_asked
        finally:
            incarnation.close(grace)

    def _watch(self, incarnation, url, deadline):
        is_ready = False
        while True:
            left = None if is_ready else max(0.0, deadline - time.monotonic())
            try:
                source, message = self._heard.get(timeout=left)
            except queue.Empty:
                timeout = self._request.startup_timeout
                self._tell_end(self._was_ready, {"exit": f"no answer within {timeout:g} s", **incarnation.describe(0)})
                return False
            if source is None:
                return True
            if source[0] is not incarnation:
                continue
            dead = incarnation.hear(source[1], message)
            if dead is not None:
                if not is_ready and not self._has_moved and incarnation.lacks_a_port():
                    self._has_moved = True
                    message = f"a port of {self._request.name} was taken before it was used: others are tried"
                    self._emit("log", message=message)
                    return True
                dead = self._find_first(incarnation, dead)
                # A process that ends by itself before it answered will do so again; one that was killed need not.
                self._tell_end(self._was_ready or dead["exit"].startswith("signal"), dead)
                return False
            if message is not None and message["event"] == "ready":
                is_ready = self._was_ready = True
                self._ready_at, self._has_moved = time.monotonic(), False
                self._last = (incarnation.places[0].name, incarnation.port)
                nodes = [place.name for place in incarnation.places]
                self._emit(
                    "ready",
                    incarnation=incarnation.number,
                    url=url,
                    nodes=nodes,
                    ranks=len(incarnation.logs),
                )

    def _take_restart(self):
        if self._ready_at is not None and time.monotonic() - self._ready_at >= HEALTHY:
            self._restarts.give_back()
            self._pause = FIRST_PAUSE
        return self._restarts.take()

    def _tell_trouble(self, message, hint):
        # A process that ended earlier may have been promised a restart.
        self._again = self._again or (self._take_restart() if self._was_ready else None)
        self._emit("error", message=message, hint=hint, is_last=self._again is None)

    def _tell_end(self, may_return, dead):
        self._again = self._take_restart() if may_return else None
        self._emit("died", is_last=self._again is None, **dead)

    def _find_first(self, incarnation, dead):
        """The killed one of ranks that end at about the same time: the others only lost it."""
        deadline = time.monotonic() + SETTLE
        while self._request.is_gang and not dead["exit"].startswith("signal"):
            try:
                source, message = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if source is None:
                self._heard.put((source, message))
                break
            if source[0] is incarnation:
                other = incarnation.hear(source[1], message)
                if other is not None and other["exit"].startswith("signal"):
                    dead = other
        return dead


class _Incarnation:
    """Processes that were started together."""

    def __init__(self, request, places, each, number, heard, say):
        self.places, self.number = places, number
        self._request, self._each, self._heard = request, each, heard
        self._pids = {}
        self.port = None
        path = pathlib.Path(request.log)
        shown = request.shown or " ".join(request.argv)
        self.logs = []
        for rank in range(len(places) * each if request.is_gang else 1):
            name = path if rank == 0 else path.with_name(f"{path.stem}_rank_{rank}{path.suffix}")
            self.logs.append(Log(name, shown, say))
        self._readers = [threading.Thread(target=self._read, args=(place,), daemon=True) for place in places]
        for reader in self._readers:
            reader.start()

    def _read(self, place):
        while True:
            message = place.receive()
            self._heard.put(((self, place), message))
            if message is None:
                return

    def start(self, last, is_local):
        """Starts the processes. A server that was at this place keeps its port. Returns the address of the first."""
        request, head = self._request, self.places[0]
        free, main_port = head.hello["ports"]
        self.port = last[1] if head.name == last[0] and not request.is_gang else free
        address = f"[{head.address}]" if ":" in head.address else head.address
        url = f"http://{address}:{self.port}"
        listen = f"{address}:{self.port}"
        if request.is_gang and is_local:
            url = listen = f"unix:{head.hello['folder']}/socket"
        for number, place in enumerate(self.places):
            processes = []
            known = {
                "{python}": place.hello["python"] if request.python == "python3" and not is_local else request.python,
                "{listen}": listen,
                "{host}": address,
                "{port}": str(self.port),
                "{key_file}": f"{place.hello['folder']}/key",
                "{key_config}": f"{place.hello['folder']}/key.yaml",
            }
            for local_rank in range(self._each):
                rank = number * self._each + local_rank
                environment = dict(request.environment)
                if place.gpus is not None:
                    environment["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
                    # GPU numbers are those of `nvidia-smi` and Ray; CUDA's own order begins with the fastest.
                    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
                if request.is_gang:
                    environment |= {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(len(self.logs)),
                        "LOCAL_RANK": str(local_rank),
                        "LOCAL_WORLD_SIZE": str(self._each),
                        "GROUP_RANK": str(number),
                        "MASTER_ADDR": head.address,
                        "MASTER_PORT": str(main_port),
                    }
                argv = [_fill(word, known) for word in request.argv]
                processes.append(
                    {"rank": rank, "argv": argv, "environment": environment, "package": request.package}
                )
            ready = {"rank": 0, "url": url, "path": request.health, "silence": request.silence}
            if number > 0:
                ready = None
            place.send(
                {"do": "start", "processes": processes, "folder": request.folder, "key": request.key, "ready": ready}
            )
        return url

    def hear(self, place, message):
        """Handles a message of a place. Returns the event about a process that ended."""
        if message is None:
            rank = self.places.index(place) * self._each
            return {"exit": place.describe_end(), **self.describe(rank)}
        match message["event"]:
            case "started":
                self._pids[message["rank"]] = message["pid"]
            case "output":
                self.logs[message["rank"]].add(message["text"])
            case "exit":
                return {"exit": message["exit"], **self.describe(message["rank"])}
        return None

    def lacks_a_port(self):
        """Whether the end of an output shows that another program had a port."""
        return any("address already in use" in line.lower() for log in self.logs for line in log.tail)

    def describe(self, rank):
        """A process, as the event of its end describes it."""
        log = self.logs[rank]
        return {
            "incarnation": self.number,
            "rank": rank if self._request.is_gang else None,
            "node": self.places[rank // self._each].name,
            "pid": self._pids.get(rank),
            "log": log.path,
            "log_tail": "\n".join(log.tail),
        }

    def close(self, grace):
        """Ends all remaining processes at once; their last output goes to their files."""
        closings = [threading.Thread(target=place.close, args=(grace,)) for place in self.places]
        for closing in closings:
            closing.start()
        for thread in (*closings, *self._readers):
            thread.join()
        kept = []
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    source, message = self._heard.get_nowait()
                    if source is None:
                        kept.append((source, message))
                    elif source[0] is self and message is not None and message["event"] == "output":
                        self.hear(source[1], message)
        finally:
            for item in kept:
                self._heard.put(item)
            for log in self.logs:
                log.close()


def _fill(word, known):
    for name, value in known.items():
        word = word.replace(name, value)
    return word


__all__ = ["Group", "Restarts", "in_a_line"]
