"""Seconds of a GRPO step of TRL's `GRPOTrainer` on SmolLM2-135M-Instruct: prints one JSON line for bench/smollm2.py."""

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

import step_arguments
from spread_reward import compute_score


def last_number(completions, answer, **_):
    """1 if the last number of the completion is the answer, as `gsm8k` with `method: flexible`."""
    texts = [completion[0]["content"] for completion in completions]
    found = [re.findall(r"-?\d+", text) for text in texts]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(found, answer)]


def spread(completions, **_):
    """As tamis's reward of `--differ`."""
    return [compute_score(None, completion[0]["content"], None) for completion in completions]


class Clock(TrainerCallback):
    """Notes the times of each step and the mean lengths so far (TRL forgets them when it logs), and keeps models."""

    def __init__(self, folder, every):
        self.steps, self.lengths, self.zero_std, self.metrics = [], [], [], None
        self.folder, self.every = folder, every

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, model, processing_class, **kwargs):
        self.steps.append((time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]))
        self.lengths = list(self.metrics["completions/mean_length"])
        self.zero_std = list(self.metrics["frac_reward_zero_std"])
        if self.folder and state.global_step % self.every == 0:
            folder = self.folder / f"step_{state.global_step}"
            model.save_pretrained(folder)
            processing_class.save_pretrained(folder)


def main():
    parser = step_arguments.parser(__doc__)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for models, step_N each")
    parser.add_argument("--keep-every", type=int, default=8, metavar="STEPS")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_num_interop_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bar()
    rows = [json.loads(line) for line in (given.folder / "train.jsonl").read_text().splitlines()]
    prompts = [[{"role": "user", "content": row["question"]}] for row in rows]
    # Whole groups, as many of a step as fit into 64 rows.
    rows_at_once = 8 * max(size for size in range(1, 9) if given.prompts % size == 0)
    clock = Clock(given.keep, given.keep_every)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(given.model or given.folder / "model", dtype=torch.float32),
            reward_funcs=spread if given.differ else last_number,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": [row["answer"] for row in rows]}),
            processing_class=AutoTokenizer.from_pretrained(given.model or given.folder / "model", padding_side="left"),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=given.device == "cpu",
                bf16=given.device == "cuda",
                gradient_checkpointing=False,
                per_device_train_batch_size=rows_at_once,
                gradient_accumulation_steps=8 * given.prompts // rows_at_once,
                num_generations=8,
                max_completion_length=given.tokens,
                beta=0.0,
                epsilon_high=0.28 if given.dapo else None,
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
    wall, processor = (statistics.median(column) for column in zip(*clock.steps[1:]))
    length = statistics.mean(clock.lengths[1:])
    row = {"who": "TRL", "wall": wall, "processor": processor, "length": length}
    print(json.dumps(row | {"steps": clock.steps, "zero_std": clock.zero_std}))


if __name__ == "__main__":
    main()
