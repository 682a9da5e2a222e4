"""A bounded pool of threads whose calls can be abandoned."""

import os
import queue
import sys
import threading

from .protocol import Refused

# Abandoned calls that still run, for each thread of the pool, above which the process ends.
MOST_LOST = 4


class Threads:
    """Calls on at most so many threads, which do not keep the process alive."""

    def __init__(self, most):
        self._most, self._num, self._num_lost = most, 0, 0
        self._lock, self._calls = threading.Lock(), queue.SimpleQueue()

    def submit(self, function, arguments, end):
        """Runs a call, then `end(result, error)`. Returns what gives it up."""
        call = _Call(self, function, arguments, end)
        self._calls.put(call)
        with self._lock:
            self._grow()
        return call.give_up

    def replace(self):
        """Puts a thread in the place of one that may never come back. Too many of those end the process."""
        with self._lock:
            self._num -= 1
            self._num_lost += 1
            if self._num_lost >= MOST_LOST * self._most:
                told = f"{self._num_lost} abandoned calls still run: this process ends, and another is started"
                print(told, file=sys.stderr, flush=True)
                os._exit(1)
            self._grow()

    def count_back(self):
        """An abandoned call has returned."""
        with self._lock:
            self._num_lost -= 1

    def _grow(self):
        if self._num < self._most:
            self._num += 1
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while self._calls.get().run():
            pass


class _Call:
    def __init__(self, threads, function, arguments, end):
        self._threads, self._function, self._arguments, self._end = threads, function, arguments, end
        self._lock, self._is_at_work, self._is_given_up = threading.Lock(), False, False

    def run(self):
        """Whether its thread takes another."""
        with self._lock:
            self._is_at_work = True
            is_given_up = self._is_given_up
        result = error = None
        try:
            if is_given_up:
                raise Refused("the call was abandoned before it began")
            result = self._function(*self._arguments)
        except BaseException as raised:  # SystemExit too: it ends an episode, not the process
            error = raised
        self._end(result, error)
        with self._lock:
            self._is_at_work = False
            is_lost = self._is_given_up and not is_given_up
        if is_lost:
            self._threads.count_back()
        return not is_lost

    def give_up(self):
        with self._lock:
            was_at_work, self._is_given_up = self._is_at_work and not self._is_given_up, True
        if was_at_work:
            self._threads.replace()
