#!/usr/bin/env python3
"""What `tamis.trl.attach` saves TRL's `GRPOTrainer` on a task on which nine of ten groups teach nothing.

    bench/install_peers.sh                                            once
    scripts/build-wheel                                               once, and then, with the wheel for this machine:
    .venv-bench/bin/python -m pip install --no-index --no-deps --find-links dist tamis
    .venv-bench/bin/python bench/trl_attach.py                        three seeds; an hour of one core
    .venv-bench/bin/python bench/trl_attach.py --seeds 4,5            two more
    .venv-bench/bin/python bench/trl_attach.py --table                prints the tables of what has been measured
    .venv-bench/bin/python bench/trl_attach.py --small                a few updates, to see that it works
    .venv-bench/bin/python bench/trl_attach.py --completions FOLDER   plain TRL with `log_completions`, to be advised on

A Llama of 0.8 million weights reads and writes characters. Of its prompts 85 % are products of numbers of three digits,
which it never answers, and 15 % are sums of numbers of two digits. Supervised training takes it to 26 % of 1,000
held-out sums. Then `GRPOTrainer` trains it on 16 groups of 8 completions an update.

Plain TRL and TRL with `attach` (filter `variance` and schedule `deficit`, its defaults; a batch may take 20 times its
groups; the default is 10) train at three learning rates with the first seed. The other seeds take plain TRL's
best rate for both, and the best of `attach` too. The accuracy is that of greedy answers to the held-out sums, the mean
of three checks in a row. Checks do not count. The level to reach is plain TRL's accuracy at its end. The tables say
what each needed to reach it for the first time: updates, completions and processor seconds (user and system, of
training only, without imports). One thread. On the same machine a seed gives the same numbers again, except for the
seconds. Gradient norms are those that TRL logs, of the updates after which a check is made.

In the second task there are no products, so most groups have signal.
"""

import argparse
import json
import logging
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHARACTERS = "0123456789+*="
PAD, EOS, UNKNOWN = range(3)
NUM_GROUPS, N = 16, 8
MAX_TOKENS = 8
LEARNING_RATES = (1e-5, 3e-5, 1e-4)
SMOOTHED = 3
"""Checks that an accuracy is the mean of."""

TASKS = {"hopeless": 0.85, "signal": 0.0}
"""Of each task, the share of products among its prompts."""

UPDATES = {("hopeless", "plain"): 400, ("hopeless", "attach"): 60, ("signal", "plain"): 100, ("signal", "attach"): 75}
NUM_CHECKS = 30


def make_tokenizer():
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def make_model(is_small):
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4}
    if is_small:
        shape |= {"num_hidden_layers": 1}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": EOS}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=3 + len(CHARACTERS), max_position_embeddings=64, **shape, **ids))
    model.generation_config.update(**ids)
    return model


def make_sums(is_small):
    """`(held out, others)`, each a list of `(prompt, answer)`."""
    numbers = range(10) if is_small else range(10, 100)
    pairs = [(f"{left}+{right}=", str(left + right)) for left in numbers for right in numbers]
    random.Random(0).shuffle(pairs)
    num_held_out = 20 if is_small else 1000
    return pairs[:num_held_out], pairs[num_held_out:]


def make_product(source):
    left, right = source.randrange(100, 1000), source.randrange(100, 1000)
    return f"{left}*{right}=", str(left * right)


def encode(text):
    return [3 + CHARACTERS.index(character) for character in text]


@torch.no_grad()
def accuracy(model, tokenizer, rows):
    """The share of rows whose greedy answer is right."""
    was_training = model.training
    model.eval()
    ids = torch.tensor([encode(prompt) for prompt, _ in rows])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=4)[
        :, ids.shape[1] :
    ]
    model.train(was_training)
    texts = tokenizer.batch_decode(made, skip_special_tokens=True)
    return sum(text == answer for text, (_, answer) in zip(texts, rows)) / len(rows)


def start(given, tokenizer):
    """A model after as much supervised training as makes 23 % of the held-out sums right; kept in a file."""
    model = make_model(given.small)
    if given.start.exists():
        model.load_state_dict(torch.load(given.start, weights_only=True))
        return model
    held_out, sums = make_sums(given.small)
    source = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(4000):
        # A batch has one kind, so that all its prompts have the same length.
        rows = source.sample(sums, min(128, len(sums))) if step % 2 else [make_product(source) for _ in range(128)]
        rows = [(encode(prompt), encode(answer) + [EOS]) for prompt, answer in rows]
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.tensor([prompt + answer + [PAD] * (width - len(prompt) - len(answer)) for prompt, answer in rows])
        labels = torch.tensor(
            [[-100] * len(prompt) + answer + [-100] * (width - len(prompt) - len(answer)) for prompt, answer in rows]
        )
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        if step % 20 == 19 and accuracy(model, tokenizer, held_out) >= 0.23:
            given.start.parent.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), given.start)
            return model
    raise SystemExit("supervised training did not get there")


