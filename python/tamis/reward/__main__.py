"""`python -m tamis.reward`: a reward model on a socket."""

import argparse
import json
import pathlib
import sys


def fail(message, hint=None):
    """Ends the process. The program that started it reads the reason in the last line."""
    sys.exit(json.dumps({"error": message, "hint": hint}))


def main():
    """Parses arguments, then imports what is heavy."""
    parser = argparse.ArgumentParser(
        prog="python -m tamis.reward",
        description="Scores texts with a reward model (docs/rewards.md, `kind: model`).",
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT|unix:/PATH", help="port 0 takes any free one")
    parser.add_argument("--settings", required=True, type=pathlib.Path, help="JSON file: folder, device, dtype, ...")
    arguments = parser.parse_args()
    try:
        text = arguments.settings.read_text()
    except OSError as error:
        parser.error(f"failed to read {arguments.settings}: {error.strerror}")
    try:
        from ..learner.connections import DeviceLost, ListenError
        from ..learner.protocol import LearnerError
        from .server import serve
    except ImportError as error:
        fail(f"a reward model needs {error.name}, which is not installed", "scripts/install-torch")
    try:
        serve(arguments.listen, text)
    except LearnerError as error:
        fail(error.message, error.hint)
    except ListenError as error:
        fail(str(error))
    except DeviceLost as error:
        # It has answered before: now its output is shown, and not read.
        sys.exit(f"error: {error}")


main()
