#!/usr/bin/env python3
"""Runs a configuration with several run seeds, one after the other, and prints the held-out accuracy before and after RL.

    cargo build --release
    python3 bench/seeds.py                          quickstart, seeds 1 to 5
    python3 bench/seeds.py gsm8k_calculator data.train=DIR/train.jsonl data.val=DIR/test.jsonl
    python3 bench/seeds.py quickstart --seeds 3,4 run.threads=1

Further arguments go to `tamis train`. Accuracy is the validation's in metrics.jsonl (`val-core/*/acc/mean@1`, greedy): the first
line that has it is from after the warm start, the last from after RL. Ends with 1 if a seed misses the target below.
Needs only Python's standard library.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Seeds, whether a pair of accuracies is what was aimed at, and that in words.
TARGETS = {
    "quickstart": ([1, 2, 3, 4, 5], lambda before, after: before <= 0.6 and after >= 0.9, "at most 60 %, then at least 90 %"),
    "gsm8k_calculator": ([1, 2, 3], lambda before, after: after - before >= 0.05, "at least 5 points more"),
}


def accuracies(file):
    """The validation accuracies of a run, in the order of its steps."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = []
    for row in rows:
        values = [value for name, value in row.items() if name.startswith("val-core/") and name.endswith("/acc/mean@1")]
        if len(values) == 1:
            found.append(values[0])
    return found


def run(program, configuration, seed, folder, overrides):
    """(accuracy before, accuracy after, seconds) of one run."""
    name = f"{configuration}-{seed}"
    # Last, so that no override moves the run to another folder.
    own = [f"run.seed={seed}", f"run.dir={folder}", f"run.name={name}"]
    command = [program, "train", f"configs/{configuration}.yaml", *overrides, *own]
    print(" ".join(map(str, command)), file=sys.stderr, flush=True)
    start = time.monotonic()
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - start
    if result.returncode != 0:
        raise SystemExit(f"the run of seed {seed} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    found = accuracies(folder / name / "metrics.jsonl")
    if len(found) < 2:
        raise SystemExit(f"the run of seed {seed} has {len(found)} validations in metrics.jsonl, two are needed")
    return found[0], found[-1], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("configuration", nargs="?", default="quickstart", choices=sorted(TARGETS))
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for `tamis train`")
    parser.add_argument("--seeds", help="such as 1,2,3")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target" / "release" / "tamis")
    arguments = parser.parse_intermixed_args()
    seeds, reached, words = TARGETS[arguments.configuration]
    if arguments.configuration == "gsm8k_calculator" and not any(o.startswith("data.train=") for o in arguments.overrides):
        raise SystemExit("name the files: data.train=DIR/train.jsonl data.val=DIR/test.jsonl")
    if arguments.seeds:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if not arguments.program.exists():
        raise SystemExit(f"{arguments.program} is not there: cargo build --release, or name it with --program")

    folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-seeds-"))
    missed = []
    try:
        print(f"{arguments.configuration}: {words}")
        print(f"{'seed':>4} {'before RL':>10} {'after RL':>10} {'points':>8} {'seconds':>8}", flush=True)
        for seed in seeds:
            before, after, seconds = run(arguments.program.resolve(), arguments.configuration, seed, folder, arguments.overrides)
            met = reached(before, after)
            if not met:
                missed.append(seed)
            line = f"{seed:>4} {before:>10.1%} {after:>10.1%} {100 * (after - before):>+8.1f} {seconds:>8.0f}"
            print(line + ("" if met else "  missed"), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if missed:
        raise SystemExit(f"missed by seeds {', '.join(map(str, missed))}")


if __name__ == "__main__":
    main()
