"""Connections of a process that holds a model: HTTP/1.1 on a TCP or Unix socket, keys, and its end.

    a connection's thread            the main thread
      reads a request, checks it
      asks the session ----------->  computes, in `run` of the session
      writes the answer <----------

A session (a learner's or a reward model's) has `hear`, `health`, `info`, `submit`, `run`, `max_body_bytes` and
`max_json_bytes`. The connection's thread answers `GET` calls while the main thread computes. Everything is computed in
the main thread, because PyTorch keeps a pool of workers for each computing thread. Signals are handled there, too,
between two operations of PyTorch.
"""

import contextlib
import hmac
import http.server
import ipaddress
import os
import re
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
import traceback
from dataclasses import dataclass

from . import messages
from .messages import (
    SAFETENSORS,
    LearnerError,
    MethodError,
    PageError,
    PathError,
    RequestError,
    SlowError,
    TokenError,
    TooLongError,
)

# Seconds that a request may pause between its first line and its end.
STALL_SECONDS = 60.0
# Longest time for a whole body, and for waiting for room.
BODY_SECONDS = 600.0
# Seconds of silence after which a refused client that may still be writing is not read from any more.
LINGER_SECONDS = 2.0
# Bytes of a body that needs no room.
SHORT = 1 << 16
# Seconds for which a process that ends by itself lets its connections write finished answers.
LAST_SECONDS = 2.0


@dataclass
class Answer:
    """Status, content type and body of an answer."""

    status: int
    content_type: str
    body: bytes

    @classmethod
    def of(cls, values, columns=None):
        """An answer of 200; `columns` as bytes."""
        return cls(200, *messages.encode(values, columns))

    @classmethod
    def of_error(cls, error):
        """An error's answer."""
        return cls(error.status, *messages.encode(error.body()))


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection: reads requests, writes answers."""

    protocol_version = "HTTP/1.1"
    server_version = "tamis"
    sys_version = ""
    # An answer is sent in one piece.
    wbufsize = -1
    # Whether the client may still be writing a refused call.
    _is_refused = False

    def setup(self):
        """Answers are small and waited for, so none is held back to be sent with the next."""
        self.disable_nagle_algorithm = self.request.family != socket.AF_UNIX
        super().setup()

    def address_string(self):
        """The caller, for the log; empty for a Unix socket."""
        return str(self.client_address[0]) if self.client_address else "unix"

    def log_message(self, format, *values):
        """Nothing: an answer carries its error."""

    def parse_request(self):
        """After its first line a request may not pause for long; between requests it may."""
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
        """Sends `100 Continue` at once; otherwise it would be held back with what is written later."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def send_error(self, code, message=None, explain=None):
        """An error that the base class found, in the form of the page."""
        self.close_connection = True
        # Without a version that it knows, the base class would answer without a head, as HTTP/0.9.
        self.request_version = self.protocol_version
        # The base class uses 501 for a method without a function here.
        kind = MethodError if code in (405, 501) else RequestError
        self._send(Answer.of_error(kind(message or "the request cannot be read")))

    def _send(self, answer):
        self._is_refused = answer.status >= 400 and self.close_connection
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        # What is held back when `answering` ends would be lost with the process.
        self.wfile.flush()

    def _path(self):
        return self.path.split("?")[0]

    def _check_caller(self):
        if "Origin" in self.headers:
            raise PageError("a web page may not ask this")
        # Nor a page whose server's name was redirected to this machine.
        if self.server.key is None and self.server.address_family != socket.AF_UNIX:
            for host in self.headers.get_all("Host", []):
                if not is_own(host):
                    hint = "ask 127.0.0.1 or localhost, or start it with a key (--api-key-file)"
                    message = f"without a key only names of this machine are answered to, and not {host!r}"
                    raise PageError(message, hint)

    def _check_key(self):
        self._check_caller()
        key = self.server.key
        if key is None:
            return
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {key}".encode()):
            hint = "send the key that this process was started with (--api-key-file) as the bearer token"
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
                self._check_key()
                session.hear()
                if self._path() != "/v1/info":
                    raise PathError(f"there is no call GET {self._path()}")
                answer = Answer.of(session.info())
        except LearnerError as error:
            answer = Answer.of_error(error)
        self._send(answer)

    def do_POST(self):
        """A call: reads its body and waits for its answer."""
        with self.server.answering():
            self._answer_call()

    def _answer_call(self):
        session = self.server.session
        with contextlib.ExitStack() as held:
            self._answer_held(session, held)

    def _answer_held(self, session, held):
        try:
            # A body that is not read would be taken for the next request.
            self.close_connection, stays = True, self.close_connection
            self._check_key()
            body = self._read_body(session, held)
            self.close_connection = stays
            session.hear()
            incarnation, seq = self.headers.get("Tamis-Incarnation"), self.headers.get("Tamis-Seq")
            content_type = self.headers.get("Content-Type", "")
            answer = session.submit(self._path(), content_type, body, incarnation, seq)
        except LearnerError as error:
            answer = Answer.of_error(error)
        self._send(answer)

    def finish(self):
        """Reads what the client of a refused call still writes; otherwise it would lose the answer."""
        if not self._is_refused:
            return super().finish()
        end = time.monotonic() + STALL_SECONDS
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_SECONDS)
            while time.monotonic() < end and self.connection.recv(1 << 16):
                pass
        return super().finish()

    def _read_body(self, session, held):
        if "Transfer-Encoding" in self.headers:
            raise RequestError("bodies come with a Content-Length, not in chunks")
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0].strip()):
            raise RequestError("the request has no Content-Length, or one that is no number")
        length = int(lengths[0])
        # Parsed JSON takes seventy times its bytes.
        has_columns = self.headers.get("Content-Type", "").split(";")[0].strip().lower() == SAFETENSORS
        most = session.max_body_bytes if has_columns else min(session.max_json_bytes, session.max_body_bytes)
        if length > most:
            what = "the body" if has_columns else f"the body, which is not {SAFETENSORS},"
            raise TooLongError(f"{what} has {length} bytes, and at most {most} are taken")
        end = time.monotonic() + BODY_SECONDS
        if length > SHORT:
            held.enter_context(self.server.room.take(length, BODY_SECONDS))
        body = bytearray()
        while len(body) < length:
            if time.monotonic() > end:
                raise SlowError(f"the body did not arrive within {BODY_SECONDS:.0f} s")
            part = self.rfile.read1(min(length - len(body), 1 << 20))
            if not part:
                raise ConnectionAbortedError("the connection ended within a body")
            body += part
        return body


