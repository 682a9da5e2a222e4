#!/usr/bin/env python3
"""Seconds and memory of a GRPO step on SmolLM2-135M-Instruct, tamis against TRL, with the settings of configs/smollm2.yaml.

    scripts/smollm2; bench/install_peers.sh; cargo build --release      once
    python3 bench/smollm2.py [--threads 1] [--steps 4]
    python3 bench/smollm2.py --dapo                                     DAPO's bounds, 16 groups of 8 completions of 16 tokens
    python3 bench/smollm2.py --differ                                   a reward by only the text: groups seldom score alike
    python3 bench/smollm2.py --evaluate                                 greedy answers to the 100 held-out prompts
    scripts/install-torch                                               once, for the next
    python3 bench/smollm2.py --learner torch [--sampler learner] [--device cuda] [--model FOLDER]
    python3 bench/smollm2.py --accuracy [--learner torch]               16 steps and what was learned; half an hour

Without `--evaluate`, all train on 8 groups of 8 completions of at most 24 tokens with one optimizer step, in 32 bits, from the same
weights, on the same number of threads, one after the other. Printed are the seconds of a step by the wall clock
and by the processor's, without the first step, and the most memory that the process took. On a machine that does
other things too, compare the processor's on one thread. TRL has its quickest settings: no gradient checkpointing,
no reference model, micro-batches of 64, nothing logged or saved. Both weight all tokens alike, as DAPO does;
`--dapo` clips above at 1.28, too. Both train on all groups, because TRL has no filter. If a group scores alike, its
derivatives are 0, and tamis skips its backward pass. With `--differ` rewards have nothing to do with answers, members
score alike only if all of a group have the same text, and both sides compute everything but that; how many groups do is
printed.

`--learner torch` has PyTorch learn for tamis too; completions come from the native engine, or with `--sampler
learner` from PyTorch as well. `--device cuda` puts both learners on the GPU, in bf16 with 32-bit weights (TRL: 32-bit
weights under autocast), and asks for `--sampler learner`. `--model` is another chat model in Hugging
Face layout; `--shape 0.5b` makes one of that shape with random weights and SmolLM2's tokenizer, to measure only seconds.

`--evaluate` runs `tamis eval`, and transformers' `generate` over all prompts at once, padded on the left: seconds and memory of the
whole process, loading included, and for transformers also those of only its answers.

`--accuracy` prints the accuracy on the 100 held-out prompts (greedy, by tamis for both) before, after 8 and after 16 steps,
beside the seconds of all steps until then, and the groups a second whose members' rewards differ.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "smollm2"
KEEP_EVERY = 8
# Of SmolLM2's tokenizer.
NUM_TOKENS = 49152


def environment(threads):
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return os.environ | {name: str(threads) for name in names}


def run(command, env=None):
    """What a command printed, its processor seconds and the most memory it took, in GiB."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=env)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}\nended with {process.returncode}:\n{errors.read()[-2000:]}")
        return out.read(), used.ru_utime + used.ru_stime, used.ru_maxrss / (1 << 20)


def shape_settings(given):
    """Settings of tamis for the groups of a step."""
    settings = [f"data.train_batch_size={given.prompts}", f"rollout.max_response_length={given.tokens}"]
    settings += [f"data.train={given.folder}/train.jsonl", f"data.val={given.folder}/test.jsonl"]
    spread = f"reward=[{{kind: python, name: spread, path: '{ROOT}/bench/peers/spread_reward.py', style: verl}}]"
    return settings + ["objective.loss.clip_high=0.28"] * given.dapo + [spread] * given.differ


def learner_settings(given):
    """Settings of tamis for its learner and its sampler."""
    if given.learner == "native":
        return []
    settings = ["learner.backend=torch", f"learner.python={given.python}", f"learner.device={given.device}"]
    return settings + (["rollout.backend=learner"] if given.sampler == "learner" else [])


