"""Requests to a server of Tinker's API: retries, polled futures, the meaning of a status, the session.

A call that changes something is answered at once with the id of a future, whose result is polled. A training call has a
number, and the server carries it out once, however often it is sent.
"""

import contextlib
import http.client
import json
import math
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from ..learner.connections import is_own
from ..learner.messages import Failed, LearnerError, Lost, Refused, first_line
from . import protobuf

# The SDK version whose wire this is: servers check it.
SDK_VERSION = "0.25.0"
# Seconds that one poll of a future waits.
POLL_SECONDS = 45.0
# Seconds between two heartbeats; servers end a session after some minutes without one.
HEARTBEAT_SECONDS = 10.0
# Statuses of a server that will answer later.
_LATER = (408, 425, 429, 502, 503, 504)
# Statuses of something in between: the server may have received the request.
_UNCLEAR = (502, 504)
# How often a request is repeated after a failure of the server itself.
_AGAIN = 3
# A server's words for a model, session or future that it no longer has, for example after a restart.
_GONE = ("model not found", "session not found", "future not found", "not loaded", "session finished")
_JSON = "application/json"


class ServerRefused(Refused):
    """The server answered with a status of 400 to 499."""

    def __init__(self, answered, message, hint=None):
        super().__init__(message, hint)
        self.answered = answered


class Gone(Lost):
    """The server has no such model, session or future, or no longer."""


class FutureFailed(Failed):
    """The server reports that one future failed, as the hosted service does."""


class AnswerLost(Lost):
    """A call may have been carried out, but its answer did not arrive."""


@contextlib.contextmanager
def held_signals():
    """Delays a signal that would end the process until after the block. Threads other than the main one get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is an error, because the key would go with it."""

    def redirect_request(self, *_):
        return None


class Api:
    """Calls to the server at `url`.

    `patience`: seconds for which requests to an unreachable server are repeated; `timeout`: longest time of one call.
    """

    def __init__(self, url, key=None, patience=300.0, timeout=7200.0, log=lambda line: None):
        self.url = url.rstrip("/").removesuffix("/api/v1")
        self.patience, self.timeout, self.log = patience, timeout, log
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"`{url}` is no address of a server", "name one as http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            raise Refused("the address of the server has a name or a password in it", "give the key in TINKER_API_KEY")
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise Refused("TINKER_API_KEY has characters that no key has", "set it to the key, without other text")
        self._headers = {"User-Agent": "tamis", **({"X-API-Key": key} if key else {})}
        # No proxy is used between two processes of one machine.
        handlers = [urllib.request.ProxyHandler({})] if is_own(parts.netloc) else []
        self._opener = urllib.request.build_opener(_NoRedirect, *handlers)
        # What may hold a place at the server.
        self.models = set()

    def leave(self):
        """Frees all places at the server, without waiting."""
        for model in list(self.models):
            model.leave()

    def call(self, path, values):
        """The JSON answer of a call."""
        return self._json(path, *self._send(path, json.dumps(values).encode(), _JSON, _JSON))

    def ask(self, path):
        """The JSON answer of a `GET`."""
        return self._json(path, *self._send(path, None, None, _JSON))

    def submit(self, path, body, patience=None, note=None):
        """The id of the future of a call, whose body is a JSON object or protobuf as bytes.

        `note`: a function that gets the answer before any signal is handled. Such a call has no number, so it is not
        repeated if it may have been carried out: `AnswerLost`.
        """
        content_type = protobuf.CONTENT_TYPE if isinstance(body, bytes) else _JSON
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._json(path, *self._send(path, data, content_type, _JSON, patience=patience, note=note))
        if not isinstance(answer.get("request_id"), str):
            raise Failed(f"{self.url} answered {path} without a `request_id`: {_shown(answer)}")
        return answer["request_id"]

    def result(self, future, what, timeout=None):
        """The JSON result of a future; `timeout`: seconds to wait for it, if fewer than those of the call."""
        content_type, body = self._poll(future, what, _JSON, timeout)
        return self._json(what, content_type, body)

    def protobuf_result(self, future, what, decode):
        """The decoded result of a future."""
        content_type, body = self._poll(future, what, protobuf.CONTENT_TYPE)
        if content_type != protobuf.CONTENT_TYPE:
            hint = "the wire is that of the SDK 0.25: docs/learners.md has the servers that speak it"
            raise Failed(f"{self.url} answered {what} as {content_type}, and protobuf is expected", hint)
        try:
            return decode(body)
        except protobuf.ProtobufError as error:
            raise Failed(f"the answer of {self.url} to {what} cannot be read: {error}") from None

    def _poll(self, future, what, accept, timeout=None):
        body = json.dumps({"request_id": future, "allow_metadata_only": False}).encode()
        patience, timeout = timeout, self.timeout if timeout is None else min(timeout, self.timeout)
        end = time.monotonic() + timeout
        while True:
            answered = self._send("retrieve_future", body, _JSON, accept, of=what, is_poll=True, patience=patience)
            if answered is not None:
                content_type, found = answered
                waits = False
                if content_type == _JSON:
                    answer = self._json(what, content_type, found)
                    waits = answer.get("type") == "try_again" or answer.get("status") == "complete_metadata"
                    if "error" in answer and "category" in answer:
                        raise FutureFailed(f"{what} failed at {self.url}: {answer['error']}")
                if not waits:
                    return content_type, found
                time.sleep(min(1.0, self.patience / 100))
            if time.monotonic() > end:
                raise Lost(f"{self.url} has not answered {what} within {timeout:.0f} s")

    def _send(self, path, body, content_type, accept, of=None, is_poll=False, patience=None, note=None):
        """Content type and body of an answer of 200. `None` for a poll whose future is not ready."""
        what = of or path
        url = f"{self.url}/api/v1/{path}"
        headers = {**self._headers, "Accept": accept, **({"Content-Type": content_type} if content_type else {})}
        longest = POLL_SECONDS if patience is None else min(POLL_SECONDS, patience)
        patience = self.patience if patience is None else min(patience, self.patience)
        end, pause, num_failed = time.monotonic() + patience, 0.05, 0
        while True:
            try:
                request = urllib.request.Request(url, body, headers, method="GET" if body is None else "POST")
                with held_signals() if note else contextlib.nullcontext():
                    with self._opener.open(request, timeout=longest) as answer:
                        found = answer.headers.get("Content-Type", "").split(";")[0].strip().lower()
                        data = answer.read()
                    if note is not None:
                        note(self._json(what, found, data))
                return found, data
            except urllib.error.HTTPError as error:
                with error:
                    status, detail = error.code, _detail(_read(error))
                if is_poll and status == 408:
                    return None
                num_failed += status == 500
                if status not in _LATER and not (status == 500 and num_failed <= _AGAIN):
                    raise self._error(what, status, detail) from None
                reason, is_lost = f"status {status}: {detail}", status in _UNCLEAR
            except OSError as error:
                # An error while a connection is made is wrapped: there was no answer.
                if is_poll and isinstance(error, TimeoutError):
                    return None
                reason = first_line(getattr(error, "reason", error))
                is_lost = not isinstance(error, urllib.error.URLError)
            except http.client.HTTPException as error:
                # Not HTTP, as at another program's port, or an answer that was cut off.
                reason, is_lost = f"{type(error).__name__}: {first_line(error)}", True
            if is_lost and note is not None:
                raise AnswerLost(f"the answer of {self.url} to {what} was lost: {reason}")
            if time.monotonic() + pause > end:
                message = f"{self.url} has not answered {what} for {patience:.0f} s: {reason}"
                raise Lost(message, "is the server of --url up?")
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _json(self, what, content_type, body):
        try:
            answer = json.loads(body) if content_type == _JSON else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            hint = "is it a server of Tinker's API? docs/learners.md has those that are known to work"
            raise Failed(f"{self.url} answered {what} with no JSON object ({content_type or 'no content type'})", hint)
        return answer

    def _error(self, what, status, detail):
        message = f"{self.url} refused {what} (status {status}): {detail}"
        if status == 410 or any(text in detail.lower() for text in _GONE):
            return Gone(message, "the server was started again, or ended the session")
        if status >= 500:
            return Failed(
                message, "see the server's log; docs/learners.md has the servers that are known to work"
            )
        hint = None
        if status in (401, 403):
            hint = "name the server's key in TINKER_API_KEY"
        elif "maximum number of lora adapters" in detail.lower():
            hint = "another client holds them: end it, wait until the server forgets it, or start the server with more"
        elif status == 415:
            hint = "the server speaks an earlier wire: docs/learners.md has the versions that fit"
        return ServerRefused(status, message, hint)


