"""Requests, the episodes that they are about, and the calls that are at work.

The main thread reads requests. `hello` is carried out there (packages set signal handlers, which only the
main thread may do), everything else by a thread of a bounded pool, or on an event loop in a thread of its own
if a kind is asynchronous. So a slow or hanging call delays only its own episode. An abandoned call (`close`)
keeps its thread until it returns, if ever; the pool gets another in its place.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
import traceback

from .protocol import PROTOCOL, SPLITS, Outcome, Refused, Settings, as_messages, encode, error_body, shown
from .threads import Threads

# Each with its module and the package that it needs.
KINDS = {
    "gymnasium": (".of_gymnasium", "gymnasium"),
    "verifiers": (".of_verifiers", "verifiers"),
    "python": (".of_python", None),
    "tools": (".of_tools", None),
}
# How long answers are waited for once no more requests will come, and how long putting away may take then.
PATIENCE = 5.0
# How long an environment may take to close.
CLOSING = 10.0


class Pending:
    """A request that is answered once."""

    def __init__(self, server, number):
        self._server, self._id = server, number
        self._lock, self._is_answered = threading.Lock(), False

    def answer(self, body):
        """Writes the answer, unless there was one already."""
        with self._lock:
            if self._is_answered:
                return
            line = encode({"id": self._id, **body})
            self._is_answered = True
        self._server.write(line)

    def fail(self, error):
        """Answers with an error. Unless it is a refusal, its traceback goes to standard error."""
        if not isinstance(error, Refused):
            print("".join(traceback.format_exception(error)), end="", file=sys.stderr, flush=True)
        self.answer({"error": error_body(error)})


class Episode:
    """An episode under its name: what plays it, and the request about it that is at work."""

    def __init__(self, name, pending):
        self.name, self.pending = name, pending
        self.played = None
        self.give_up = lambda: None
        self.is_closed = self.is_over = False


class Server:
    """Takes lines and writes lines; `write` may be called by any thread."""

    def __init__(self, write):
        self._write, self._write_lock = write, threading.Lock()
        self._kind = self._threads = self._event_loop = None
        self._episodes, self._lock = {}, threading.Lock()
        self._num_at_work, self._changed = 0, threading.Condition()
        ops = (self._hello, self._levels, self._reset, self._step, self._cut, self._close)
        self._ops = {op.__name__[1:]: op for op in ops}

    def write(self, line):
        """Writes a line as a whole."""
        with self._write_lock:
            self._write(line)

    def take(self, line):
        """Carries a request out, or sets it to work."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            values = f"not JSON: {error}"
        pending = Pending(self, values.pop("id", None) if isinstance(values, dict) else None)
        try:
            if not isinstance(values, dict):
                raise Refused(f"a request must be an object on one line, and is {shown(values)}")
            op = self._ops.get(str(values.pop("op", None)))
            if op is None:
                raise Refused("the request's `op` must be one of " + ", ".join(self._ops))
            if self._kind is None and op != self._hello:
                raise Refused("the environment has not been described yet", "send `hello` first")
            op(Settings(values, "the request"), pending)
        except BaseException as error:
            pending.fail(error)

    def end(self):
        """Waits for what is at work, then closes what is left; neither for ever."""
        self._wait()
        with self._lock:
            left = list(self._episodes.values())
        for episode in left:
            self._drop(episode)
        self._wait()

    def _wait(self):
        with self._changed:
            self._changed.wait_for(lambda: not self._num_at_work, PATIENCE)

    def _hello(self, request, pending):
        if self._kind is not None:
            raise Refused("`hello` was sent already", "start another process for another environment")
        protocol, values = request.text("protocol"), request.object("settings")
        request.finish()
        if protocol != PROTOCOL:
            raise Refused(f"this process speaks {PROTOCOL}, and not {protocol}", "install the tamis that asks")
        settings = Settings(values, "the environment")
        kind = settings.choice("kind", KINDS)
        threads = Threads(settings.count("num_threads", 32))
        name, package = KINDS[kind]
        try:
            if kind == "verifiers" and importlib.util.find_spec("verifiers.clients") is None:  # from 0.4 on
                name = ".of_tasksets"
            module = importlib.import_module(name, __package__)
        except ImportError as error:
            missing = error.name or package
            hint = f"install {missing} for `python` (the interpreter), as scripts/install-environments does"
            raise Refused(f"an environment of {kind} needs `{missing}`: {error}", hint) from None
        handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            made = module.Kind(settings)
            body = {"protocol": PROTOCOL, **made.describe()}
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
        pending.answer(body)
        self._kind, self._threads = made, threads

    def _levels(self, request, pending):
        split, count = request.choice("split", SPLITS), request.count("count", least=0)
        seed = request.count("seed", 0, least=0)
        request.finish()

        def end(levels, error):
            if error is None:
                try:
                    return pending.answer({"levels": [_level(level) for level in levels]})
                except Exception as raised:
                    error = raised
            pending.fail(error)

        self._run(self._kind.levels, (split, count, seed), end)

    def _reset(self, request, pending):
        name, level, luck = request.text("episode"), request.anything("level"), request.text("luck")
        request.finish()
        if not (luck.isascii() and luck.isdigit() and int(luck) < 1 << 64):
            raise Refused(f"`luck` must be a decimal u64 in a text, and is {shown(luck)}")
        episode = Episode(name, pending)
        with self._lock:
            if name in self._episodes:
                raise Refused(f"the episode {name} is there already", "close it first, or choose another name")
            self._episodes[name] = episode

        def answered(started):
            episode.played, messages = started
            return {"messages": None if messages is None else as_messages(messages, "the beginning of the episode")}

        self._play(episode, self._kind.start, (level, int(luck)), answered)

    def _step(self, request, pending):
        name, action = request.text("episode"), request.text("action")
        request.finish()
        self._go_on(name, pending, "step", (action,))

    def _cut(self, request, pending):
        name = request.text("episode")
        request.finish()
        self._go_on(name, pending, "cut", ())

    def _go_on(self, name, pending, what, arguments):
        """A call of an episode that is not over."""
        with self._lock:
            episode = self._episodes.get(name)
            if episode is None:
                raise Refused(f"there is no episode {name}", "reset it; one that failed or was closed is gone")
            if episode.pending is not None:
                raise Refused(f"the episode {name} is at work", "wait for the answer, or close the episode")
            if episode.is_over:
                raise Refused(f"the episode {name} is over", "close it")
            function = getattr(episode.played, what, None)
            if function is None:
                raise Refused(f"episodes of this environment cannot be {what}", "close it")
            episode.pending = pending

        def answered(outcome: Outcome):
            episode.is_over = outcome.is_last
            return outcome.body()

        self._play(episode, function, arguments, answered)

    def _close(self, request, pending):
        name = request.text("episode")
        request.finish()
        with self._lock:
            episode = self._episodes.get(name)
        if episode is not None:
            self._drop(episode)
        pending.answer({})

    def _play(self, episode, function, arguments, answered):
        """Runs a call of an episode and answers its request; whatever fails on the way costs the episode."""
        pending = episode.pending

        def end(result, error):
            body = None
            if error is None:
                try:
                    body = answered(result)
                    encode(body)
                except Exception as raised:
                    error = raised
            with self._lock:
                episode.pending = None
                is_closed = episode.is_closed
            if is_closed:
                self._put_away(episode)
            elif error is None:
                pending.answer(body)
            else:
                self._drop(episode)
                pending.fail(error)

        give_up = self._run(function, arguments, end)
        with self._lock:
            episode.give_up = give_up

    def _drop(self, episode):
        """Forgets an episode, with the call of it that is at work."""
        with self._lock:
            if episode.is_closed:
                return
            episode.is_closed = True
            del self._episodes[episode.name]
            pending = episode.pending
        if pending is None:
            self._put_away(episode)
            return
        pending.fail(Refused(f"the episode {episode.name} was closed while it was at work"))
        episode.give_up()

    def _put_away(self, episode):
        """Frees an episode's environment, without waiting; its thread does not wait for ever."""
        played, episode.played = episode.played, None
        if played is None:
            return

        def end(_, error):
            if error is not None:
                traceback.print_exception(error)

        def give_late_up():
            told = f"closing the environment of the episode {episode.name} takes more than {CLOSING:.0f} s: abandoned"
            print(told, file=sys.stderr, flush=True)
            give_up()

        def close():
            timer = threading.Timer(CLOSING, give_late_up)
            timer.daemon = True
            timer.start()
            try:
                played.close()
            finally:
                timer.cancel()

        # An asynchronous kind takes no thread.
        give_up = self._run(played.close if inspect.iscoroutinefunction(played.close) else close, (), end)

    def _run(self, function, arguments, end):
        """Sets a call to work. Returns what gives it up."""
        is_counted = True
        with self._changed:
            self._num_at_work += 1

        def uncount():
            nonlocal is_counted
            with self._changed:
                self._num_at_work -= is_counted
                is_counted = False
                self._changed.notify_all()

        def end_counted(result, error):
            try:
                end(result, error)
            finally:
                uncount()

        if not inspect.iscoroutinefunction(function):
            give_up = self._threads.submit(function, arguments, end_counted)
            return lambda: (give_up(), uncount())
        if self._event_loop is None:
            self._event_loop = asyncio.new_event_loop()
            threading.Thread(target=self._event_loop.run_forever, daemon=True).start()

        tasks = []

        async def run():
            result = error = None
            tasks.append(asyncio.current_task())
            try:
                result = await function(*arguments)
            except BaseException as raised:
                error = raised
            end_counted(result, error)

        loop = self._event_loop
        asyncio.run_coroutine_threadsafe(run(), loop)
        # One round later than it begins: a task that is cancelled before that would never end.
        return lambda: loop.call_soon_threadsafe(loop.call_soon, lambda: tasks[0].cancel())


def _level(level):
    prompt, truth = level["prompt"], level.get("ground_truth")
    if not isinstance(prompt, str):
        prompt = as_messages(prompt, "the prompt of a level")
    if not prompt:
        raise Refused("the prompt of a level is empty")
    return {"level": level["level"], "prompt": prompt, "ground_truth": None if truth is None else str(truth)}


def serve(requests, answers):
    """Answers every line of `requests`, then ends the process."""
    # The program that started it ends it by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def write(line):
        try:
            view = memoryview(line)
            while view:
                view = view[answers.write(view) :]
        except OSError:  # the reader is gone
            os._exit(1)

    server = Server(write)
    for line in requests:
        if line.strip():
            server.take(line)
    server.end()
    # The exit handlers of packages must not delay it.
    watchdog = threading.Timer(PATIENCE, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