def train(given, steps, settings):
    """Processor seconds, GiB and the lines of metrics.jsonl of a run."""
    folder = tempfile.mkdtemp(prefix="tamis-bench-")
    try:
        command = [given.program, "train", ROOT / "configs/smollm2.yaml", f"run.dir={folder}", f"run.threads={given.threads}"]
        command += [f"train.total_steps={steps}", "run.loggers=[jsonl]", "rollout.save=off", *settings]
        command += [f"model.path={given.model}", *shape_settings(given), *learner_settings(given)]
        _, processor, memory = run(command)
        text = (pathlib.Path(folder) / "smollm2/metrics.jsonl").read_text()
        return processor, memory, [json.loads(line) for line in text.splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ours(given):
    """Processor seconds: what a run of all steps takes beyond a run of only the first. With `--json` they are left out."""
    steps = given.steps
    settings = ["validate.before_train=false", "validate.test_freq=0", "~data.val"]
    first = None if given.json else train(given, 1, settings)[0]
    every, memory, lines = train(given, steps, settings)
    steps_taken = [line for line in lines if "timing_s/step" in line][1:]
    wall = statistics.median(line["timing_s/step"] for line in steps_taken)
    length = statistics.mean(line["response_length/mean"] for line in steps_taken)
    alike = statistics.mean(line["frac_reward_zero_std"] for line in steps_taken)
    processor = None if first is None else (every - first) / (steps - 1)
    return {"who": f"tamis ({given.learner})", "wall": wall, "processor": processor, "memory": memory, "length": length, "alike": alike}


def our_accuracy(given):
    """`(steps, seconds of them, accuracy, groups with signal a second)` of tamis."""
    _, _, lines = train(given, given.steps, ["validate.before_train=true", f"validate.test_freq={KEEP_EVERY}"])
    seconds, kept, points = 0.0, 0.0, []
    for line in lines:
        if "timing_s/step" in line:
            seconds += line["timing_s/step"] - line.get("timing_s/testing", 0.0)
            kept += given.prompts * (1 - line["frac_reward_zero_std"])
        if (accuracy := accuracy_of(line)) is not None:
            points.append((round(line.get("training/global_step", 0)), seconds, accuracy, kept / seconds if seconds else 0.0))
    return points


def accuracy_of(metrics):
    return next((value for name, value in metrics.items() if name.startswith("val-core/")), None)


def evaluate(given, folder):
    """Accuracy of a model's greedy answers, processor seconds and GiB of `tamis eval`."""
    command = [given.program, "eval", folder, f"data.val={given.folder}/test.jsonl", "reward=[{kind: gsm8k, method: flexible}]"]
    command += ["rollout.max_response_length=24", "data.max_prompt_length=64", f"run.threads={given.threads}", "--json"]
    printed, processor, memory = run(command)
    return accuracy_of(json.loads(printed)["metrics"]), processor, memory


def evaluate_with_transformers(given, folder):
    """As `evaluate`, and the seconds of only the answers."""
    command = [given.peer_python, ROOT / "bench/peers/transformers_eval.py", folder, given.folder / "test.jsonl"]
    printed, processor, memory = run([*command, "--threads", str(given.threads)], environment(given.threads))
    answers = json.loads(printed.splitlines()[-1])
    return answers["accuracy"], processor, memory, answers


def compare_evaluations(given):
    sides = {"tamis": ("tamis eval", evaluate), "trl": ("transformers", evaluate_with_transformers)}
    for who, measure in (side for name, side in sides.items() if given.only in (None, name)):
        begin = time.perf_counter()
        accuracy, processor, memory, *answers = measure(given, given.model)
        figures = f"{time.perf_counter() - begin:6.1f} s, {processor:6.1f} s of the processor, {memory:4.1f} GiB, {accuracy:.1%} right"
        alone = "".join(f"; answers alone {row['wall']:.1f} s, {row['processor']:.1f} of the processor" for row in answers)
        print(f"{who:14} {figures}{alone}", flush=True)


def their_accuracy(given):
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        row = theirs(given, ["--keep", folder, "--keep-every", str(KEEP_EVERY)])
        points = [(0, 0.0, evaluate(given, given.model)[0], 0.0)]
        for steps in range(KEEP_EVERY, given.steps + 1, KEEP_EVERY):
            seconds = sum(wall for wall, _ in row["steps"][:steps])
            kept = given.prompts * sum(1 - share for share in row["zero_std"][:steps])
            points.append((steps, seconds, evaluate(given, pathlib.Path(folder) / f"step_{steps}")[0], kept / seconds))
    return points


def theirs(given, options=()):
    script = {"trl": "trl_smollm2.py", "plain": "plain_step.py"}[given.peer]
    command = [given.peer_python, ROOT / "bench/peers" / script, given.folder, "--model", given.model]
    command += ["--threads", str(given.threads), "--steps", str(given.steps), "--device", given.device, *options]
    command += ["--prompts", str(given.prompts), "--tokens", str(given.tokens), *["--dapo"] * given.dapo, *["--differ"] * given.differ]
    printed, _, memory = run(command, environment(given.threads))
    row = json.loads(printed.splitlines()[-1])
    return row | {"memory": memory, "alike": statistics.mean(row["zero_std"][1:])}


def arguments(words=None):
    """Of the command line, or of these words."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of each; default 4, the first of which does not count, with --accuracy 16")
    parser.add_argument("--accuracy", action="store_true", help="what was learned, too")
    parser.add_argument("--evaluate", action="store_true", help="greedy answers to the held-out prompts, no training")
    parser.add_argument("--only", choices=["tamis", "trl"], help="one of the two")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/tamis")
    parser.add_argument("--learner", choices=["native", "torch"], default="native", help="tamis learns in")
    parser.add_argument("--sampler", choices=["native", "learner"], default="native", help="tamis samples in")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="what scripts/smollm2 made")
    parser.add_argument("--model", type=pathlib.Path, help="FOLDER/model")
    parser.add_argument("--peer", choices=["trl", "plain"], default="trl", help="`plain`: a loop of transformers' generate and an update")
    parser.add_argument("--groups", type=int, help="groups of 8 completions of a step: 8, with --dapo 16")
    parser.add_argument("--tokens", type=int, help="of a completion, at most: 24, with --dapo 16")
    parser.add_argument("--json", action="store_true", help="the wall seconds of each side, and its groups with signal a second, as JSON lines")
    parser.add_argument("--shape", choices=["30m", "0.5b", "7b"], help="a model of this shape with random weights in place of --model")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / ".venv-torch/bin/python", help="with PyTorch")
    parser.add_argument("--peer-python", type=pathlib.Path, default=ROOT / ".venv-bench/bin/python", help="with PyTorch and TRL")
    parser.add_argument("--dapo", action="store_true", help="DAPO's bounds, 16 groups of 8 completions of at most 16 tokens")
    parser.add_argument("--differ", action="store_true", help="a reward by only the text: groups seldom score alike")
    given = parser.parse_args(words)
    given.steps = given.steps or (16 if given.accuracy else 4)
    given.prompts = given.groups or (16 if given.dapo else 8)
    given.tokens = given.tokens or (16 if given.dapo else 24)
    given.model = given.model or given.folder / "model"
    return given


def check(given):
    """Ends with what to run first if something is missing."""
    if given.evaluate and (given.learner, given.sampler, given.device, given.dapo, given.accuracy) != ("native", "native", "cpu", False, False):
        raise SystemExit("--evaluate compares the native engine with transformers on the CPU: it takes --threads, --model and --only")
    if given.differ and (given.accuracy or given.evaluate):
        raise SystemExit("--differ has rewards that teach nothing: it goes with neither --accuracy nor --evaluate")
    if given.device == "cuda" and (given.learner, given.sampler) != ("torch", "learner"):
        raise SystemExit("--device cuda needs --learner torch --sampler learner: nothing else of tamis computes on a GPU")
    needed = {given.folder / "model": "scripts/smollm2", given.peer_python: "bench/install_peers.sh"}
    if given.learner == "torch":
        needed |= {given.python: "scripts/install-torch"}
    for path, command in (needed | {given.program: "cargo build --release"}).items():
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {command} first")


def main():
    given = arguments()
    check(given)
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        if given.shape:
            given.model = make_model(given, pathlib.Path(folder))
        compare(given)


def make_model(given, folder):
    """A model of a shape with random weights that reads and writes SmolLM2's tokens."""
    make = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import torch_learner; torch_learner.make_model({given.shape!r}, {str(folder)!r}, {NUM_TOKENS}, {given.device!r})"
    subprocess.run([given.peer_python, "-c", make], check=True, stderr=subprocess.DEVNULL)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(given.folder / "model" / name, folder / name)
    return folder


def compare(given):
    if given.evaluate:
        return compare_evaluations(given)
    if given.accuracy:
        print(f"{'':14} {'steps':>5} {'seconds':>8} {'accuracy':>9} {'groups with signal a second':>28}")
        sides = {"tamis": (f"tamis ({given.learner})", our_accuracy), "trl": ("TRL", their_accuracy)}
        for who, learn in (side for name, side in sides.items() if given.only in (None, name)):
            for steps, seconds, accuracy, kept in learn(given):
                print(f"{who:14} {steps:>5} {seconds:>8.0f} {accuracy:>9.1%} {kept:>28.3f}", flush=True)
        return
    rows = []
    for side in [side for name, side in (("tamis", ours), ("trl", theirs)) if given.only in (None, name)]:
        rows.append(side(given))
        if given.json:
            # At once, in case that the other side fails.
            line = {name: rows[-1][name] for name in ("who", "wall", "memory", "length", "alike")}
            line["groups_with_signal_per_s"] = given.prompts * (1 - line["alike"]) / line["wall"]
            print(json.dumps({name: round(one, 4) if isinstance(one, float) else one for name, one in line.items()}), flush=True)
    if given.json:
        return
    for row in rows:
        figures = f"{row['wall']:7.1f} s a step, {row['processor']:7.1f} s of the processor"
        print(f"{row['who']:14} {figures}, {row['memory']:5.1f} GiB, completions of {row['length']:.1f} tokens, {row['alike']:.0%} of the groups alike")
    for clock in ("wall", "processor") if len(rows) == 2 else ():
        print(f"TRL over tamis by the {clock}: {rows[1][clock] / rows[0][clock]:.2f}")


if __name__ == "__main__":
    main()
