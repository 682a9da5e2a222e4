"""The wire's server: HTTP/1.1 on a TCP or Unix socket, incarnations and sequence numbers.

    a connection's thread            the main thread
      reads a request, checks it
      asks `Session` ------------->  carries out one call at a time, in the order in which they came
      writes the answer <----------  keeps the answer of the last call

`GET` calls are answered by the connection's thread while the main thread computes. All calls run in the main
thread: PyTorch keeps a pool of workers for each thread that computes. Signals are heard there, too, between
two operations of PyTorch.
"""

import hmac
import http.server
import ipaddress
import os
import queue
import re
import secrets
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
import traceback
import zlib
from dataclasses import dataclass, field

import torch

from . import protocol
from .learner import Learner
from .protocol import (
    DiskError,
    Failed,
    IncarnationError,
    LearnerError,
    MethodError,
    PageError,
    PathError,
    RequestError,
    SequenceError,
    Settings,
    TokenError,
    TooLongError,
)

MAX_BODY_BYTES = 1 << 30
# Seconds that a request may stand still between its first line and its end.
STALL_SECONDS = 60.0
OPEN = "/v1/open"


@dataclass
class Answer:
    """Status, content type and body of an answer."""

    status: int
    content_type: str
    body: bytes

    @classmethod
    def of(cls, values, columns=None):
        """Of a call that went well."""
        return cls(200, *protocol.encode(values, columns))

    @classmethod
    def of_error(cls, error):
        """Of one that did not."""
        return cls(error.status, *protocol.encode(error.body()))


