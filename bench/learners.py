#!/usr/bin/env python3
"""Trains the quickstart's task with each learner from one warm-started checkpoint and prints a table of learning curves.

    cargo build --release; scripts/install-torch               once
    python3 bench/learners.py                                  every case, 40 steps, 3 seeds: about an hour
    python3 bench/learners.py rounds ppo --steps 100 --seeds 1 some of them
    python3 bench/learners.py --check --small --seeds 1        smaller batches, 12 steps: some minutes

A row is a case with a learner and a seed: greedy accuracy on the 512 held-out prompts before, at each quarter, and at
the end, and the mean seconds of a step. The draws of both learners are keyed alike, so that a seed's curves begin
alike and part when rounding decides a draw. Below each case are the difference of the learners' mean accuracies and that
of the seeds of one learner: the first is noise unless it is above the second.

The case `resumed` is killed (SIGKILL) at half its steps and resumed. With --check the program ends with 1 if a curve does
not rise, or if the learners' means differ by more than 8 points. Needs only Python's standard library.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What is set over the quickstart's own settings: the preset `dapo`, rounds, filter by variance.
CASES = {
    "rounds": [],
    "no filter": ["preset=grpo", "objective.kl.in=none"],
    "carry": ["schedule.surplus=carry", "schedule.max_lag=1"],
    "streaming": ["schedule.mode=streaming"],
    "streaming, carry": ["schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=1"],
    "ppo": ["preset=ppo", "critic.optimizer.learning_rate=1e-3"],
    "resumed": ["schedule.surplus=carry", "schedule.max_lag=1"],
}
SMALL = ["data.train_batch_size=64", "data.gen_batch_size=96", "train.ppo_mini_batch_size=32"]


def learners(python):
    torch = ["learner.backend=torch", "learner.dtype=f32", f"learner.python={python}"]
    return {"native": [], "torch": torch, "torch, samples too": [*torch, "rollout.backend=learner"]}


def rows_of(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def train(program, settings, folder, killed_at=None):
    """The rows of metrics.jsonl of a run in `folder`; with `killed_at` it is killed after that step, and resumed."""
    own = [f"run.dir={folder.parent}", f"run.name={folder.name}", "rollout.save=off", "run.loggers=[jsonl]"]
    command = list(map(str, [program, "train", "configs/quickstart.yaml", *settings, *own]))
    with tempfile.TemporaryFile("w+") as told:
        run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=told)
        if killed_at:
            while run.poll() is None and not any(row.get("training/global_step", 0) >= killed_at for row in rows_of(folder)):
                time.sleep(0.05)
            run.send_signal(signal.SIGKILL)
            run.wait()
            command = [str(program), "train", "--resume", str(folder)]
            run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=told)
        if run.wait() != 0:
            told.seek(0)
            raise SystemExit(f"{' '.join(command)}\nended with {run.returncode}:\n{told.read()[-2000:]}")
    return rows_of(folder)


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("cases", nargs="*", help=f"of: {'; '.join(CASES)} (default: all)")
    parser.add_argument("--steps", type=int, help="of RL; default 40, with --small 12")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learners", nargs="+", default=["native", "torch", "torch, samples too"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="smaller batches")
    parser.add_argument("--check", action="store_true", help="end with 1 if a curve does not rise or the learners differ")
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/tamis")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / ".venv-torch/bin/python", help="with PyTorch")
    given = parser.parse_args()
    cases, known = given.cases or list(CASES), learners(given.python)
    for name in [*cases, *given.learners]:
        if name not in CASES and name not in known:
            parser.error(f"there is no `{name}`; cases: {'; '.join(CASES)}; learners: {'; '.join(known)}")
    for path, command in {given.program: "cargo build --release", given.python: "scripts/install-torch"}.items():
        if not path.exists():
            parser.error(f"{path} is not there: run {command} first")
    program, steps = given.program.resolve(), given.steps or (12 if given.small else 40)
    folder, missed = pathlib.Path(tempfile.mkdtemp(prefix="tamis-learners-")), []
    try:
        shared = [f"run.threads={given.threads}", *(SMALL if given.small else [])]
        # One step without an effect, for its checkpoint.
        once = ["train.total_steps=1", "train.optimizer.learning_rate=1e-12", "checkpoint.save_freq=1", "validate.before_train=false"]
        train(program, [*shared, *once, "run.seed=1"], folder / "start")
        begin = [f"model.path={next((folder / 'start/checkpoints').glob('step_*'))}", "model.init=null", "sft.steps=0"]
        quarter = max(1, steps // 4)
        begin += [f"train.total_steps={steps}", f"validate.test_freq={quarter}", f"checkpoint.save_freq={quarter}"]
        print(f"greedy accuracy, % of held-out prompts, over {steps} steps of RL")
        print(f"{'case':<18} {'learner':<20} {'seed':>4}   {'before, by quarters, after':<36} {'s a step':>8}", flush=True)
        for case in cases:
            ends = {}
            for learner in given.learners:
                for seed in range(1, given.seeds + 1):
                    settings = [*shared, *begin, *CASES[case], *known[learner], f"run.seed={seed}"]
                    at = folder / f"{case}-{learner}-{seed}".replace(", ", "-").replace(" ", "-")
                    rows = train(program, settings, at, steps // 2 if case == "resumed" else None)
                    curve = [100 * row["val-core/arithmetic/acc/mean@1"] for row in rows if "val-core/arithmetic/acc/mean@1" in row]
                    seconds = statistics.mean(row["timing_s/step"] for row in rows if "timing_s/step" in row)
                    ends.setdefault(learner, []).append(statistics.mean(curve[1:]))
                    if curve[-1] <= curve[0]:
                        missed.append(f"{case}, {learner}, seed {seed} does not rise")
                    figures = " ".join(f"{value:6.1f}" for value in curve)
                    print(f"{case:<18} {learner:<20} {seed:>4}   {figures:<36} {seconds:>8.2f}", flush=True)
                    shutil.rmtree(at)
            means = {learner: statistics.mean(values) for learner, values in ends.items()}
            apart, spread = max(means.values()) - min(means.values()), max(max(values) - min(values) for values in ends.values())
            said = ", ".join(f"{learner} {mean:.1f}" for learner, mean in means.items())
            print(f"  mean of the curve: {said}; learners at most {apart:.1f} apart, seeds of one {spread:.1f}", flush=True)
            if apart > 8:
                missed.append(f"{case}: learners are {apart:.1f} points apart")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if missed and given.check:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
