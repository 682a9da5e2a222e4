#!/usr/bin/env python3
"""Processor time and generated tokens to 45 % of held-out prompts on SmolLM2-135M: tamis, TRL, TRL with the sieve.

    scripts/smollm2; bench/install_peers.sh; cargo build --release             once
    scripts/build-wheel                        once, for the last arm, and then, with the wheel for this machine:
    .venv-bench/bin/python -m pip install --no-index --no-deps --find-links dist tamis
    python3 bench/head_to_head.py              three seeds; about two hours of one core
    python3 bench/head_to_head.py --seeds 4,5  two more
    python3 bench/head_to_head.py --table      prints the table of what has been measured, and measures nothing

The task is that of configs/smollm2.yaml with 4 groups of 8 completions a step. An arm ends at the first check at which
the model answers enough of the 100 held-out prompts, or at a cap of steps. Checks are made at the same steps in all
arms by the same code (`tamis eval`, greedy; within `tamis train` its validation), and do not count. The rest does: the
processor time of an arm, user and system, is that of its process from its start, so loading counts. Each arm has one
thread. Wall-clock time is not measured, because the machine may do other things.

    tamis               filter `variance`, schedule `deficit`
    tamis, no filter
    TRL                 `GRPOTrainer`
    TRL with attach     the same and `tamis.trl.attach`, with the filter and the schedule of `tamis`

All arms have the same weights, prompts, chat template, reward, 32-bit numbers, groups, completions and their length,
temperature, learning rate, AdamW settings, gradient clipping, loss (token mean over the batch, one update a step) and
advantage. If TRL's value is fixed, tamis uses it too: 1e-4 is added to the deviation, norms do not decay, there is no
second clip. TRL has its quickest settings: no gradient checkpointing, no reference model, two micro-batches, and an
allocator that keeps its memory. Two things cannot be the same: the draws of prompts and of tokens, which come from
different generators, and the order of sums.

Each arm and seed is a line of target/head_to_head.jsonl. What is there is not measured again.
"""

import argparse
import bisect
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "smollm2"
PEER = ROOT / "bench" / "peers" / "trl_head_to_head.py"

SHARED = {
    "groups": 4,
    "n": 8,
    "tokens": 24,
    "learning_rate": 1e-5,
    "betas": [0.9, 0.999],
    "epsilon": 1e-8,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "max_num_gen_batches": 50,
}
"""What all arms share; it is written into the configurations of both sides."""

REWARD = "reward=[{kind: gsm8k, method: flexible}]"
SIEVE = [
    "filter={kind: variance}",
    f"schedule={{mode: deficit, granularity: 1, max_num_gen_batches: {SHARED['max_num_gen_batches']}}}",
]
# glibc then neither maps nor returns memory for each tensor, which saves the page faults.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864"}

STEP_DONE = re.compile(r"step (\d+)/\d+  reward ")
VALIDATION = re.compile(r"validation after step (\d+): ")


def environment(given, extra=()):
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return os.environ | {name: str(given.threads) for name in names} | dict(extra)


def say(text):
    print(text, file=sys.stderr, flush=True)


