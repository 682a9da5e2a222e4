"""`python -m tamis.learner`: a learner on a socket."""

import argparse
import pathlib
import sys

from . import connections
from .connections import DeviceLost, ListenError


def main():
    """Parses arguments, then imports what is slow to import."""
    parser = argparse.ArgumentParser(
        prog="python -m tamis.learner",
        description="Learns in PyTorch what a controller asks for over tamis-learner/1 (docs/learner-protocol.md).",
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT|unix:/PATH", help="port 0 takes any free one")
    parser.add_argument(
        "--api-key-file", type=pathlib.Path, help="file with the key that every caller must send as its bearer token"
    )
    parser.add_argument(
        "--heartbeat", type=float, default=5.0, metavar="SECONDS", help="silence after which one of several ranks is lost"
    )
    parser.add_argument(
        "--startup-timeout", type=float, default=600.0, metavar="SECONDS", help="longest wait for the other ranks"
    )
    parser.add_argument(
        "--call-timeout", type=float, default=7200.0, metavar="SECONDS", help="longest time of a call to several ranks"
    )
    arguments = parser.parse_args()
    if not min(arguments.heartbeat, arguments.startup_timeout, arguments.call_timeout) > 0.0:
        parser.error("--heartbeat, --startup-timeout and --call-timeout must be above 0")
    try:
        key = connections.read_key(arguments.api_key_file)
    except ListenError as error:
        parser.error(str(error))
    try:
        from .ranks import GangError, Ranks, follow, number_of_ranks
        from .server import Learner, serve
    except ImportError as error:
        sys.exit(f"the torch learner needs {error.name}, which is not installed\nhint: scripts/install-torch")
    try:
        times = arguments.heartbeat, arguments.startup_timeout, arguments.call_timeout
        ranks = Ranks.join(*times) if number_of_ranks() > 1 else None
        if ranks is None or ranks.rank == 0:
            serve(arguments.listen, key, ranks)
        else:
            follow(Learner(ranks), ranks)
    except (ListenError, GangError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except DeviceLost as error:
        sys.exit(f"error: {error}")


main()
