"""The launcher's end of an agent."""

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
    """An agent on this machine, with its messages."""

    def __init__(self, program=None):
        """`program`: a folder with this package, which the agent removes when it ends."""
        self._process = subprocess.Popen(
            # Variables that a user sets for Python are for the processes, not for their agent.
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
        """Sends the agent a command. If it is gone, `receive` notices."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self):
        """Waits for the agent's next message; `None` once it has ended."""
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def close(self, grace=GRACE):
        """Ends the agent and what it started."""
        self.send({"do": "end", "grace": grace})
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(grace + 2 * GRACE)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
