#!/usr/bin/env python3
"""Seconds of a GRPO step on SmolLM2-135M-Instruct, tamis against TRL, with the settings of configs/smollm2.yaml.

    scripts/smollm2; bench/install_peers.sh; cargo build --release      once
    python3 bench/smollm2.py [--threads 1] [--steps 4]
    scripts/install-torch                                               once, for the next
    python3 bench/smollm2.py --learner torch [--sampler learner] [--device cuda] [--model FOLDER]
    python3 bench/smollm2.py --accuracy [--learner torch]               16 steps and what was learned; half an hour

All train on 8 groups of 8 completions of at most 24 tokens with one optimizer step, in 32 bits, from the same
weights, on the same number of threads, one after the other. Printed are the seconds of a step by the wall clock
and by the processor's, without the first step. On a machine that does other things too, compare the processor's
on one thread. TRL has its quickest settings: no gradient checkpointing, no reference model, one micro-batch of 64,
nothing logged or saved.

`--learner torch` has PyTorch learn for tamis too; completions come from the native engine, or with `--sampler
learner` from PyTorch as well. `--device cuda` puts both learners on the GPU, in bf16 with 32-bit weights (TRL: 32-bit
weights under autocast), and asks for `--sampler learner`. `--model` is another chat model in Hugging
Face layout; `--shape 0.5b` makes one of that shape with random weights and SmolLM2's tokenizer, for seconds alone.

`--accuracy` prints the accuracy on the 100 held-out prompts (greedy, by tamis for both) before, after 8 and after 16 steps,
beside the seconds of all steps until then, and the groups a second whose members' rewards differ.
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
KEEP_EVERY = 8
# Of SmolLM2's tokenizer.
NUM_TOKENS = 49152


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


def train(given, steps, settings):
    """Processor seconds and the lines of metrics.jsonl of a run."""
    folder = tempfile.mkdtemp(prefix="tamis-bench-")
    try:
        before = processor_seconds()
        command = [given.program, "train", ROOT / "configs/smollm2.yaml", f"run.dir={folder}", f"run.threads={given.threads}"]
        command += [f"train.total_steps={steps}", "run.loggers=[jsonl]", "rollout.save=off", *settings]
        command += [f"model.path={given.model}", *learner_settings(given)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        text = (pathlib.Path(folder) / "smollm2/metrics.jsonl").read_text()
        return processor_seconds() - before, [json.loads(line) for line in text.splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ours(given):
    """Processor seconds: what a run of all steps takes beyond a run of the first alone."""
    steps = given.steps
    settings = ["validate.before_train=false", "validate.test_freq=0", "~data.val"]
    (first, _), (every, lines) = (train(given, total, settings) for total in (1, steps))
    steps_taken = [line for line in lines if "timing_s/step" in line][1:]
    wall = statistics.median(line["timing_s/step"] for line in steps_taken)
    length = statistics.mean(line["response_length/mean"] for line in steps_taken)
    return {"who": f"tamis ({given.learner})", "wall": wall, "processor": (every - first) / (steps - 1), "length": length}


def our_accuracy(given):
    """`(steps, seconds of them, accuracy, groups with signal a second)` of tamis."""
    _, lines = train(given, given.steps, ["validate.before_train=true", f"validate.test_freq={KEEP_EVERY}"])
    seconds, kept, points = 0.0, 0.0, []
    for line in lines:
        if "timing_s/step" in line:
            seconds += line["timing_s/step"] - line.get("timing_s/testing", 0.0)
            kept += 8 * (1 - line["frac_reward_zero_std"])
        if (accuracy := accuracy_of(line)) is not None:
            points.append((round(line.get("training/global_step", 0)), seconds, accuracy, kept / seconds if seconds else 0.0))
    return points


def accuracy_of(metrics):
    return next((value for name, value in metrics.items() if name.startswith("val-core/")), None)


def evaluate(given, folder):
    """Accuracy of a model's greedy answers."""
    command = [given.program, "eval", folder, f"data.val={FOLDER}/test.jsonl", "reward=[{kind: gsm8k, method: flexible}]"]
    command += ["rollout.max_response_length=24", "data.max_prompt_length=64", f"run.threads={given.threads}", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return accuracy_of(json.loads(done.stdout)["metrics"])


def their_accuracy(given):
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        row = theirs(given, ["--keep", folder, "--keep-every", str(KEEP_EVERY)])
        points = [(0, 0.0, evaluate(given, given.model), 0.0)]
        for steps in range(KEEP_EVERY, given.steps + 1, KEEP_EVERY):
            seconds = sum(wall for wall, _ in row["steps"][:steps])
            kept = 8 * sum(1 - share for share in row["zero_std"][:steps])
            points.append((steps, seconds, evaluate(given, pathlib.Path(folder) / f"step_{steps}"), kept / seconds))
    return points


def theirs(given, options=()):
    command = [given.peer_python, ROOT / "bench/peers/trl_smollm2.py", FOLDER, "--model", given.model]
    command += ["--threads", str(given.threads), "--steps", str(given.steps), "--device", given.device, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(given.threads))
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of each; default 4, the first of which does not count, with --accuracy 16")
    parser.add_argument("--accuracy", action="store_true", help="what was learned, too")
    parser.add_argument("--only", choices=["tamis", "trl"], help="one of the two")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--learner", choices=["native", "torch"], default="native", help="where tamis learns")
    parser.add_argument("--sampler", choices=["native", "learner"], default="native", help="where tamis samples")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", type=pathlib.Path, default=FOLDER / "model")
    parser.add_argument("--shape", choices=["30m", "0.5b", "7b"], help="a model of this shape with random weights in place of --model")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / ".venv-torch/bin/python", help="with PyTorch")
    parser.add_argument("--peer-python", type=pathlib.Path, default=ROOT / ".venv-bench/bin/python", help="with PyTorch and TRL")
    given = parser.parse_args()
    given.steps = given.steps or (16 if given.accuracy else 4)
    if given.device == "cuda" and (given.learner, given.sampler) != ("torch", "learner"):
        raise SystemExit("--device cuda needs --learner torch --sampler learner: nothing else of tamis computes on a GPU")
    needed = {FOLDER / "model": "scripts/smollm2", given.peer_python: "bench/install_peers.sh"}
    if given.learner == "torch":
        needed |= {given.python: "scripts/install-torch"}
    for path, command in (needed | {given.program: "cargo build --release"}).items():
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {command} first")
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        if given.shape:
            given.model = make_model(given, pathlib.Path(folder))
        compare(given)


