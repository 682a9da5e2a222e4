"""Arguments of the peers of bench/smollm2.py, which starts them."""

import argparse
import pathlib


def parser(description):
    """A parser with the arguments that all of them take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--prompts", type=int, default=8, help="groups of 8 completions a step")
    parser.add_argument("--tokens", type=int, default=24, help="of a completion, at most")
    parser.add_argument("--dapo", action="store_true", help="DAPO's upper bound; at one update a batch it changes nothing")
    parser.add_argument("--differ", action="store_true", help="a reward by only the text: groups seldom score alike")
    return parser
