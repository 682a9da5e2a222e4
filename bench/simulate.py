#!/usr/bin/env python3
"""Seconds of one core that `tamis simulate` takes for so many trained groups, without a clock and with one.

    cargo build --release
    python3 bench/simulate.py                                        a million groups, three policies
    python3 bench/simulate.py --groups 100000 --policies verl,slime simulate.servers.count=8

The world is examples/simulate.yaml, with `KEY=VALUE` on top; without a clock it has no servers. Time is the processor's, of the whole program. It is
also given per generated completion. Needs only Python's standard library.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORLD = "examples/simulate.yaml"
MEMBERS = 8


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def simulate(program, folder, policy, groups, overrides):
    """Seconds of the processor, and completions generated for each trained group's."""
    page = pathlib.Path(folder) / "page.html"
    command = [program, "simulate", WORLD, f"simulate.groups={groups}", f"simulate.policies=[{policy}]", *overrides, "--json", "--html", page]
    before = processor_seconds()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = processor_seconds() - before
    if done.returncode != 0:
        raise SystemExit(f"the simulation ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, json.loads(done.stdout)["policies"][0]["generated_per_kept"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for `tamis simulate`")
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--policies", default="verl,streaming_carry,posterior", help="names with commas")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target" / "release" / "tamis")
    given = parser.parse_intermixed_args()
    if not given.program.exists():
        raise SystemExit(f"{given.program} is not there: cargo build --release, or name it with --program")
    program = given.program.resolve()
    print(f"{'policy':<28} {'clock':<6} {'seconds':>8} {'ns / completion':>16}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for policy in given.policies.split(","):
            for clock, own in [("no", ["simulate.servers=null"]), ("yes", [])]:
                seconds, cost = simulate(program, folder, policy, given.groups, [*given.overrides, *own])
                print(f"{policy:<28} {clock:<6} {seconds:>8.1f} {seconds / (given.groups * cost * MEMBERS) * 1e9:>16.0f}", flush=True)


if __name__ == "__main__":
    main()
