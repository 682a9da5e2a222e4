"""`python -m tamis.environments`: episodes over JSON lines on standard input and output."""

import argparse
import os
import sys

from .server import serve


def main():
    """Keeps standard input and output for the protocol: whatever environments print goes to standard error."""
    argparse.ArgumentParser(
        prog="python -m tamis.environments",
        description="Plays environments of Gymnasium, of verifiers and of your own: a request a line on standard "
        "input, an answer a line on standard output (`tamis-environment/1`, described in the package).",
    ).parse_args()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(requests, answers)


main()