def is_own(host):
    """Whether `host[:port]` is a name of this machine for itself."""
    found = re.fullmatch(r"\[([^]]*)\](?::\d*)?|([^:]*)(?::\d*)?", host.strip())
    name = (found[1] or found[2] or "") if found else ""
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Room:
    """Room for the long bodies of all calls together."""

    def __init__(self, size):
        self.left, self._changed = size, threading.Condition()

    @contextlib.contextmanager
    def take(self, length, seconds):
        """Waits for room for a body, and holds it in this context."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.left >= length, seconds):
                raise SlowError(f"other bodies took all the room for {seconds:.0f} s")
            self.left -= length
        try:
            yield
        finally:
            with self._changed:
                self.left += length
                self._changed.notify_all()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address, family, session, key):
        self.address_family = family
        self.session, self.key = session, key
        # The same call may come again while its body is still used.
        self.room = Room(2 * session.max_body_bytes)
        self._num_answering, self._answered = 0, threading.Condition()
        super().__init__(address, Handler)

    @contextlib.contextmanager
    def answering(self):
        """A context in which a call's answer is waited for and written."""
        with self._answered:
            self._num_answering += 1
        try:
            yield
        finally:
            with self._answered:
                self._num_answering -= 1
                self._answered.notify_all()

    def wait_until_answered(self, seconds):
        """Waits until all answers are written, at most so many seconds."""
        with self._answered:
            self._answered.wait_for(lambda: self._num_answering == 0, seconds)

    def handle_error(self, request, client_address):
        """The end of a connection is not logged; other errors are."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            traceback.print_exc()


class DeviceLost(Exception):
    """The device is unusable for this process, which ends so that another one can start."""


class ListenError(Exception):
    """The given address cannot be listened on."""


def listen(where, session, key=None):
    """A server on `HOST:PORT` or `unix:/path`, and the address that it prints."""
    if where.startswith("unix:"):
        path = where.removeprefix("unix:")
        _remove_stale(path)
        # The socket must never be open to others, not even between its creation and a chmod.
        before = os.umask(0o177)
        try:
            return _Server(path, socket.AF_UNIX, session, key), f"unix:{path}"
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
        if key is None and not ipaddress.ip_address(address[0].split("%")[0]).is_loopback:
            hint = "put a secret into a file and pass it with --api-key-file, or listen on 127.0.0.1"
            raise ListenError(f"{address[0]} can be reached from other machines, but no key is set\nhint: {hint}")
        server = _Server(address, family, session, key)
    except OSError as error:
        raise ListenError(f"failed to listen on {where}: {error.strerror or error}") from None
    host = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
    return server, f"http://{host}:{server.server_address[1]}"


def _remove_stale(path):
    """Removes the socket of a process that is gone."""
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
    """A signal asked the process to end."""


def _end(*_):
    raise _Ended


def read_key(path):
    """The key in a file, which every caller must send; `None` without a file. Raises `ListenError`."""
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise ListenError(f"failed to read {path}: {error.strerror}") from None
    if not key or not key.isascii() or not key.isprintable():
        raise ListenError(f"{path} holds no key: one line of printable ASCII")
    return key


def serve(where, session, key=None, prepare=lambda: None):
    """Listens, and has the session compute in this thread until it is done or a signal comes. `prepare` is called once
    the address is taken, before any request is answered.

    Returns whether it was done. Raises `DeviceLost` if the session does, after finished answers have been sent.
    """
    server, address = listen(where, session, key)
    try:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
        prepare()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"listening on {address}", flush=True)
        session.run()
        return True
    except _Ended:
        return False
    except DeviceLost:
        server.wait_until_answered(LAST_SECONDS)
        raise
    finally:
        # A second signal must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if where.startswith("unix:"):
            os.unlink(where.removeprefix("unix:"))


__all__ = ["Answer", "DeviceLost", "ListenError", "listen", "read_key", "serve"]
