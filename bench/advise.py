#!/usr/bin/env python3
"""What `tamis advise` predicts from a run's first steps, beside the next steps of the same run.

    cargo build --release
    python3 bench/advise.py                     the quickstart, seed 1: advice after 10 steps, and the 5 steps after them
    python3 bench/advise.py --seeds 1,2,3 --first 20 --then 10

Every run trains as in configs/quickstart.yaml for the first steps with its rollouts saved and without a limit on rounds, is asked for advice
(`tamis advise RUN --json`), and continues. Printed are keep rate, rounds of a step and groups generated for each that is trained on: the advice with its
interval of 90 %, what was seen, and their ratio. The policy learns meanwhile, so that a ratio is that of the step's prompts and of what was learnt; `same
steps` is the advice of the very steps that are predicted, which leaves the first out. Needs only Python's standard library.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tamis(program, arguments):
    print("tamis", " ".join(map(str, arguments)), file=sys.stderr, flush=True)
    done = subprocess.run([program, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"it ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr


def seen(run, first, last):
    """Keep rate, rounds of a step and groups generated a trained one, of these steps."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if first <= row.get("training/global_step", 0) <= last and "groups/generated" in row]
    total = {name: sum(row.get(name, 0) for row in rows) for name in ["groups/generated", "groups/dropped", "groups/trained", "train/num_gen_batches"]}
    generated = total["groups/generated"]
    return {
        "keep rate": 1 - total["groups/dropped"] / generated,
        "rounds a step": total["train/num_gen_batches"] / len(rows),
        "generated a kept group": generated / total["groups/trained"],
    }


def advised(advice):
    rounds = next(mode for mode in advice["costs"]["modes"] if mode["name"] == "rounds")
    return {"keep rate": advice["keep_rate"], "rounds a step": rounds["rounds"], "generated a kept group": rounds["generated_per_kept"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for `tamis train`")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--first", type=int, default=10, help="steps before the advice")
    parser.add_argument("--then", type=int, default=5, help="steps that are predicted")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target" / "release" / "tamis")
    given = parser.parse_intermixed_args()
    if not given.program.exists():
        raise SystemExit(f"{given.program} is not there: cargo build --release, or name it with --program")
    program, last = given.program.resolve(), given.first + given.then
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tamis-advise-"))
    print(f"{'seed':>4} {'':<24} {'advice':>8} {'90 % interval':>16} {'seen':>8} {'ratio':>6} {'same steps':>11} {'ratio':>6}", flush=True)
    try:
        for seed in given.seeds.split(","):
            run = folder / f"seed-{seed}"
            own = [f"run.seed={seed}", f"run.dir={folder}", f"run.name={run.name}", "rollout.save=all", "validate.test_freq=0", "validate.before_train=false"]
            # If the limit cuts a step short, its rounds are not those of the law; a rate that falls to its end stops the run.
            free = ["schedule.max_num_gen_batches=50", "train.lr_schedule={kind: constant}", f"train.total_steps={given.first}"]
            tamis(program, ["train", "configs/quickstart.yaml", *own, *free, *given.overrides])
            before = advised(json.loads(tamis(program, ["advise", run, "--json"])[0]))
            _, said = tamis(program, ["train", "--resume", run, f"train.total_steps={last}"])
            print(*[line for line in said.splitlines() if "advice:" in line], sep="\n", file=sys.stderr, flush=True)
            after = seen(run, given.first + 1, last)
            same = advised(json.loads(tamis(program, ["advise", run, "--json", "--steps", f"{given.first + 1}..{last}"])[0]))
            for name, found in after.items():
                said = before[name]
                interval = f"{said['low']:.3f} to {said['high']:.3f}"
                print(
                    f"{seed:>4} {name:<24} {said['value']:>8.3f} {interval:>16} {found:>8.3f} {said['value'] / found:>6.2f} "
                    f"{same[name]['value']:>11.3f} {same[name]['value'] / found:>6.2f}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
