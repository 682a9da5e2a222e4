"""The agent of a place as its launcher holds it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

from .agent import GRACE

AGENT = pathlib.Path(__file__).with_name("agent.py")


class Channel:
    """An agent on this machine, and what it says."""

    def __init__(self, program=None):
        """`program`: a folder with this package that the agent removes when it ends."""
        self._process = subprocess.Popen(
            # What a person set for Python is for the processes, not for their agent.
            [sys.executable, "-I", str(AGENT), *([str(program)] if program else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self.hello = self.receive()
        if self.hello is None:
            raise OSError("its agent ended at once")

    def send(self, message):
        """Asks the agent for something; one that is gone is found by `receive`."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self):
        """Waits for what the agent says next; `None` once it has ended."""
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def close(self, grace=GRACE):
        """Ends what the agent started, and the agent."""
        self.send({"do": "end", "grace": grace})
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(grace + 2 * GRACE)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