def make_model(given, folder):
    """A model of a shape with random weights that reads and writes SmolLM2's tokens."""
    make = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import torch_learner; torch_learner.make_model({given.shape!r}, {str(folder)!r}, {NUM_TOKENS})"
    subprocess.run([given.peer_python, "-c", make], check=True, stderr=subprocess.DEVNULL)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(FOLDER / "model" / name, folder / name)
    return folder


def compare(given):
    if given.accuracy:
        print(f"{'':14} {'steps':>5} {'seconds':>8} {'accuracy':>9} {'groups with signal a second':>28}")
        sides = {"tamis": (f"tamis ({given.learner})", our_accuracy), "trl": ("TRL", their_accuracy)}
        for who, learn in (side for name, side in sides.items() if given.only in (None, name)):
            for steps, seconds, accuracy, kept in learn(given):
                print(f"{who:14} {steps:>5} {seconds:>8.0f} {accuracy:>9.1%} {kept:>28.3f}", flush=True)
        return
    rows = [side(given) for name, side in (("tamis", ours), ("trl", theirs)) if given.only in (None, name)]
    for row in rows:
        figures = f"{row['wall']:7.1f} s a step, {row['processor']:7.1f} s of the processor"
        print(f"{row['who']:14} {figures}, completions of {row['length']:.1f} tokens")
    for clock in ("wall", "processor") if len(rows) == 2 else ():
        print(f"TRL over tamis by the {clock}: {rows[1][clock] / rows[0][clock]:.2f}")


if __name__ == "__main__":
    main()
