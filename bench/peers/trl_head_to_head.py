"""An arm of bench/head_to_head.py in TRL: `GRPOTrainer` on SmolLM2-135M-Instruct, with or without `tamis.trl.attach`.

Trains until enough of the held-out prompts are answered right or the cap is reached, and prints one JSON line for each
check. Checks are made by `tamis eval` on the saved model; neither it nor the saving counts.
"""

import argparse
import json
import logging
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer


def processor_seconds():
    """User and system time of this process: it has no children but the judge, who does not count."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class LastNumber:
    """1 if the last number is the answer, as tamis's `gsm8k` with `method: flexible`; counts tokens."""

    __name__ = "last_number"

    def __init__(self):
        self.num_tokens, self.num_completions = 0, 0

    def __call__(self, completions, answer, completion_ids, **_):
        self.num_tokens += sum(len(ids) for ids in completion_ids)
        self.num_completions += len(completions)
        return [float(self.extract(completion[0]["content"]) == gold) for completion, gold in zip(completions, answer)]

    @staticmethod
    def extract(text):
        numbers = re.findall(r"-?[0-9.,]+", text[-300:])
        return next((number for number in reversed(numbers[1:]) if number != "."), *numbers[:1]) if numbers else None


class Checks(TrainerCallback):
    """Judges the model every few steps, prints its accuracy, and ends the training once it is good enough."""

    def __init__(self, given, reward):
        self.given, self.reward = given, reward
        self.spent_on_checks = 0.0

    def on_step_end(self, args, state, control, model, processing_class, **_):
        if state.global_step % self.given.every:
            return
        processor = processor_seconds()
        with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
            model.save_pretrained(folder)
            processing_class.save_pretrained(folder)
            printed = subprocess.run(
                [*self.given.judge[:2], folder, *self.given.judge[2:]], check=True, capture_output=True, text=True
            ).stdout
        metrics = json.loads(printed)["metrics"]
        accuracy = next(value for name, value in metrics.items() if name.startswith("val-core/"))
        row = {
            "step": state.global_step,
            "processor": processor - self.spent_on_checks,
            "tokens": self.reward.num_tokens,
        }
        print(json.dumps(row | {"completions": self.reward.num_completions, "accuracy": accuracy}), flush=True)
        self.spent_on_checks += processor_seconds() - processor
        control.should_training_stop = accuracy >= self.given.target


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="of scripts/smollm2")
    parser.add_argument("settings", type=json.loads, help="what all arms share")
    parser.add_argument("--judge", type=json.loads, help="the command that judges a model, without its folder")
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=0.45)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16, help="at most")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    shared = given.settings
    torch.set_num_threads(given.threads)
    torch.set_num_interop_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    rows = [json.loads(line) for line in (given.folder / "train.jsonl").read_text().splitlines()]
    prompts = [[{"role": "user", "content": row["question"]}] for row in rows]
    reward = LastNumber()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(given.folder / "model", dtype=torch.float32),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": [row["answer"] for row in rows]}),
            processing_class=AutoTokenizer.from_pretrained(given.folder / "model", padding_side="left"),
            callbacks=[Checks(given, reward)],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                seed=given.seed,
                gradient_checkpointing=False,
                per_device_train_batch_size=shared["groups"] * shared["n"] // 2,
                gradient_accumulation_steps=2,
                num_generations=shared["n"],
                max_completion_length=shared["tokens"],
                temperature=1.0,
                beta=0.0,
                loss_type="dapo",
                scale_rewards="group",
                optim="adamw_torch_fused",
                adam_beta1=shared["betas"][0],
                adam_beta2=shared["betas"][1],
                adam_epsilon=shared["epsilon"],
                weight_decay=shared["weight_decay"],
                max_grad_norm=shared["max_grad_norm"],
                learning_rate=shared["learning_rate"],
                lr_scheduler_type="constant",
                max_steps=given.steps,
                logging_steps=10 * given.steps,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_num_workers=0,
                dataloader_pin_memory=False,
            ),
        )
        if given.attach:
            import tamis.trl

            tamis.trl.attach(trainer, schedule={"max_num_gen_batches": shared["max_num_gen_batches"]})
        trainer.train()


if __name__ == "__main__":
    main()
