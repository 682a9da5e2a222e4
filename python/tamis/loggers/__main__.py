"""`python -m tamis.loggers KIND SETTINGS`: records over JSON lines on standard input."""

import importlib
import json
import os
import signal
import sys
import time

from . import Unusable, without_passwords

# Seconds without a further attempt after one that failed; they double with each, up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0


class Voice:
    """Lines for the run, on what was standard output."""

    def __init__(self, out):
        self.out = out

    def say(self, **line):
        """Writes a line, unless the run is gone."""
        try:
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()
        except OSError:
            pass


class Log:
    """Standard error, which is a file of the run: nothing in it gives away a password."""

    def __init__(self, out):
        self.out = out

    def write(self, text):
        """Writes a text, without the passwords of addresses in it."""
        self.out.write(without_passwords(text))
        return len(text)

    def __getattr__(self, name):
        return getattr(self.out, name)


class Delivery:
    """Hands records on, and waits after a failure: a server that is away must not hold up those after it."""

    def __init__(self, run, voice):
        self.run, self.voice, self.pause, self.next_attempt = run, voice, 0.0, 0.0

    def deliver(self, record):
        """Hands on one record, and reports that it arrived."""
        if time.monotonic() < self.next_attempt:
            return
        try:
            if "metrics" in record:
                self.run.log(record["step"], record["metrics"])
            else:
                self.run.show(record["step"], record.get("histograms", {}), record.get("samples", []))
            self.pause = 0.0
            self.voice.say(arrived=1)
        except Exception as error:
            self.pause = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
            self.next_attempt = time.monotonic() + self.pause
            self.voice.say(failed=describe(error))


def describe(error):
    """An error in one line of at most 300 characters."""
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


def main():
    """Keeps standard output for the run: whatever packages print goes to standard error."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("wandb", "mlflow", "trackio"):
        sys.exit("usage: python -m tamis.loggers wandb|mlflow|trackio SETTINGS")
    kind, settings = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    voice = Voice(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    sys.stdout = sys.stderr = Log(sys.stderr)
    with open(settings, encoding="utf-8") as file:
        given = json.load(file)
    try:
        run = importlib.import_module(f".to_{kind}", __package__).open_run(given, voice.say)
    except Exception as error:
        voice.say(failed=describe(error))
        # The sent records are consumed; otherwise a broken pipe would be reported in place of the reason.
        for _ in sys.stdin:
            pass
        sys.exit(0 if isinstance(error, Unusable) else 1)
    delivery, ending = Delivery(run, voice), "failed"
    for line in sys.stdin:
        record = json.loads(line)
        if "close" in record:
            ending = record["close"]
            break
        delivery.deliver(record)
    try:
        run.close(ending)
    except Exception as error:
        voice.say(failed=f"the end of the run did not arrive: {describe(error)}")


main()