def processor_seconds(pid):
    """User and system time of a process and of the children that it has waited for."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tamis_command(given, seed, folder, extra):
    settings = {
        "run.dir": folder,
        "run.seed": seed,
        "run.threads": given.threads,
        "run.loggers": "[jsonl, console]",
        "data.train_batch_size": SHARED["groups"],
        "rollout.n": SHARED["n"],
        "rollout.max_response_length": SHARED["tokens"],
        "rollout.save": "off",
        "train.total_steps": given.steps,
        "train.optimizer.learning_rate": SHARED["learning_rate"],
        "train.optimizer.betas": SHARED["betas"],
        "train.optimizer.epsilon": SHARED["epsilon"],
        "train.optimizer.weight_decay": SHARED["weight_decay"],
        "train.optimizer.max_grad_norm": SHARED["max_grad_norm"],
        "train.optimizer.decay_norms_and_biases": "false",
        "objective.advantage.epsilon": 1e-4,
        "objective.loss.dual_clip": "null",
        "validate.before_train": "false",
        "validate.test_freq": given.every,
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    return [
        given.program,
        "train",
        ROOT / "configs/smollm2.yaml",
        f"model.path={FOLDER / 'model'}",
        *words,
        REWARD,
        *extra,
    ]


class Samples(threading.Thread):
    """Processor seconds of a process, looked at many times a second until it ends."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.seen, self.is_done = pid, [], False
        self.start()

    def run(self):
        while not self.is_done:
            self.look()
            time.sleep(0.1)

    def look(self):
        self.seen.append((time.monotonic(), processor_seconds(self.pid)))

    def at(self, moment):
        """What the process had taken at that moment."""
        return self.seen[max(0, bisect.bisect(self.seen, (moment, math.inf)) - 1)][1]


def steps_of(folder):
    """The lines of a run, by their steps."""
    file = pathlib.Path(folder) / "smollm2/metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["step"]: row for row in map(json.loads, lines)}


def run_tamis(given, seed, extra):
    """Points of a run, which is ended once it is good enough.

    What its validations took is taken out: how long each took is in the metrics, and its line in the log shows when it
    ended.
    """
    ends = {}
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        command = tamis_command(given, seed, folder, extra)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(given)
        )
        samples = Samples(process.pid)
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if found := VALIDATION.match(line):
                    ends[int(found[1])] = time.monotonic()
                    say(f"  {line.strip()}")
                elif (found := STEP_DONE.match(line)) and int(found[1]) in ends:
                    step = int(found[1])
                    while step not in steps_of(folder):
                        time.sleep(0.1)
                    points = points_of(steps_of(folder), ends, samples)
                    if points[-1]["accuracy"] >= given.target or step == given.steps:
                        return points
        finally:
            samples.is_done = True
            samples.join()
            process.kill()
            process.wait()
        raise SystemExit(f"{' '.join(map(str, command))}\nended early:\n{''.join(lines[-20:])}")


def points_of(rows, ends, samples):
    points, tokens, completions, checks = [], 0, 0, 0.0
    for step, row in sorted(rows.items()):
        # Without a filter a step generates what it trains on.
        tokens += round(row.get("tokens/generated", row["train/num_loss_tokens"]))
        completions += round(row.get("groups/generated", SHARED["groups"])) * SHARED["n"]
        if step in ends:
            before = samples.at(ends[step] - row["timing_s/testing"])
            accuracy = next(value for name, value in row.items() if name.startswith("val-core/"))
            points.append(
                {
                    "step": step,
                    "processor": before - checks,
                    "tokens": tokens,
                    "completions": completions,
                    "accuracy": accuracy,
                }
            )
            checks += samples.at(ends[step]) - before
    return points


def run_trl(given, seed, extra):
    judge = [given.program, "eval", f"data.val={FOLDER / 'test.jsonl'}", REWARD, "data.max_prompt_length=64"]
    judge += [f"rollout.max_response_length={SHARED['tokens']}", f"run.threads={given.threads}", "--json"]
    command = [
        given.peer_python,
        PEER,
        FOLDER,
        json.dumps(SHARED),
        "--judge",
        json.dumps([str(word) for word in judge]),
    ]
    for name in ("seed", "target", "every", "steps", "threads"):
        command += [f"--{name}", str(seed if name == "seed" else getattr(given, name))]
    points = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *extra], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(given, KEEP_MEMORY)
        )
        try:
            for line in process.stdout:
                # TRL prints what it logged as it ends.
                if line.startswith('{"step"'):
                    points.append(json.loads(line))
                    say(f"  {points[-1]}")
            if process.wait() != 0 or not points:
                errors.seek(0)
                raise SystemExit(
                    f"{' '.join(map(str, command))}\nended with {process.returncode}:\n{errors.read()[-2000:]}"
                )
        finally:
            process.kill()
            process.wait()
    return points


