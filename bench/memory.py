#!/usr/bin/env python3
"""Compares the memory that a run estimates with the most that it took.

    cargo build --release -p tamis-cli
    python3 bench/memory.py [--model FOLDER] [--data TRAIN.jsonl] [--only NAME]... [--threads 2] [KEY=VALUE...]

Each case runs a few steps of `tamis train`, and its checkpoint after the last, in a folder of its own that is removed again.
The estimate is the first figure of the line `memory: at most ...`; the peak is the kernel's `ru_maxrss` of the process (what
/usr/bin/time -v calls maximum resident set size). A run that took more than its estimate is named, and the exit status is 1.

FOLDER is a model in Hugging Face layout with a chat template, TRAIN.jsonl holds `question` and `answer` (GSM8K's files do),
and a test.jsonl lies beside it; cases that need one that is not given are left out, with a line. `--only quickstart
--only "mid, critic"` takes the cases whose names begin so. Further arguments go to `tamis train`.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SHORT = ["train.total_steps=4", "sft.target_accuracy=null", "sft.steps=3", "validate.before_train=false",
         "validate.test_freq=0", "checkpoint.save_freq=0", "schedule.max_num_gen_batches=1"]

# As bench/peers/torch_engine.py's `mid`, but for the vocabulary, with random weights.
MID = """
run: {name: memory}
model:
  init: {architecture: llama, hidden_size: 512, intermediate_size: 1408, num_layers: 8, num_heads: 8, max_position_embeddings: 512}
data:
  task: arithmetic
  arithmetic: {levels: [{digits: 3, operators: ['+', '-'], terms: 3}], train_size: 512, val_size: 8}
  max_prompt_length: 32
  train_batch_size: 16
  check_gold: 'off'
rollout: {n: 8, max_response_length: 96, save: 'off'}
reward: [{kind: number}]
filter: null
train: {total_steps: 2, ppo_mini_batch_size: 8}
validate: {test_freq: 0}
checkpoint: {save_freq: 0}
"""

REAL = """
run: {name: memory}
model: {path: MODEL}
data:
  train: DATA
  overlong_prompts: drop
  max_prompt_length: 256
  train_batch_size: 4
  check_gold: 'off'
