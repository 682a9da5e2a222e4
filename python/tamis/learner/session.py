"""A learner behind its connections: incarnations, sequence numbers, each call carried out once.

    a connection's thread            the main thread
      asks `Session` ------------->  carries out one call at a time, in order of arrival
      writes the answer <----------  keeps the answer of the last call

The session does not know how a learner computes: `server` has a session for tensors of PyTorch, `tamis.tinker` one for
columns as bytes.
"""

import hmac
import queue
import secrets
import threading
import time
import traceback
import zlib
from dataclasses import dataclass, field

from . import messages
from .connections import Answer, DeviceLost
from .messages import (
    DiskError,
    Failed,
    IncarnationError,
    LearnerError,
    Lost,
    PathError,
    RequestError,
    SequenceError,
    Settings,
    first_line,
)

MAX_BODY_BYTES = 1 << 30
OPEN = "/v1/open"

# Longest wait in seconds for the watch over other ranks to find the rank whose loss caused an error.
_LONGEST_TELL = 10.0


@dataclass
class _Job:
    """A call in progress: `what` identifies it, for a number that is sent twice."""

    path: str
    content_type: str
    body: bytes
    seq: int
    incarnation: str | None
    what: tuple
    # The incarnation that an `open` ends.
    before: str | None = None
    answer: Answer | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Session:
    """Carries out calls exactly once, by the page's incarnations and sequence numbers.

    Any thread calls `submit`, which waits; `run` carries out submitted calls in its own thread. A learner has `calls`
    and `transfer.calls` by path, `open`, `capabilities`, `device`, `num_ranks`, `is_holding`, `wait` and `describe`.
    """

    # The implementation's name, for people.
    implementation = "tamis"

    # Depends on how the learner computes

    def decode(self, content_type, body):
        """A body as settings and columns for the learner."""
        return messages.decode(content_type, body)

    def answer(self, values, columns=None):
        """The answer with the learner's settings and columns."""
        return Answer.of(values, columns)

    def is_out_of_memory(self, error):
        """Whether an exception means too little memory."""
        return isinstance(error, MemoryError)

    def is_device_lost(self, error):
        """Whether this exception means that the process can no longer compute."""
        return False

    def hint_of_memory(self, path):
        """A way to take less memory than the call that ran out of it."""
        return None

    def __init__(self, learner, max_body_bytes=MAX_BODY_BYTES, log=lambda line: None):
        self.learner = learner
        self.log = log
        self.max_body_bytes, self.max_json_bytes = max_body_bytes, messages.MAX_JSON_BYTES
        self.orphan_timeout = None
        self.incarnation = None
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue()
        self._last = None
        self._running = None
        self._is_holding = False
        self._lost = None
        # The watch over the other ranks, if there are some.
        self.watch = None
        self._gone = None
        self._heard = time.monotonic()
        self._facts = self._gather_facts()

    # Any thread

    def hear(self):
        """Records that the controller is alive."""
        self._heard = time.monotonic()

    def _seq(self):
        last = self._last
        if last is None or last.path == OPEN:
            return 0
        return last.seq if last.ended.is_set() else last.seq - 1

    def health(self):
        """The answer of `health`; the error of a lost learner."""
        if self._gone is not None:
            raise self._gone
        with self._lock:
            phase = "busy" if self._running else "held" if self._is_holding else "idle"
            health = {"phase": phase, "seq": self._seq()}
        return health if self.watch is None else {**health, "ranks": self.watch.describe()}

    def info(self):
        """The answer of `info`."""
        with self._lock:
            return {"incarnation": self.incarnation, "seq": self._seq(), **self._facts}

    def _gather_facts(self):
        learner = self.learner
        return {
            "protocol": messages.PROTOCOL,
            "implementation": self.implementation,
            "num_ranks": learner.num_ranks,
            "device": learner.device(),
            "capabilities": {**learner.capabilities(), "max_body_bytes": self.max_body_bytes},
        }

    def submit(self, path, content_type, body, incarnation, seq):
        """Waits for the answer of a `POST` and returns it."""
        is_transfer = path in self.learner.transfer.calls
        if not is_transfer and path not in self.learner.calls:
            raise PathError(f"there is no call POST {path}")
        if self._gone is not None:
            raise self._gone
        if is_transfer:
            return self._carry_out_transfer(path, content_type, body, incarnation, seq)
        what = (path, content_type, len(body), zlib.crc32(body))
        if path == OPEN:
            if incarnation is not None or seq is not None:
                raise RequestError("`open` carries no Tamis-Incarnation and no Tamis-Seq")
            with self._lock:
                # From here on the earlier controller gets no answer; its running call is waited for.
                before, self.incarnation = self.incarnation, None
                job = self._last = _Job(path, content_type, body, 0, None, what, before)
                self._jobs.put(job)
        else:
            job = self._take(path, content_type, body, incarnation, seq, what)
        job.ended.wait()
        self.hear()
        return job.answer

    def _take(self, path, content_type, body, incarnation, seq, what):
        """A new job, or that of a number that is sent again."""
        if incarnation is None or seq is None:
            raise RequestError("the headers Tamis-Incarnation and Tamis-Seq are missing")
        if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
            raise RequestError("the header Tamis-Seq must be a whole number")
        seq = int(seq)
        with self._lock:
            self._check_incarnation(incarnation)
            last = self._last
            if last is not None and seq == last.seq and seq > 0:
                if what != last.what:
                    message = f"call {seq} was POST {last.path}, and comes again as another"
                    raise SequenceError(message, expected=last.seq + 1)
                return last
            # A call is accepted when the one before it has ended: the next number before that is a gap.
            if seq != last.seq + 1 or not last.ended.is_set():
                expected = last.seq + 1 if last.ended.is_set() else last.seq
                raise SequenceError(f"the call has the number {seq}, expected {expected}", expected=expected)
            self._last = _Job(path, content_type, body, seq, incarnation, what)
            self._jobs.put(self._last)
            return self._last

    def _check_incarnation(self, incarnation):
        if self.incarnation is None or not hmac.compare_digest(self.incarnation.encode(), incarnation.encode()):
            hint = "the learner was started anew, or opened by another controller; open it again"
            raise IncarnationError("the learner is not the one that was opened", hint)

    def _carry_out_transfer(self, path, content_type, body, incarnation, seq):
        """Answers a call that sends saved weights, while others compute."""
        if incarnation is None:
            raise RequestError("the header Tamis-Incarnation is missing")
        if seq is not None:
            raise RequestError("calls of a transfer bear no number: take the header Tamis-Seq out")
        with self._lock:
            self._check_incarnation(incarnation)
        values, columns = self.decode(content_type, body)
        messages.refuse_columns(columns)
        try:
            return self.answer(self.learner.transfer.calls[path](Settings(values)))
        except LearnerError:
            raise
        except Exception as error:
            self.log(traceback.format_exc().rstrip())
            raise Failed(f"{type(error).__name__}: {first_line(error)}", "the learner's log has the details") from None

    def lose(self, error):
        """Answers the running and all later calls with an error, because the computing thread will not end any more."""
        with self._lock:
            self._gone = error
            running = self._last
            if running is not None and not running.ended.is_set():
                running.answer = Answer.of_error(error)
                running.ended.set()

    # The thread that computes

    def run(self):
        """Carries out calls until `orphan_timeout` has passed without one; raises `DeviceLost` after its answer."""
        while True:
            try:
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                if self.orphan_timeout is not None and time.monotonic() - self._heard > self.orphan_timeout:
                    self.log(f"no request for {self.orphan_timeout} s: the learner ends")
                    return
                continue
            with self._lock:
                is_stale = job.incarnation != self.incarnation and job.path != OPEN
                self._running = job
            if is_stale:
                answer = Answer.of_error(IncarnationError("the learner was opened by another controller"))
            else:
                answer = self._carry_out(job)
            # Bodies are not needed again.
            job.body = b""
            with self._lock:
                self._running = None
                self._is_holding = self.learner.is_holding
                self._facts = self._gather_facts()
                if not job.ended.is_set():
                    job.answer = answer
                    job.ended.set()
            self.hear()
            if self._lost is not None:
                raise self._lost

    def _carry_out(self, job):
        try:
            values, columns = self.decode(job.content_type, job.body)
            settings = Settings(values)
            if job.path != OPEN:
                began = time.perf_counter()
                values, columns = self.learner.calls[job.path](settings, columns)
                self.learner.wait()
                return self.answer({**values, "seconds": time.perf_counter() - began}, columns)
            orphan_timeout = settings.number("orphan_timeout", None, above=0.0)
            adopted = settings.text("adopt", None)
            answer, columns = self.learner.open(settings, columns, adopted is not None and adopted == job.before)
            for line in ["a run continues with what is loaded"] if answer["adopted"] else self.learner.describe():
                self.log(line)
            incarnation = secrets.token_hex(8)
            with self._lock:
                # A later `open` already waits: this incarnation ended before it began.
                if self._last is job:
                    self.incarnation, self.orphan_timeout = incarnation, orphan_timeout
            return self.answer({"incarnation": incarnation, **answer}, columns)
        except LearnerError as error:
            return Answer.of_error(error)
        except OSError as error:
            if self.watch is not None:
                # Not all ranks have this outcome: the others may be anywhere.
                what = f"rank 0 failed to read or write: {first_line(error)}"
                self.log(traceback.format_exc().rstrip())
                self.watch.lose(what)
                job.ended.wait(_LONGEST_TELL)
                return Answer.of_error(Lost(what, "the learner ends, to be started again; its log has the details"))
            if error.filename is not None:
                return Answer.of_error(DiskError("open", error.filename, error))
            return Answer.of_error(Failed(f"failed to read or write: {error.strerror or first_line(error)}"))
        except Exception as error:
            if self.is_out_of_memory(error):
                hint = self.hint_of_memory(job.path)
                if self.watch is not None:
                    self.watch.lose(f"rank 0 is out of memory: {first_line(error)}", job.path)
                return Answer.of_error(Failed(f"out of memory: {first_line(error)}", hint))
            self.log(traceback.format_exc().rstrip())
            message = f"{type(error).__name__}: {first_line(error)}"
            hint = "the learner ends, to be started again; its log has the details"
            if self.is_device_lost(error):
                self._lost = DeviceLost(f"the device cannot be computed on any more: {first_line(error)}")
                return Answer.of_error(Lost(message, hint))
            if self.watch is not None:
                # If another rank is gone or has failed, the watch soon knows and answers.
                self.watch.lose(f"rank 0 failed: {message}")
                job.ended.wait(_LONGEST_TELL)
                return Answer.of_error(Lost(message, hint))
            return Answer.of_error(Failed(message, "the learner's log has the details"))