class Right:
    """1 for the right answer; counts its calls."""

    __name__ = "right"

    def __init__(self):
        self.num_completions, self.num_tokens, self.num_groups, self.num_uniform = 0, 0, 0, 0

    def __call__(self, completions, answer, completion_ids, **_):
        rewards = [float(text == gold) for text, gold in zip(completions, answer)]
        self.num_completions += len(rewards)
        self.num_tokens += sum(map(len, completion_ids))
        for first in range(0, len(rewards), N):
            self.num_groups += 1
            self.num_uniform += len(set(rewards[first : first + N])) == 1
        return rewards


class Checks(TrainerCallback):
    """The learning curve: accuracy after every few updates, and the cost until then."""

    def __init__(self, every, reward, judge):
        self.every, self.reward, self.judge = every, reward, judge
        self.points, self.spent_on_checks = [], 0.0

    def on_train_begin(self, args, state, control, model, **_):
        self.begin = time.process_time()
        self.check(0, model)

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step % self.every == 0:
            self.check(state.global_step, model)

    def check(self, step, model):
        now = time.process_time()
        point = {"step": step, "processor": now - self.begin - self.spent_on_checks, "accuracy": self.judge(model)}
        self.points.append(point | {"completions": self.reward.num_completions, "tokens": self.reward.num_tokens})
        self.spent_on_checks += time.process_time() - now


def run(given, tokenizer, model, task, arm, learning_rate, seed, updates, folder):
    """A line of the results."""
    held_out, sums = make_sums(given.small)
    source = random.Random(2)
    rows = [make_product(source) if source.random() < TASKS[task] else source.choice(sums) for _ in range(4096)]
    reward = Right()
    every = max(1, updates // NUM_CHECKS)
    checks = Checks(every, reward, lambda model: accuracy(model, tokenizer, held_out))
    torch.manual_seed(seed)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [row[0] for row in rows], "answer": [row[1] for row in rows]}),
        processing_class=tokenizer,
        callbacks=[checks],
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            seed=seed,
            gradient_checkpointing=False,
            per_device_train_batch_size=NUM_GROUPS * N,
            num_generations=N,
            max_completion_length=MAX_TOKENS,
            beta=0.0,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            max_steps=updates,
            logging_steps=1 if given.completions else every,
            log_completions=given.completions is not None,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
        ),
    )
    row = {
        "task": task,
        "arm": arm,
        "learning_rate": learning_rate,
        "seed": seed,
        "updates": updates,
        "held_out": len(held_out),
    }
    if arm == "attach":
        import tamis.trl

        tamis.trl.attach(trainer, schedule={"max_num_gen_batches": 20})
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    row |= {"groups": reward.num_groups, "uniform": reward.num_uniform, "points": checks.points}
    row["gradient_norms"] = [logged["grad_norm"] for logged in trainer.state.log_history if "grad_norm" in logged]
    if arm == "attach":
        row["totals"] = {place: number["groups"] for place, number in trainer.sieve.totals.items()}
    return row


def smoothed(points):
    """The points, each with the mean accuracy of the last few checks."""
    for i in range(SMOOTHED - 1, len(points)):
        last = points[i + 1 - SMOOTHED : i + 1]
        yield points[i] | {"accuracy": statistics.mean(point["accuracy"] for point in last)}


def final(row):
    return list(smoothed(row["points"]))[-1]


def first_at(row, level):
    """The first smoothed point at that level, or None."""
    return next((point for point in smoothed(row["points"]) if point["accuracy"] >= level), None)


def best_rate(rows, task, arm):
    """The learning rate at which an arm was best at its end, with the seed that tried them all."""
    own = [row for row in rows if (row["task"], row["arm"]) == (task, arm)]
    first = min(row["seed"] for row in own)
    return max((final(row)["accuracy"], row["learning_rate"]) for row in own if row["seed"] == first)[1]


def table(rows):
    """The tables in studies/trl.md."""
    for task in TASKS:
        own = [row for row in rows if row["task"] == task]
        if own:
            yield from table_of(task, own)