@dataclass
class _Job:
    """A call on its way: `what` tells one from another, for a number that is sent twice."""

    path: str
    content_type: str
    body: bytes
    seq: int
    incarnation: str | None
    what: tuple
    answer: Answer | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Session:
    """Carries out calls once and only once: the page's incarnations and sequence numbers.

    `submit` is called by any thread and waits; `run` carries out what was submitted, in its own thread.
    """

    def __init__(self, learner, max_body_bytes=MAX_BODY_BYTES, log=lambda line: None):
        self.learner = learner
        self.log = log
        self.max_body_bytes = max_body_bytes
        self.orphan_timeout = None
        self.incarnation = None
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue()
        self._last = None
        self._running = None
        self._is_holding = False
        self._heard = time.monotonic()
        self._facts = self._gather_facts()

    # Any thread

    def hear(self):
        """Notes that the controller is alive."""
        self._heard = time.monotonic()

    def _seq(self):
        last = self._last
        if last is None or last.path == OPEN:
            return 0
        return last.seq if last.ended.is_set() else last.seq - 1

    def health(self):
        """The answer of `health`."""
        with self._lock:
            phase = "busy" if self._running else "held" if self._is_holding else "idle"
            return {"phase": phase, "seq": self._seq()}

    def info(self):
        """The answer of `info`."""
        with self._lock:
            return {"incarnation": self.incarnation, "seq": self._seq(), **self._facts}

    def _gather_facts(self):
        learner = self.learner
        return {
            "protocol": protocol.PROTOCOL,
            "implementation": f"tamis torch {torch.__version__}",
            "num_ranks": learner.num_ranks,
            "device": learner.device(),
            "capabilities": {**learner.capabilities(), "max_body_bytes": self.max_body_bytes},
        }

    def submit(self, path, content_type, body, incarnation, seq):
        """The answer of a `POST`; waits until it is there."""
        if path not in self.learner.calls:
            raise PathError(f"there is no call POST {path}")
        what = (path, content_type, len(body), zlib.crc32(body))
        if path == OPEN:
            if incarnation is not None or seq is not None:
                raise RequestError("`open` carries no Tamis-Incarnation and no Tamis-Seq")
            with self._lock:
                # From here on the earlier controller is not answered; what it has running is waited for.
                self.incarnation = None
                job = self._last = _Job(path, content_type, body, 0, None, what)
                self._jobs.put(job)
        else:
            job = self._take(path, content_type, body, incarnation, seq, what)
        job.ended.wait()
        self.hear()
        return job.answer

    def _take(self, path, content_type, body, incarnation, seq, what):
        """A new job, or the one of a number that is sent again."""
        if incarnation is None or seq is None:
            raise RequestError("the headers Tamis-Incarnation and Tamis-Seq are missing")
        if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
            raise RequestError("the header Tamis-Seq must be a whole number")
        seq = int(seq)
        with self._lock:
            if self.incarnation is None or not hmac.compare_digest(self.incarnation.encode(), incarnation.encode()):
                hint = "the learner was started anew, or opened by another controller; open it again"
                raise IncarnationError("the learner is not the one that was opened", hint)
            last = self._last
            if last is not None and seq == last.seq and seq > 0:
                if what != last.what:
                    message = f"call {seq} was POST {last.path}, and comes again as another"
                    raise SequenceError(message, expected=last.seq + 1)
                return last
            # A call is taken when the one before it has ended: the next number before that is a gap.
            if seq != last.seq + 1 or not last.ended.is_set():
                expected = last.seq + 1 if last.ended.is_set() else last.seq
                raise SequenceError(f"the call has the number {seq}, expected {expected}", expected=expected)
            self._last = _Job(path, content_type, body, seq, incarnation, what)
            self._jobs.put(self._last)
            return self._last

    # The thread that computes

    def run(self):
        """Carries out calls until nobody has called for `orphan_timeout`."""
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
                job.answer = answer
                job.ended.set()
            self.hear()

    def _carry_out(self, job):
        try:
            values, columns = protocol.decode(job.content_type, job.body)
            settings = Settings(values)
            if job.path != OPEN:
                return Answer.of(*self.learner.calls[job.path](settings, columns))
            orphan_timeout = settings.number("orphan_timeout", None, above=0.0)
            answer, columns = self.learner.open(settings, columns)
            for line in self.learner.describe():
                self.log(line)
            incarnation = secrets.token_hex(8)
            with self._lock:
                # A later `open` waits already: this one is over before it began.
                if self._last is job:
                    self.incarnation, self.orphan_timeout = incarnation, orphan_timeout
            return Answer.of({"incarnation": incarnation, **answer}, columns)
        except LearnerError as error:
            return Answer.of_error(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            hint = "lower micro_batch_tokens, or set recompute_activations"
            return Answer.of_error(Failed(f"out of memory: {_first_line(error)}", hint))
        except OSError as error:
            if error.filename is not None:
                return Answer.of_error(DiskError("open", error.filename, error))
            return Answer.of_error(Failed(f"failed to read or write: {error.strerror or _first_line(error)}"))
        except Exception as error:
            self.log(traceback.format_exc().rstrip())
            message = f"{type(error).__name__}: {_first_line(error)}"
            return Answer.of_error(Failed(message, "the learner's log has the details"))


def _first_line(error):
    text = str(error).strip().splitlines()
    return text[0] if text else "no message"


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection: reads requests, writes answers."""

    protocol_version = "HTTP/1.1"
    server_version = "tamis-learner"
    sys_version = ""
    # An answer leaves in one piece.
    wbufsize = -1

    def setup(self):
        """Answers are small and waited for: none is held back to be sent with the next."""
        self.disable_nagle_algorithm = self.request.family != socket.AF_UNIX
        super().setup()

    def address_string(self):
        """The caller, for the log; a Unix socket names none."""
        return str(self.client_address[0]) if self.client_address else "unix"

    def log_message(self, format, *values):
        """Nothing: an answer says what was wrong."""

    def parse_request(self):
        """From the first line on a request may not stand still for long; between requests it may."""
        self.connection.settimeout(STALL_SECONDS)
        return super().parse_request()

    def handle_one_request(self):
        """Between requests a connection waits as long as it likes."""
        self.connection.settimeout(None)
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def handle_expect_100(self):
        """Says at once that the body may come: what is written is held back otherwise."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def send_error(self, code, message=None, explain=None):
        """What the base class finds wrong, as an error of the page."""
        self.close_connection = True
        # Without a version that it knows the base class would answer as HTTP/0.9 did, without a head.
        self.request_version = self.protocol_version
        # 501 is the base class's word for a method that has no function here.
        kind = MethodError if code in (405, 501) else RequestError
        self._send(Answer.of_error(kind(message or "the request cannot be read")))

    def _send(self, answer):
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _path(self):
        return self.path.split("?")[0]

    def _check_caller(self):
        if "Origin" in self.headers:
            raise PageError("a web page may not ask this")

    def _check_token(self):
        self._check_caller()
        token = self.server.token
        if token is None:
            return
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode()):
            hint = "give the controller the token that the learner was started with"
            raise TokenError("no bearer token, or a wrong one", hint)

    def do_GET(self):
        """`health` and `info`, at any time."""
        session = self.server.session
        try:
            if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
                self.close_connection = True
            if self._path() == "/v1/health":
                self._check_caller()
                session.hear()
                answer = Answer.of(session.health())
            else:
                self._check_token()
                session.hear()
                if self._path() != "/v1/info":
                    raise PathError(f"there is no call GET {self._path()}")
                answer = Answer.of(session.info())
        except LearnerError as error:
            answer = Answer.of_error(error)
        self._send(answer)

    def do_POST(self):
        """A call: its body is read, and its answer waited for."""
        session = self.server.session
        try:
            # A body that is not read would be taken for the next request.
            self.close_connection, stays = True, self.close_connection
            self._check_token()
            body = self._read_body(session.max_body_bytes)
            self.close_connection = stays
            session.hear()
            incarnation, seq = self.headers.get("Tamis-Incarnation"), self.headers.get("Tamis-Seq")
            content_type = self.headers.get("Content-Type", "")
            answer = session.submit(self._path(), content_type, body, incarnation, seq)
        except LearnerError as error:
            answer = Answer.of_error(error)
        self._send(answer)

    def _read_body(self, max_body_bytes):
        if "Transfer-Encoding" in self.headers:
            raise RequestError("bodies come with a Content-Length, not in chunks")
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0].strip()):
            raise RequestError("the request has no Content-Length, or one that is no number")
        length = int(lengths[0])
        if length > max_body_bytes:
            raise TooLongError(f"the body has {length} bytes, and the learner takes {max_body_bytes}")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the connection ended within a body")
        return body


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address, family, session, token):
        self.address_family = family
        self.session, self.token = session, token
        super().__init__(address, Handler)

    def handle_error(self, request, client_address):
        """One connection's end is no news; anything else is."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            traceback.print_exc()


class ListenError(Exception):
    """The learner cannot listen where it is told to."""


def listen(where, session, token=None):
    """A server on `HOST:PORT` or `unix:/path`, and the address that it says it listens on."""
    if where.startswith("unix:"):
        path = where.removeprefix("unix:")
        _remove_stale(path)
        # The socket must never be open to others, not even between its making and a chmod.
        before = os.umask(0o177)
        try:
            return _Server(path, socket.AF_UNIX, session, token), f"unix:{path}"
        except OSError as error:
            raise ListenError(f"failed to listen on {where}: {error.strerror or error}") from None
        finally:
            os.umask(before)
    host, _, port = where.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenError(f"`{where}` is neither HOST:PORT nor unix:/path")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.removeprefix("[").removesuffix("]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if token is None and not ipaddress.ip_address(address[0].split("%")[0]).is_loopback:
            raise ListenError(f"{address[0]} can be reached from outside: give the learner a --token-file")
        server = _Server(address, family, session, token)
    except OSError as error:
        raise ListenError(f"failed to listen on {where}: {error.strerror or error}") from None
    host = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
    return server, f"http://{host}:{server.server_address[1]}"


def _remove_stale(path):
    """Removes the socket of a learner that is gone."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ListenError(f"{path} is there and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ListenError(f"another program listens on {path}")


class _Ended(BaseException):
    """A signal asked the learner to end."""


def _end(*_):
    raise _Ended


def serve(where, token=None):
    """Listens and computes until a signal, or until nobody calls any more."""
    session = Session(Learner(), log=lambda line: print(line, file=sys.stderr, flush=True))
    server, address = listen(where, session, token)
    try:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"listening on {address}", flush=True)
        session.run()
    except _Ended:
        pass
    finally:
        # No second signal may break off the tidying.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if where.startswith("unix:"):
            os.unlink(where.removeprefix("unix:"))


__all__ = ["Answer", "ListenError", "Session", "listen", "serve"]