ARMS = {
    "tamis": (run_tamis, SIEVE),
    "TRL with attach": (run_trl, ["--attach"]),
    "TRL": (run_trl, []),
    "tamis, no filter": (run_tamis, []),
}


def conditions(given):
    """What two lines must have in common to be in one table."""
    return {
        "target": given.target,
        "every": given.every,
        "steps": given.steps,
        "threads": given.threads,
        "shared": SHARED,
    }


def measured(given):
    """`{(arm, seed): points}` of the lines that were measured under these conditions."""
    rows = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    return {(row["arm"], row["seed"]): row["points"] for row in rows if row["conditions"] == conditions(given)}


def check(given):
    """Ends with what to run first if something is missing."""
    needed = {
        FOLDER / "model": "scripts/smollm2",
        given.peer_python: "bench/install_peers.sh",
        given.program: "cargo build --release",
    }
    for path, command in needed.items():
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {command} first")
    if (
        "TRL with attach" in given.arms
        and subprocess.run([given.peer_python, "-c", "import tamis._native"], capture_output=True).returncode
    ):
        raise SystemExit(
            f"{given.peer_python} has no package `tamis`: run scripts/build-wheel and\n"
            f"{given.peer_python} -m pip install --no-index --no-deps --find-links dist tamis"
        )


def figures(values, form):
    """The median, and each value in brackets."""
    told = [format(value, form) for value in values]
    return told[0] if len(told) == 1 else f"{statistics.median(values):{form}} ({'; '.join(told)})"


def table(given):
    known = measured(given)
    seeds = sorted({seed for _, seed in known})
    yield f"| to {given.target:.0%} of the held-out prompts | processor s | generated tokens | completions | steps |"
    yield "|---|---|---|---|---|"
    for arm in ("tamis", "tamis, no filter", "TRL", "TRL with attach"):
        own = [known[arm, seed] for seed in seeds if (arm, seed) in known]
        reached = [points[-1] for points in own if points[-1]["accuracy"] >= given.target]
        cells = [figures([point[name] for point in reached], form) if reached else "-" for name, form in
                 (("processor", ".0f"), ("tokens", ",.0f"), ("completions", ",.0f"), ("step", ".0f"))]  # fmt: skip
        for points in own:
            if points[-1]["accuracy"] < given.target:
                best = max(point["accuracy"] for point in points)
                cells[-1] += f"; not in {points[-1]['step']} steps: best {best:.0%}, {points[-1]['processor']:.0f} s"
        if own:
            yield f"| {arm} | {' | '.join(cells)} |"
    yield f"\nMedians, and in brackets seeds {', '.join(map(str, seeds))}; checked every {given.every} steps."


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--arms", type=lambda text: text.split(";"), default=list(ARMS), help=f"of {'; '.join(ARMS)}")
    parser.add_argument("--target", type=float, default=0.45, help="share of the held-out prompts")
    parser.add_argument("--every", type=int, default=2, help="steps between two checks")
    parser.add_argument("--steps", type=int, default=16, help="at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "target/head_to_head.jsonl")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument(
        "--peer-python", type=pathlib.Path, default=ROOT / ".venv-bench/bin/python", help="with TRL and tamis"
    )
    given = parser.parse_args()
    if unknown := set(given.arms) - set(ARMS):
        parser.error(f"no arm {', '.join(sorted(unknown))}; there are {'; '.join(ARMS)}")
    if not given.table:
        check(given)
        for seed in given.seeds:
            for arm in given.arms:
                if (arm, seed) in measured(given):
                    continue
                say(f"{arm}, seed {seed}")
                run, extra = ARMS[arm]
                row = {"arm": arm, "seed": seed, "conditions": conditions(given), "points": run(given, seed, extra)}
                with given.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print("\n".join(table(given)))


if __name__ == "__main__":
    main()