def table_of(task, own):
    plain = [row for row in own if row["arm"] == "plain"]
    uniform = sum(row["uniform"] for row in plain) / sum(row["groups"] for row in plain)
    yield f"{TASKS[task]:.0%} products: {uniform:.0%} of plain TRL's groups are uniform. Seed {plain[0]['seed']}:\n"
    yield "| learning rate | | before | at worst | at the end |"
    yield "|---|---|---|---|---|"
    for row in sorted(own, key=lambda row: (row["learning_rate"], row["arm"] == "attach")):
        if row["seed"] == plain[0]["seed"]:
            before, low = row["points"][0]["accuracy"], min(point["accuracy"] for point in row["points"])
            yield f"| {row['learning_rate']:g} | {row['arm']} | {before:.3f} | {low:.3f} | {at_the_end(row)} |"
    rate = best_rate(own, task, "plain")
    arms = dict.fromkeys([("plain", rate), ("attach", rate), ("attach", best_rate(own, task, "attach"))])
    yield "\n| seed | level | | learning rate | updates | completions | processor s |"
    yield "|---|---|---|---|---|---|---|"
    ratios = {arm: [] for arm in arms if arm[0] == "attach"}
    for seed in sorted({row["seed"] for row in own}):
        rows = {(row["arm"], row["learning_rate"]): row for row in own if row["seed"] == seed}
        if ("plain", rate) not in rows:
            continue
        level = final(rows["plain", rate])["accuracy"]
        found = {arm: first_at(rows[arm], level) for arm in arms if arm in rows}
        for (arm, own_rate), point in found.items():
            yield f"| {seed} | {level:.3f} | {arm} | {own_rate:g} | {took(point)} |"
        for arm in ratios:
            if found.get(arm):
                ratios[arm].append([found[arm][name] / found["plain", rate][name] for name in RATIOS])
    yield ""
    norms = {}
    for row in own:
        if row["learning_rate"] == rate:
            norms.setdefault(row["arm"], []).extend(row["gradient_norms"])
    if len(norms) == 2:
        plain_norm, norm = (statistics.median(norms[arm]) for arm in ("plain", "attach"))
        ratio = f"{norm / plain_norm:.1f} times" if plain_norm else "while most of plain TRL's are 0"
        yield f"median gradient norm before clipping at {rate:g}: plain {plain_norm:.2f}, attach {norm:.2f} ({ratio})"
    for (_, own_rate), rows in ratios.items():
        for title, column in zip(RATIOS.values(), zip(*rows)):
            each = ", ".join(f"{ratio:.2f}" for ratio in column)
            yield f"attach at {own_rate:g} over plain at {rate:g}, {title}: {statistics.median(column):.2f} ({each})"
    yield ""


RATIOS = {"processor": "processor time", "step": "updates", "completions": "completions"}


def took(point):
    return f"{point['step']} | {point['completions']:,} | {point['processor']:.1f}" if point else "not reached | | "


def at_the_end(row):
    last, accuracy = row["points"][-1], final(row)["accuracy"]
    error = (accuracy * (1 - accuracy) / row["held_out"]) ** 0.5
    work = f"{last['step']} updates, {last['completions']:,} completions, {last['processor']:.1f} s"
    return f"{accuracy:.3f} ± {error:.3f} ({work})"


def measure(given, tokenizer):
    """Runs what is not in the results yet."""
    rows = load(given)

    def once(task, arm, rate, seed):
        key = (task, arm, rate, seed)
        if key in {(row["task"], row["arm"], row["learning_rate"], row["seed"]) for row in rows}:
            return
        print(f"{task}, {arm}, learning rate {rate:g}, seed {seed}", file=sys.stderr, flush=True)
        updates = given.updates or UPDATES[task, arm]
        with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
            row = run(given, tokenizer, start(given, tokenizer), task, arm, rate, seed, updates, folder)
        rows.append(row)
        given.results.parent.mkdir(parents=True, exist_ok=True)
        with given.results.open("a") as file:
            file.write(json.dumps(row) + "\n")

    for task in given.tasks:
        for rate in given.rates:
            once(task, "plain", rate, given.seeds[0])
            once(task, "attach", rate, given.seeds[0])
        rate = best_rate(rows, task, "plain")
        for seed in given.seeds:
            once(task, "plain", rate, seed)
            once(task, "attach", rate, seed)
            once(task, "attach", best_rate(rows, task, "attach"), seed)
    return rows


def load(given):
    return [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS))
    parser.add_argument("--rates", type=lambda text: [float(word) for word in text.split(",")], default=LEARNING_RATES)
    parser.add_argument("--updates", type=int, help="of every run, in place of those that the table has")
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    parser.add_argument(
        "--small",
        action="store_true",
        help="4 updates of a smaller model at one learning rate, one seed, sums of one digit",
    )
    parser.add_argument(
        "--completions", type=pathlib.Path, help="folder for the completions of plain TRL; 30 updates, no table"
    )
    parser.add_argument(
        "--results", type=pathlib.Path, help="file of the results; default target/trl_attach/results.jsonl"
    )
    parser.add_argument(
        "--start",
        type=pathlib.Path,
        default=ROOT / "target/trl_attach/start.pt",
        help="file of the model to start from",
    )
    given = parser.parse_args()
    given.results = given.results or ROOT / "target/trl_attach" / ("small.jsonl" if given.small else "results.jsonl")
    if given.small and not given.table:
        given.results.unlink(missing_ok=True)
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    tokenizer = make_tokenizer()
    if given.completions:
        model = start(given, tokenizer)
        run(
            given,
            tokenizer,
            model,
            given.tasks[0],
            "plain",
            3e-5,
            given.seeds[0],
            given.updates or 30,
            given.completions,
        )
        return
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        if given.small:
            given.start = pathlib.Path(folder) / "start.pt"
            given.rates, given.seeds, given.updates = [3e-5], given.seeds[:1], given.updates or 4
        print("\n".join(table(load(given) if given.table else measure(given, tokenizer))))


if __name__ == "__main__":
    main()