rollout: {n: 4, max_response_length: 96, save: 'off'}
reward: [{kind: gsm8k}]
filter: null
train: {total_steps: 2}
validate: {test_freq: 0}
checkpoint: {save_freq: 0}
"""

# Rows with some 4000 characters, each a token: chance ends hardly a completion, so that all run to their full length. The prompts are as long
# as they may be.
FULL = ["data.task=null", "data.train=FULL", "reward=[{kind: exact}]"]

KL = "objective.kl={in: loss, estimator: k3, coefficient: 0.01}"
# Name, configuration (a file of the project or a text), overrides.
CASES = [
    ("quickstart", "configs/quickstart.yaml", SHORT),
    ("bench_step", "configs/bench_step.yaml", ["train.total_steps=2", "sft.steps=3"]),
    ("gsm8k_calculator", "configs/gsm8k_calculator.yaml", [*SHORT, "data.train=DATA", "data.val=HELDOUT", "schedule.on_limit=use_partial"]),
    ("mid", MID, []),
    ("mid, reference, 32 sequences at once", MID, [KL, "train.micro_batch_size=32"]),
    ("mid, critic", MID, ["preset=ppo", "data.gen_batch_size=null"]),
    ("mid at full length", MID, FULL),
    ("mid at full length, reference, 32 sequences at once", MID, [*FULL, KL, "train.micro_batch_size=32"]),
    ("mid at full length, critic", MID, [*FULL, "preset=ppo", "data.gen_batch_size=null"]),
    ("mid at full length, recomputed, 2048 tokens at once", MID, [*FULL, "model.recompute_activations=true", "train.micro_batch_tokens=2048"]),
    ("mid, recomputed, 2048 tokens at once", MID, ["model.recompute_activations=true", "train.micro_batch_tokens=2048"]),
    ("random weights with the model's tokenizer", MID, ["model.init.tokenizer=MODEL/tokenizer.json", "data.max_prompt_length=64", "train.total_steps=1", "data.train_batch_size=2", "train.ppo_mini_batch_size=2", "rollout.max_response_length=64"]),
    ("model", REAL, []),
    ("model, 8 groups of 8, 24 tokens", REAL, ["data.train_batch_size=8", "rollout.n=8", "rollout.max_response_length=24"]),
    ("model, reference, 1024 tokens at once", REAL, [KL, "train.micro_batch_tokens=1024"]),
]


def estimate_of(text):
    found = re.search(r"memory: (?:about |at most )?([0-9.]+) (\w+)", text)
    if found is None:
        raise SystemExit(f"the run prints nothing about its memory:\n{text}")
    return float(found[1]) * UNITS[found[2]]


def measure(program, configuration, overrides, arguments):
    with tempfile.TemporaryDirectory(prefix="tamis-memory-") as folder:
        if "\n" in configuration:
            text = configuration.replace("MODEL", str(arguments.model)).replace("DATA", str(arguments.data))
            path = pathlib.Path(folder, "memory.yaml")
            path.write_text(text)
        else:
            path = ROOT / configuration
        held_out = arguments.data and arguments.data.with_name("test.jsonl")
        full = pathlib.Path(folder, "full.jsonl")
        full.write_text("".join(f'{{"question": "{"".join(chr(0x4E00 + row * 31 + place) for place in range(31))}", "answer": "1"}}\n' for row in range(128)))
        overrides = [override.replace("FULL", str(full)).replace("HELDOUT", str(held_out)).replace("DATA", str(arguments.data)).replace("MODEL", str(arguments.model)) for override in overrides]
        command = [program, "train", str(path), f"run.dir={folder}/runs", "run.loggers=[jsonl]", f"run.threads={arguments.threads}",
                   *overrides, *arguments.overrides]
        with open(pathlib.Path(folder, "err"), "w+") as err:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            err.seek(0)
            said = err.read()
        if child.returncode != 0:
            raise SystemExit(f"`{' '.join(map(str, command))}` ended with {child.returncode}:\n{said[-2000:]}")
        return estimate_of(said), usage.ru_maxrss * 1024, next(line for line in said.splitlines() if "memory:" in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "target/release/tamis", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose names begin so; may be given several times")
    parser.add_argument("--verbose", action="store_true", help="show what the estimate is made of")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for `tamis train`")
    arguments = parser.parse_args()
    arguments.model = arguments.model and arguments.model.resolve()
    arguments.data = arguments.data and arguments.data.resolve()
    chosen = arguments.only or [""]
    unknown = [begin for begin in chosen if not any(name.startswith(begin) for name, *_ in CASES)]
    if unknown:
        parser.error(f"no case begins with {', '.join(map(repr, unknown))}; there are: {'; '.join(name for name, *_ in CASES)}")
    print("| case | estimate | peak | estimate / peak |\n|---|---|---|---|", flush=True)
    worst, above = 1.0, []
    for name, configuration, overrides in CASES:
        if not any(name.startswith(begin) for begin in chosen):
            continue
        needs = [what for what, given in [("MODEL", arguments.model), ("DATA", arguments.data)]
                 if given is None and what in configuration + " ".join(overrides)]
        if needs:
            print(f"left out: {name} (needs --{' and --'.join(needs).lower()})", file=sys.stderr)
            continue
        estimate, peak, line = measure(arguments.program, configuration, overrides, arguments)
        print(f"| {name} | {estimate / 2**20:.0f} MiB | {peak / 2**20:.0f} MiB | {estimate / peak:.2f} |", flush=True)
        if arguments.verbose:
            print(f"  {line.strip()}", file=sys.stderr)
        worst = max(worst, estimate / peak)
        # A run prints GiB with one decimal.
        above += [name] if peak > estimate + (0.05 * UNITS["GiB"] if estimate >= UNITS["GiB"] else 0) else []
    print(f"\nfurthest: {worst:.2f}")
    if above:
        sys.exit(f"took more than the estimate: {'; '.join(above)}")


if __name__ == "__main__":
    main()
