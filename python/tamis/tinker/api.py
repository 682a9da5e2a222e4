"""Requests to a server of Tinker's API: retries, futures that are polled, what a status means, the session.

A call that changes something is answered at once with the id of its future, whose result is asked for until it is
there. A training call bears a number: the server carries it out once, however often it is sent.
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

# The version of the SDK whose wire is written here: servers go by it.
SDK_VERSION = "0.25.0"
# Seconds that a future is waited for before it is asked for again.
POLL_SECONDS = 45.0
# Seconds between two signs of life; servers end a session that has given none for minutes.
HEARTBEAT_SECONDS = 10.0
# Statuses of a server that will answer later.
_LATER = (408, 425, 429, 502, 503, 504)
# Those of something between it and here: the server may have got the request.
_UNCLEAR = (502, 504)
# Times that a request is sent again which the server itself failed on.
_AGAIN = 3
# What a server says of a model, session or future that it does not have any more, as after a restart.
_GONE = ("model not found", "session not found", "future not found", "not loaded", "session finished")
_JSON = "application/json"


class ServerRefused(Refused):
    """The server answered with a status of 400 to 499."""

    def __init__(self, answered, message, hint=None):
        super().__init__(message, hint)
        self.answered = answered


class Gone(Lost):
    """The server does not have a model, a session or a future, or not any more."""


class FutureFailed(Failed):
    """The server says of one future that it failed, as the hosted service does."""


class AnswerLost(Lost):
    """A call may have been carried out, and its answer did not come."""


@contextlib.contextmanager
def held_signals():
    """What would end the process within the block ends it after the block. Another thread than the main one hears no
    signals.
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
    """A redirection is an error: the key would go with it."""

    def redirect_request(self, *_):
        return None


class Api:
    """Calls to the server at `url`.

    `patience`: seconds for which a server that cannot be reached is asked again; `timeout`: longest time of one call.
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
            raise Refused("TINKER_API_KEY has characters that no key has", "is it the text of the key alone?")
        self._headers = {"User-Agent": "tamis", **({"X-API-Key": key} if key else {})}
        # No proxy stands between two processes of one machine.
        handlers = [urllib.request.ProxyHandler({})] if is_own(parts.netloc) else []
        self._opener = urllib.request.build_opener(_NoRedirect, *handlers)
        # What may have a place at the server.
        self.models = set()

    def leave(self):
        """Frees all places at the server, and does not wait for it."""
        for model in list(self.models):
            model.leave()

    def call(self, path, values):
        """The JSON that a call answers."""
        return self._json(path, *self._send(path, json.dumps(values).encode(), _JSON, _JSON))

    def ask(self, path):
        """The JSON that a `GET` answers."""
        return self._json(path, *self._send(path, None, None, _JSON))

    def submit(self, path, body, patience=None, note=None):
        """The id of the future of a call, whose body is a JSON object or protobuf as bytes.

        `note`: a function of the answer, which is told before any signal is heard. Such a call bears no number, so it
        is not sent again if it may have been carried out: `AnswerLost`.
        """
        content_type = protobuf.CONTENT_TYPE if isinstance(body, bytes) else _JSON
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._json(path, *self._send(path, data, content_type, _JSON, patience=patience, note=note))
        if not isinstance(answer.get("request_id"), str):
            raise Failed(f"{self.url} answered {path} without a `request_id`: {_shown(answer)}")
        return answer["request_id"]

    def result(self, future, what, timeout=None):
        """The result of a future, in JSON; `timeout`: the seconds that it is waited for, if they are fewer."""
        content_type, body = self._poll(future, what, _JSON, timeout)
        return self._json(what, content_type, body)

    def protobuf_result(self, future, what, decode):
        """The result of a future, decoded."""
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
        """Content type and body of an answer of 200. `None` of a poll whose future is not there yet."""
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
                # One that comes while a connection is made is wrapped: nobody has answered then.
                if is_poll and isinstance(error, TimeoutError):
                    return None
                reason = first_line(getattr(error, "reason", error))
                is_lost = not isinstance(error, urllib.error.URLError)
            except http.client.HTTPException as error:
                # What is no HTTP, as at a port of another program, or an answer that is cut off.
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
                message, "the server's log may say more; docs/learners.md has the servers that are known to work"
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
    """The body of an answer, or what came of it."""
    try:
        return answer.read()
    except http.client.IncompleteRead as error:
        return error.partial
    except (OSError, http.client.HTTPException):
        return b""


def _detail(body):
    """What an answer says is wrong."""
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300] or "nothing is said"
    if isinstance(detail, list):
        parts = [
            f"{'.'.join(map(str, item.get('loc', ())))}: {item.get('msg')}" for item in detail if isinstance(item, dict)
        ]
        return "; ".join(parts)
    return str(detail)


class Session:
    """A session at the server, with its sign of life until `close`. It has one model: what nobody knows of any more is
    forgotten by the server with its session.
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
                # Calls fail with the reason. A server may be there again.
                if not is_lost:
                    self.api.log(f"no sign of life reaches the session: {first_line(error)}")
                is_lost = isinstance(error, Lost)

    def next_sampler(self):
        """The number of the session's next sampler, from 0."""
        self._num_samplers += 1
        return self._num_samplers - 1

    def close(self):
        """Ends the sign of life."""
        self._ended.set()


def begin(api, base_model):
    """Checks that the server is one that can be spoken to, and that it has the base model."""
    flags = api.call("client/config", {"sdk_version": SDK_VERSION})
    if flags.get("pjwt_auth_enabled"):
        hint = "servers that take the key itself (X-API-Key) can be used"
        raise Refused(f"{api.url} asks for a token in exchange for the key, which is not implemented", hint)
    models = api.ask("get_server_capabilities").get("supported_models")
    names = [model.get("model_name") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    if base_model not in names:
        # Some servers train the model that they have, whatever name they are given.
        have = ", ".join(map(str, names)) or "none"
        raise Refused(f"{api.url} has no base model `{base_model}`", f"it has {have}: name one with --base-model")


def is_norm(value):
    """Whether a metric is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
