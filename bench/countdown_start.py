#!/usr/bin/env python3
"""Warm-starts a small model on Countdown from a script that mostly guesses, for configs/sweeps/countdown.yaml.

    cargo build --release
    python3 bench/countdown_start.py        # writes runs/games/countdown_start
    python3 bench/countdown_start.py --right-prob 0.05 --short-prob 0.6 --steps 400 --name countdown_poor_start

The environment lists no actions, so `sft` has nothing to play it by. Here a run of one step shows
which tasks are training tasks, a script answers them (right with --right-prob, otherwise with any signs,
sometimes with too few numbers), and a model imitates it. Needs only Python's standard library.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["model.init.architecture=qwen3", "model.init.hidden_size=64", "model.init.intermediate_size=192", "model.init.num_layers=3",
         "model.init.num_heads=4", "model.init.num_kv_heads=2", "model.init.max_position_embeddings=128"]
TASKS = ["data.task=environment", "environment.kind=countdown", "environment.style=plain", "environment.max_numbers=3",
         "environment.prompting.max_turns=1", "environment.largest=9",
         "environment.min_target=1", "environment.max_target=20"]


def signed(numbers):
    """Every way to put signs before the numbers, as shown, with its value; without a `+` in front."""
    for signs in itertools.product((1, -1), repeat=len(numbers)):
        text = "".join(("-" if sign < 0 else "+") + str(number) for sign, number in zip(signs, numbers))
        yield text.removeprefix("+"), sum(sign * number for sign, number in zip(signs, numbers))


def answer(task, draw, right_prob, short_prob):
    target, *numbers = map(int, re.findall(r"\d+", task))
    ways = list(signed(numbers))
    if draw.random() < right_prob:
        ways = [way for way in ways if way[1] == target] or ways
    elif draw.random() < short_prob:
        ways = list(signed(numbers[: draw.randint(1, len(numbers) - 1)]))
    return draw.choice(ways)[0]


def tamis(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"tamis {arguments[0]} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/games")
    parser.add_argument("--right-prob", type=float, default=0.3)
    parser.add_argument("--short-prob", type=float, default=0.3, help="share of the other answers that have too few numbers")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tasks", type=int, default=2048)
    parser.add_argument("--name", default="countdown_start", help="of the run's folder")
    options = parser.parse_args()
    for name in ("countdown_tasks", options.name):
        shutil.rmtree(options.folder / name, ignore_errors=True)

    own = [f"run.dir={options.folder}", "run.threads=1", "run.seed=0", "train.total_steps=1", "data.max_prompt_length=48"]
    tamis(options.program, "train", *TASKS, *SHAPE, *own, "run.name=countdown_tasks", f"environment.train_size={options.tasks}",
          "environment.val_size=0", f"data.train_batch_size={options.tasks}", "rollout.n=2", "rollout.max_response_length=1")
    rows = tamis(options.program, "rollouts", options.folder / "countdown_tasks", "--step", 1, "--json", "--limit", 10 * options.tasks)
    tasks = sorted({row["prompt"] for row in json.loads(rows)["rows"]})
    draw = random.Random(0)
    data = options.folder / f"{options.name}.jsonl"
    with data.open("w") as file:
        for task in tasks * 8:
            row = {"prompt": task, "answer": answer(task, draw, options.right_prob, options.short_prob)}
            file.write(json.dumps(row) + "\n")
    tamis(options.program, "train", *SHAPE, *own, f"run.name={options.name}", f"data.train={data}", "data.columns.ground_truth=answer",
          "reward=[{kind: exact}]", "rollout.n=2", "rollout.max_response_length=12", "data.train_batch_size=1",
          f"sft.steps={options.steps}", "sft.batch_size=128", "sft.learning_rate=2e-3", "checkpoint.save_freq=1",
          "train.optimizer.learning_rate=1e-12")
    print(f"{len(tasks)} tasks; the model is in {options.folder / options.name / 'checkpoints/step_0'}")


if __name__ == "__main__":
    main()
