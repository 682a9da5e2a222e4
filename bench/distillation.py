#!/usr/bin/env python3
"""What a policy learns from a teacher, beside what the teacher learned by reinforcement learning, and what a teacher costs.

    cargo build --release                                          once
    python3 bench/distillation.py                                  the quickstart's model: about ten minutes
    python3 bench/distillation.py --config configs/smollm2.yaml    SmolLM2-135M (scripts/smollm2 makes it)
    python3 bench/distillation.py --config configs/smollm2_calculator.yaml data.train=DIR/train.jsonl data.val=DIR/test.jsonl
    ... --folder DIR                       keeps the runs there; those that are there already are not run again
    ... --taught data.train_batch_size=32  a setting of only the taught runs, as often as you like

The teacher is trained by reinforcement learning, as the configuration says. Then the policy that it began with is taught by it in a
quarter of its steps: by the teacher alone (`on_policy_distillation`), on top of the rewards (`add_distillation`), and by the teacher's
16 likeliest tokens (`objective.distillation`, forward and reverse). Beside them stands the same number of steps of reinforcement
learning. Printed are held-out accuracy, the divergence from the teacher, and the time of a step over that of the same step without its
teacher's pass, which is a GRPO step of the same tokens.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNFILTERED = ["filter=null", "data.gen_batch_size=null", "schedule.mode=rounds"]


def train(program, config, overrides, folder, name):
    if (folder / name / "metrics.jsonl").exists():
        return metrics(folder, name)
    own = [f"run.dir={folder}", f"run.name={name}", "rollout.save=off"]
    command = [program, "train", config, *overrides, *own]
    result = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{name} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return metrics(folder, name)


def metrics(folder, name):
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def accuracies(rows):
    """Held-out accuracy of the first and the last validation."""
    measured = []
    for row in rows:
        found = [value for name, value in row.items() if name.startswith("val-core/") and name.endswith("mean@1")]
        measured += found[:1]
    return measured[0], measured[-1]


def ratio(rows):
    """Time of a step over that without the teacher's pass, the median over all steps but the first."""
    steps = [row for row in rows if "timing_s/teacher" in row][1:]
    return statistics.median(row["timing_s/step"] / (row["timing_s/step"] - row["timing_s/teacher"]) for row in steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="settings of all runs, such as data.train=FILE")
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--steps", type=int, default=0, help="of the teacher; default: as the configuration says")
    parser.add_argument("--taught", action="append", default=[], metavar="SETTING", help="a setting of only the two taught runs")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the runs here, and do not repeat those that are here")
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "tamis")
    arguments = parser.parse_args()
    program = arguments.program.resolve()
    folder = arguments.folder and arguments.folder.resolve()
    folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="tamis-distillation-"))
    try:
        shared = [*arguments.overrides, *([f"train.total_steps={arguments.steps}"] if arguments.steps else [])]
        keep = ["checkpoint.save_freq=1000", "checkpoint.keep_last=null"]
        teacher = train(program, arguments.config, [*shared, *keep], folder, "teacher")
        steps = max(row["step"] for row in teacher if "loss" in row)
        checkpoints = {int(path.name.split("_")[1]): path for path in (folder / "teacher/checkpoints").glob("step_*")}
        first, last = checkpoints[min(checkpoints)], checkpoints[max(checkpoints)]
        begin = [f"model.path={first}", "model.init=null", "sft.steps=0"] if min(checkpoints) == 0 else []
        fewer = max(1, steps // 4)
        quarter = [*arguments.overrides, *begin, f"train.total_steps={fewer}", f"validate.test_freq={fewer}", "checkpoint.save_freq=0"]
        taught = [*quarter, f"teacher=[{{path: {last}}}]", *UNFILTERED, *arguments.taught]
        runs = {
            "reinforcement learning": quarter,
            "teacher alone": [*taught, "objective.advantage={kind: on_policy_distillation}"],
            "teacher and rewards": [*taught, "+objective.shaping={kind: add_distillation}"],
            "likeliest, forward": [*taught, "objective.distillation={top_k: 16, beta: 0, advantages: false}"],
            "likeliest, reverse": [*taught, "objective.distillation={top_k: 16, beta: 1, advantages: false}"],
        }
        print(f"{'run':<28} {'steps':>5} {'before':>7} {'after':>7} {'kl first':>9} {'kl last':>8} {'time':>6}")

        def show(name, rows):
            trained = [row for row in rows if "loss" in row]
            before, after = accuracies(rows)
            line = f"{name:<28} {len(trained):>5} {before:>7.3f} {after:>7.3f}"
            if "distillation/kl" in trained[0]:
                line += f" {trained[0]['distillation/kl']:>9.4f} {trained[-1]['distillation/kl']:>8.4f} {ratio(trained):>6.3f}"
            print(line, flush=True)

        show("the teacher", teacher)
        for name, overrides in runs.items():
            show(name, train(program, arguments.config, overrides, folder, name.replace(" ", "-")))
    finally:
        if not arguments.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