def _shown(answer):
    text = json.dumps(answer)
    return text if len(text) <= 200 else text[:197] + "..."


def _read(answer):
    """The body of an answer, or the error that it means."""
    try:
        return answer.read()
    except http.client.IncompleteRead as error:
        return error.partial
    except (OSError, http.client.HTTPException):
        return b""


def _detail(body):
    """The error message of an answer."""
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300] or "no text"
    if isinstance(detail, list):
        parts = [
            f"{'.'.join(map(str, item.get('loc', ())))}: {item.get('msg')}" for item in detail if isinstance(item, dict)
        ]
        return "; ".join(parts)
    return str(detail)


class Session:
    """A session at the server, with a heartbeat until `close`. It holds one model, so that the server drops a model
    whose id was lost together with its session.
    """

    def __init__(self, api):
        self.api = api
        values = {"tags": ["tamis"], "user_metadata": {}, "sdk_version": SDK_VERSION, "type": "create_session"}
        self.id = api.call("create_session", values).get("session_id")
        if not isinstance(self.id, str):
            raise Failed(f"{api.url} began a session without a `session_id`")
        self._num_samplers = 0
        self._ended = threading.Event()
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self):
        is_lost = False
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                self.api.call("session_heartbeat", {"session_id": self.id, "type": "session_heartbeat"})
                is_lost = False
            except LearnerError as error:
                # Calls fail with the reason. The server may come back.
                if not is_lost:
                    self.api.log(f"no sign of life reaches the session: {first_line(error)}")
                is_lost = isinstance(error, Lost)

    def next_sampler(self):
        """The number of the session's next sampler, from 0."""
        self._num_samplers += 1
        return self._num_samplers - 1

    def close(self):
        """Ends the heartbeat."""
        self._ended.set()


def begin(api, base_model):
    """Checks that the server speaks this wire and has the base model."""
    flags = api.call("client/config", {"sdk_version": SDK_VERSION})
    if flags.get("pjwt_auth_enabled"):
        hint = "servers that take the key itself (X-API-Key) can be used"
        raise Refused(f"{api.url} asks for a token in exchange for the key, which is not implemented", hint)
    models = api.ask("get_server_capabilities").get("supported_models")
    names = [model.get("model_name") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    if base_model not in names:
        # Some servers train the model that they have, whatever name they get.
        have = ", ".join(map(str, names)) or "none"
        raise Refused(f"{api.url} has no base model `{base_model}`", f"it has {have}: name one with --base-model")


def is_norm(value):
    """Whether a metric is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
