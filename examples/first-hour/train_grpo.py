"""A GRPO script as people of TRL write it: three rewards, one of them async, one over the script's own state.

    python train_grpo.py            starts TRL
    tamis train train_grpo.py       starts a run of tamis
"""

import asyncio
import collections
import os
import re

from trl import GRPOConfig, GRPOTrainer

ANSWER = re.compile(r"-?\d+")


def sums(largest):
    """Sums of two numbers, as a data set if the library is installed."""
    rows = [{"prompt": f"{a}+{b}=", "solution": str(a + b)} for a in range(largest) for b in range(largest)]
    try:
        from datasets import Dataset
    except ImportError:
        return rows
    return Dataset.from_list(rows)


def correct(completions, solution, **kwargs):
    found = [ANSWER.findall(text) for text in completions]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(found, solution)]


async def brief(completions, completion_ids, **kwargs):
    """A judge over the network would wait like this."""
    await asyncio.sleep(0)
    return [1.0 / len(ids) for ids in completion_ids]


def make_novelty():
    counts = collections.Counter()

    def novelty(completions, **kwargs):
        counts.update(completions)
        return [1.0 / counts[text] for text in completions]

    return novelty


def main():
    args = GRPOConfig(
        output_dir=os.environ.get("OUTPUT_DIR", "runs/first-grpo"),
        num_generations=8,
        per_device_train_batch_size=16,
        max_completion_length=int(os.environ.get("MAX_RESPONSE", "64")),
        max_steps=int(os.environ.get("MAX_STEPS", "20")),
        learning_rate=1e-6,
        reward_weights=[1.0, 0.1, 0.1],
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        reward_funcs=[correct, brief, make_novelty()],
        args=args,
        train_dataset=sums(10),
        eval_dataset=sums(4),
    )
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
