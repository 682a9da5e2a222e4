#!/usr/bin/env python3
"""Seconds of a GRPO step on SmolLM2-135M-Instruct, tamis against TRL, with the settings of configs/smollm2.yaml.

    scripts/smollm2; bench/install_peers.sh; cargo build --release      once
    python3 bench/smollm2.py [--threads 1] [--steps 4]
    scripts/install-torch                                               once, for the next
    python3 bench/smollm2.py --learner torch [--sampler learner] [--device cuda] [--model FOLDER]

All train on 8 groups of 8 completions of at most 24 tokens with one optimizer step, in 32 bits, from the same
weights, on the same number of threads, one after the other. Printed are the seconds of a step by the wall clock
and by the processor's, without the first step. On a machine that does other things too, compare the processor's
on one thread. TRL has its quickest settings: no gradient checkpointing, no reference model, one micro-batch of 64,
nothing logged or saved.

`--learner torch` has PyTorch learn for tamis too; completions come from the native engine, or with `--sampler
learner` from PyTorch as well. `--device cuda` puts both learners on the GPU, in bf16 with 32-bit weights (TRL: 32-bit
weights under autocast), and asks for `--sampler learner`. `--model` is another chat model in Hugging
Face layout.
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


def learner_settings(given):
    """What tamis is told of its learner and its sampler."""
    if given.learner == "native":
        return []
    settings = ["learner.backend=torch", f"learner.python={given.python}", f"learner.device={given.device}"]
    return settings + (["rollout.backend=learner"] if given.sampler == "learner" else [])


def ours(given):
    """Processor seconds: what a run of all steps takes beyond a run of the first alone."""
    threads, steps = given.threads, given.steps
    taken, lines = [], []
    for total in (1, steps):
        folder = tempfile.mkdtemp(prefix="tamis-bench-")
        try:
            before = processor_seconds()
            command = [given.program, "train", ROOT / "configs/smollm2.yaml", f"run.dir={folder}", f"run.threads={threads}"]
            command += [f"train.total_steps={total}", "run.loggers=[jsonl]", "rollout.save=off"]
            command += ["validate.before_train=false", "validate.test_freq=0", "~data.val"]
            command += [f"model.path={given.model}", *learner_settings(given)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            taken.append(processor_seconds() - before)
            text = (pathlib.Path(folder) / "smollm2/metrics.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    steps_taken = [line for line in lines if "timing_s/step" in line][1:]
    wall = statistics.median(line["timing_s/step"] for line in steps_taken)
    length = statistics.mean(line["response_length/mean"] for line in steps_taken)
    return {"who": f"tamis ({given.learner})", "wall": wall, "processor": (taken[1] - taken[0]) / (steps - 1), "length": length}


def theirs(given):
    command = [ROOT / ".venv-bench/bin/python", ROOT / "bench/peers/trl_smollm2.py", FOLDER, "--model", given.model]
    command += ["--threads", str(given.threads), "--steps", str(given.steps), "--device", given.device]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(given.threads))
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="steps of each, the first of which does not count")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--learner", choices=["native", "torch"], default="native", help="where tamis learns")
    parser.add_argument("--sampler", choices=["native", "learner"], default="native", help="where tamis samples")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", type=pathlib.Path, default=FOLDER / "model")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / ".venv-torch/bin/python", help="with PyTorch")
    given = parser.parse_args()
    if given.device == "cuda" and (given.learner, given.sampler) != ("torch", "learner"):
        raise SystemExit("--device cuda needs --learner torch --sampler learner: nothing else of tamis computes on a GPU")
    needed = {FOLDER / "model": "scripts/smollm2", ROOT / ".venv-bench": "bench/install_peers.sh"}
    if given.learner == "torch":
        needed |= {given.python: "scripts/install-torch"}
    for path, command in (needed | {given.program: "cargo build --release"}).items():
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {command} first")
    rows = [ours(given), theirs(given)]
    for row in rows:
        figures = f"{row['wall']:7.1f} s a step, {row['processor']:7.1f} s of the processor"
        print(f"{row['who']:14} {figures}, completions of {row['length']:.1f} tokens")
    for clock in ("wall", "processor"):
        print(f"TRL over tamis by the {clock}: {rows[1][clock] / rows[0][clock]:.2f}")


if __name__ == "__main__":
    main()
