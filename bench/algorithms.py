#!/usr/bin/env python3
"""Trains the quickstart's task with every named algorithm from one shared warm-started checkpoint and prints a table of learning curves.

    cargo build --release
    python3 bench/algorithms.py                         all of them, 40 steps each
    python3 bench/algorithms.py gspo rloo --steps 80    some of them
    python3 bench/algorithms.py --check --small         a handful with smaller batches, as CI runs it

Reward is the mean over all generated trajectories (`all/critic/score/mean`), dropped ones included; with a critic, a second
line has the share of the variance of the returns that its values explain. Distillations learn from a teacher that `dapo` trained for the
same number of steps, which is trained first. With --check the program ends
with 1 if an algorithm's last quarter is not above its first, or a loss is not finite. Needs only Python's standard library.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What is set over the quickstart's own settings, which are the preset `dapo`.
PRESETS = {file.stem: file.read_text() for file in sorted((ROOT / "crates/tamis-config/presets").glob("*.yaml"))}
GRPO = ["preset=grpo", "objective.kl.in=none"]
# Plain policy gradients have nothing that holds a second update on the same samples: one a step, as their papers have it.
ON_POLICY = ["train.ppo_epochs=1", "train.ppo_mini_batch_size=null"]
# Estimators for several turns (the task has one), and `dr_grpo`, which is `grpo` with `scale: none`.
LEFT_OUT = ["tir_optimal_token_baseline", "bi_level_gae", "dr_grpo"]
# What a kind needs beside its name.
NEEDED = {
    "cpo": ["filter=null", "objective.advantage.gold_hint='{gold}={prompt}'", "objective.advantage.neg_alpha=0.1"],
    "luspo": ["objective.aggregation=seq-mean-token-sum"],
    "dro": ["objective.loss.beta=0.1"],
}
OWN = ROOT / "examples/own_loss.py"
# What a distillation needs beside its name: a teacher takes the place of the filter.
TAUGHT = [*GRPO, *ON_POLICY, "filter=null", "data.gen_batch_size=null", "schedule.mode=rounds"]
LIKELIEST = {"forward": 0, "reverse": 1, "jensen_shannon": 0.5}


def kinds(section):
    """The kinds of a section of `objective` that no preset has, from the schema."""
    schema = json.loads((ROOT / "docs/configuration.schema.json").read_text())
    variants = schema["properties"]["objective"]["properties"][section]["oneOf"]
    names = [kind for variant in variants if (kind := variant["properties"].get("kind", {}).get("const"))]
    return [name for name in names if not any(f"{section}: {{kind: {name}" in text for text in PRESETS.values())]


ALGORITHMS = {name: [f"preset={name}"] for name in PRESETS} | {
    name: [f"preset={name}", *ON_POLICY] for name in ("rloo", "remax", "opo", "gpg", "flash_reinforce")
} | {
    # A model as small as this one takes a larger rate than the default.
    "ppo": ["preset=ppo", "critic.optimizer.learning_rate=1e-3"],
} | {
    name: [*GRPO, f"objective.{section}.kind={name}", *NEEDED.get(name, [])]
    for section in ("advantage", "loss") for name in kinds(section) if name not in [*LEFT_OUT, "python", "on_policy_distillation"]
} | {
    "on_policy_distillation": [*TAUGHT, "objective.advantage.kind=on_policy_distillation"],
} | {
    f"distillation_{form}": [*TAUGHT, f"objective.distillation={{beta: {beta}, top_k: 8, advantages: false}}"]
    for form, beta in LIKELIEST.items()
} | {
    # Functions in Python, which need NumPy: the loss `clip` without a dual clip, the advantage `dr_grpo`.
    f"python_{section}": [*GRPO, f"objective.{section}={{kind: python, path: {OWN}}}"] for section in ("advantage", "loss")
} | {
    "reinforce": [*GRPO, *ON_POLICY, "objective.loss.kind=reinforce"],
    "top_entropy": [*GRPO, "objective.masks.top_entropy=0.2"],
    "decoupled_token_is": [*GRPO, "objective.correction.preset=decoupled_token_is"],
}
HANDFUL = ["dapo", "rloo", "reinforce_plus_plus", "gspo", "cispo", "ppo"]
SMALL = ["data.train_batch_size=64", "data.gen_batch_size=96", "train.ppo_mini_batch_size=32"]


def train(program, overrides, folder, name):
    own = [f"run.dir={folder}", f"run.name={name}", "validate.test_freq=0", "validate.before_train=false", "rollout.save=off"]
    command = [program, "train", "configs/quickstart.yaml", *overrides, *own]
    start = time.monotonic()
    result = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{name} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row], time.monotonic() - start


def quarters(values):
    size = max(1, len(values) // 4)
    return [sum(values[at : at + size]) / size for at in (0, size, 2 * size, len(values) - size)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("algorithms", nargs="*", help="names; default all (--small: a handful)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="smaller batches")
    parser.add_argument("--check", action="store_true", help="end with 1 if the reward did not rise")
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "tamis")
    arguments = parser.parse_args()
    names = arguments.algorithms or (HANDFUL if arguments.small else list(ALGORITHMS))
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown:
        parser.error(f"there is no algorithm {', '.join(unknown)}; there are {', '.join(ALGORITHMS)}")
    if not arguments.program.exists():
        parser.error(f"{arguments.program} is not there: cargo build --release, or name it with --program")
    program = arguments.program.resolve()

    folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-algorithms-"))
    missed = []
    try:
        shared = [f"run.seed={arguments.seed}", *(SMALL if arguments.small else [])]
        # One step without an effect, for its checkpoint.
        start = ["train.total_steps=1", "train.optimizer.learning_rate=1e-12", "checkpoint.save_freq=1"]
        train(program, [*shared, *start], folder, "start")
        checkpoint = next((folder / "start" / "checkpoints").glob("step_*"))
        begin = [f"model.path={checkpoint}", "model.init=null", "sft.steps=0", f"train.total_steps={arguments.steps}"]
        shared = [setting for setting in shared if not setting.startswith(("model.init", "sft"))]
        print(f"mean reward of all generated trajectories, by quarters of {arguments.steps} steps")
        print(f"{'algorithm':<30} {'1st':>7} {'2nd':>7} {'3rd':>7} {'4th':>7} {'change':>8} {'seconds':>8}", flush=True)
        teacher = []
        if any("distillation" in name for name in names):
            train(program, [*shared, *begin, "checkpoint.save_freq=1000"], folder, "teacher")
            last = max((folder / "teacher" / "checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
            teacher = [f"teacher=[{{path: {last}}}]"]
        for name in names:
            own = teacher if "distillation" in name else []
            rows, seconds = train(program, [*shared, *begin, *ALGORITHMS[name], *own], folder, name)
            four = quarters([row["all/critic/score/mean"] for row in rows])
            fine = four[3] > four[0] and all(math.isfinite(row["loss"]) for row in rows)
            if not fine:
                missed.append(name)
            curve = " ".join(f"{value:>7.3f}" for value in four)
            print(f"{name:<30} {curve} {four[3] - four[0]:>+8.3f} {seconds:>8.0f}" + ("" if fine else "  missed"), flush=True)
            explained = [row["critic/vf_explained_var"] for row in rows if "critic/vf_explained_var" in row]
            if explained:
                four = quarters(explained)
                print(f"{'  explained variance':<30} {' '.join(f'{value:>7.3f}' for value in four)} {four[3] - four[0]:>+8.3f}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if missed and arguments.check:
        raise SystemExit(f"missed by {', '.join(missed)}")


if __name__ == "__main__":
    main()
