#!/usr/bin/env python3
"""Seconds of a GRPO step on SmolLM2-135M-Instruct, tamis against TRL, with the settings of configs/smollm2.yaml.

    scripts/smollm2; bench/install_peers.sh; cargo build --release      once
    python3 bench/smollm2.py [--threads 1] [--steps 4]

Both train on 8 groups of 8 completions of at most 24 tokens with one optimizer step, in 32 bits, from the same
weights, on the same number of threads, one after the other. Printed are the seconds of a step by the wall clock
and by the processor's, without the first step. On a machine that does other things too, compare the processor's
on one thread. TRL has its quickest settings: no gradient checkpointing, no reference model, one micro-batch of 64,
nothing logged or saved.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "smollm2"


def environment(threads):
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return os.environ | {name: str(threads) for name in names}


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours(program, threads, steps):
    """Processor seconds: what a run of all steps takes beyond a run of the first alone."""
    taken, lines = [], []
    for total in (1, steps):
        folder = tempfile.mkdtemp(prefix="tamis-bench-")
        try:
            before = processor_seconds()
            command = [program, "train", ROOT / "configs/smollm2.yaml", f"run.dir={folder}", f"run.threads={threads}"]
            command += [f"train.total_steps={total}", "run.loggers=[jsonl]", "rollout.save=off"]
            command += ["validate.before_train=false", "validate.test_freq=0", "~data.val"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            taken.append(processor_seconds() - before)
            text = (pathlib.Path(folder) / "smollm2/metrics.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    steps_taken = [line for line in lines if "timing_s/step" in line][1:]
    wall = statistics.median(line["timing_s/step"] for line in steps_taken)
    length = statistics.mean(line["response_length/mean"] for line in steps_taken)
    return {"who": "tamis", "wall": wall, "processor": (taken[1] - taken[0]) / (steps - 1), "length": length}


def theirs(threads, steps):
    command = [ROOT / ".venv-bench/bin/python", ROOT / "bench/peers/trl_smollm2.py", FOLDER]
    command += ["--threads", str(threads), "--steps", str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(threads))
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="steps of each, the first of which does not count")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    given = parser.parse_args()
    needed = {FOLDER / "model": "scripts/smollm2", ROOT / ".venv-bench": "bench/install_peers.sh"}
    for path, command in (needed | {given.program: "cargo build --release"}).items():
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {command} first")
    rows = [ours(given.program, given.threads, given.steps), theirs(given.threads, given.steps)]
    for row in rows:
        figures = f"{row['wall']:7.1f} s a step, {row['processor']:7.1f} s of the processor"
        print(f"{row['who']:6} {figures}, completions of {row['length']:.1f} tokens")
    for clock in ("wall", "processor"):
        print(f"TRL over tamis by the {clock}: {rows[1][clock] / rows[0][clock]:.2f}")


if __name__ == "__main__":
    main()
