"""`python -m tamis.tinker`: a learner on a socket whose model is held by a server of Tinker's API."""

import argparse
import os
import pathlib
import signal
import sys

from ..learner import connections, messages
from . import api
from .learner import Learner, Session


def _log(line):
    print(line, file=sys.stderr, flush=True)


def main():
    """Takes the address, probes the server, then listens."""
    parser = argparse.ArgumentParser(
        prog="python -m tamis.tinker",
        description="Trains a model at a server of Tinker's API for a tamis-learner/1 controller (docs/learners.md).",
    )
    parser.add_argument(
        "--base-model", required=True, metavar="NAME", help="the model to train, as the server names it"
    )
    parser.add_argument(
        "--url", required=True, help="address of the server; its key is TINKER_API_KEY of the environment"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:8700", metavar="HOST:PORT|unix:/PATH", help="port 0 takes any free one"
    )
    parser.add_argument("--rank", type=int, default=32, help="rank of the adapter (LoRA)")
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights")
    parser.add_argument(
        "--api-key-file", type=pathlib.Path, help="file with the key that every caller must send as its bearer token"
    )
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS", help="how long a server that is gone is asked again"
    )
    parser.add_argument(
        "--call-timeout", type=float, default=7200.0, metavar="SECONDS", help="longest time of one call"
    )
    arguments = parser.parse_args()
    if arguments.rank < 1 or not 0 <= arguments.seed < 1 << 31:
        parser.error("--rank must be at least 1, and --seed from 0 to 2147483647")
    if not min(arguments.patience, arguments.call_timeout) > 0.0:
        parser.error("--patience and --call-timeout must be above 0")
    server = None
    try:
        key = connections.read_key(arguments.api_key_file)
        server = api.Api(
            arguments.url, os.environ.get("TINKER_API_KEY"), arguments.patience, arguments.call_timeout, _log
        )
        learner = Learner(server, arguments.base_model, arguments.rank, arguments.seed)
        session = Session(learner, log=_log)
        connections.serve(arguments.listen, session, key, session.probe)
    except connections.ListenError as error:
        parser.error(str(error))
    except messages.LearnerError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.exit(f"error: {error.message}{hint}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Whatever was begun at the server is ended there, whenever a signal comes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if server is not None:
            server.leave()


main()
