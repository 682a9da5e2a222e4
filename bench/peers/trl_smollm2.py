"""Seconds of a GRPO step of TRL's `GRPOTrainer` on SmolLM2-135M-Instruct: prints one JSON line for bench/smollm2.py."""

import argparse
import json
import logging
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "cuda" not in sys.argv:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer


def last_number(completions, answer, **_):
    """1 where the last number of the completion is the answer, as `gsm8k` with `method: flexible`."""
    texts = [completion[0]["content"] for completion in completions]
    found = [re.findall(r"-?\d+", text) for text in texts]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(found, answer)]


class Clock(TrainerCallback):
    """Notes the time at the end of each step, and the mean lengths so far (TRL forgets them when it logs)."""

    def __init__(self):
        self.marks, self.lengths, self.metrics = [], [], None

    def on_step_end(self, args, state, control, **kwargs):
        self.marks.append((time.perf_counter(), time.process_time()))
        self.lengths = list(self.metrics["completions/mean_length"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_num_interop_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    rows = [json.loads(line) for line in (given.folder / "train.jsonl").read_text().splitlines()]
    prompts = [[{"role": "user", "content": row["question"]}] for row in rows]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(given.model or given.folder / "model", dtype=torch.float32),
            reward_funcs=last_number,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": [row["answer"] for row in rows]}),
            processing_class=AutoTokenizer.from_pretrained(given.model or given.folder / "model", padding_side="left"),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=given.device == "cpu",
                bf16=given.device == "cuda",
                gradient_checkpointing=False,
                per_device_train_batch_size=64,
                gradient_accumulation_steps=1,
                num_generations=8,
                max_completion_length=24,
                beta=0.0,
                optim="adamw_torch_fused",
                learning_rate=1e-5,
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
        clock.metrics = trainer._metrics["train"]
        trainer.train()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(clock.marks, clock.marks[1:])]
    wall, processor = (statistics.median(column) for column in zip(*steps))
    length = statistics.mean(clock.lengths[1:])
    print(json.dumps({"who": "TRL", "wall": wall, "processor": processor, "length": length}))


if __name__ == "__main__":
    main()
