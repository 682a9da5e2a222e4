"""`python -m tamis.learner`: a learner on a socket."""

import argparse
import pathlib
import sys


def main():
    """Parses arguments, then imports what is heavy."""
    parser = argparse.ArgumentParser(
        prog="python -m tamis.learner",
        description="Learns in PyTorch what a controller asks for over tamis-learner/1 (docs/learner-protocol.md).",
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT|unix:/PATH", help="port 0 takes any free one")
    parser.add_argument(
        "--token-file", type=pathlib.Path, help="file with the bearer token that every caller must have"
    )
    arguments = parser.parse_args()
    token = None
    if arguments.token_file is not None:
        try:
            token = arguments.token_file.read_text().strip()
        except OSError as error:
            parser.error(f"failed to read {arguments.token_file}: {error.strerror}")
        if not token or not token.isascii() or not token.isprintable():
            parser.error(f"{arguments.token_file} holds no token: one line of printable ASCII")
    try:
        from .server import ListenError, serve
    except ImportError as error:
        sys.exit(f"the torch learner needs {error.name}, which is not installed\nhint: scripts/install-torch")
    try:
        serve(arguments.listen, token)
    except ListenError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


main()
