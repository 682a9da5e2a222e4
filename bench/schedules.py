#!/usr/bin/env python3
"""What the quickstart's task costs under each schedule: trajectories and seconds until 90 % of held-out sums are right.

    cargo build --release
    python3 bench/schedules.py                                   every schedule, seeds 1 to 3
    python3 bench/schedules.py --only rounds,deficit --seeds 1   some of it

Every run begins from the same warm start of its seed (whose time does not count), trains as in configs/quickstart.yaml and measures 512 held-out sums
after every third step. A figure is that of the first measurement at or above the target: trajectories generated up to there, tokens of them, seconds of
the steps without their validation. `a kept group` is groups generated over groups kept up to there, `1/k` what a schedule that throws nothing
away would pay at the keep rate of the same groups. Needs only Python's standard library.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARRY = ["schedule.surplus=carry", "schedule.max_lag=1"]
SCHEDULES = {
    "no filter": ["~filter", "data.gen_batch_size=256"],
    "rounds": [],
    "rounds, carry": CARRY,
    "deficit": ["schedule.mode=deficit"],
    "deficit, carry": ["schedule.mode=deficit", *CARRY],
    "streaming, carry": ["schedule.mode=streaming", *CARRY],
    "zero_variance_skip": ["schedule.mode=streaming", *CARRY, "schedule.selector.kind=zero_variance_skip"],
    "posterior": ["schedule.mode=streaming", *CARRY, "schedule.selector.kind=posterior"],
    "difficulty_pools": ["schedule.mode=streaming", *CARRY, "schedule.selector.kind=difficulty_pools"],
    "screening": ["schedule.mode=streaming", *CARRY, "schedule.screen_first=2"],
}
VALIDATION = "val-core/arithmetic/acc/mean@1"


def train(program, folder, name, seed, arguments):
    """The rows of a run's metrics."""
    own = [f"run.seed={seed}", f"run.dir={folder}", f"run.name={name}", "validate.test_freq=3", "rollout.save=off", "checkpoint.keep_last=1"]
    command = [program, "train", "configs/quickstart.yaml", *arguments, *own]
    print(" ".join(map(str, command)), file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the run ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def to_target(rows, target):
    """Sums up to the first measurement that reaches the target; None if none does."""
    sums = dict.fromkeys(["trajectories", "tokens", "seconds", "groups", "kept", "trained", "steps"], 0.0)
    for row in rows:
        if row.get("training/global_step", 0) > 0:
            groups = row["groups/generated"]
            sums["steps"] += 1
            sums["groups"] += groups
            sums["kept"] += groups - row.get("groups/dropped", 0) - row.get("groups/failed", 0) - row.get("groups/aborted", 0)
            sums["trained"] += row["groups/trained"]
            sums["trajectories"] += row["trajectories/generated"]
            sums["tokens"] += row["tokens/generated"]
            sums["seconds"] += row["timing_s/step"] - row.get("timing_s/testing", 0)
        if row.get(VALIDATION, 0) >= target and sums["steps"]:
            return sums
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for `tamis train`, for every schedule")
    parser.add_argument("--only", help="schedules by name, with commas (`rounds,deficit`; those with carry: `+carry`)")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target" / "release" / "tamis")
    given = parser.parse_intermixed_args()
    chosen = {name: how for name, how in SCHEDULES.items() if not given.only or name.replace(", ", "+") in given.only.split(",")}
    if not chosen:
        parser.error(f"--only: there are {', '.join(name.replace(', ', '+') for name in SCHEDULES)}")
    if not given.program.exists():
        raise SystemExit(f"{given.program} is not there: cargo build --release, or name it with --program")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-schedules-"))
    print(f"{'schedule':<18} {'seed':>4} {'steps':>6} {'trajectories':>13} {'tokens':>9} {'seconds':>8} {'a kept group':>13} {'1/k':>6}", flush=True)
    try:
        for name, how in chosen.items():
            found = []
            for seed in seeds:
                rows = train(given.program.resolve(), folder, f"{name.replace(', ', '-').replace(' ', '-')}-{seed}", seed, [*how, *given.overrides])
                sums = to_target(rows, given.target)
                if sums is None:
                    print(f"{name:<18} {seed:>4}  never reached {given.target:.0%}", flush=True)
                    continue
                found.append(sums)
                line(name, seed, sums)
            if len(found) > 1:
                line(name, "mid", {key: statistics.median(sums[key] for sums in found) for key in found[0]})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def line(name, seed, sums):
    cost = sums["groups"] / sums["trained"] if sums["trained"] else float("nan")
    floor = sums["groups"] / sums["kept"] if sums["kept"] else float("nan")
    print(
        f"{name:<18} {seed:>4} {sums['steps']:>6.0f} {sums['trajectories']:>13,.0f} {sums['tokens']:>9,.0f} {sums['seconds']:>8.1f} "
        f"{cost:>13.3f} {floor:>6.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
