"""Seconds of one whole GRPO step of TRL's `GRPOTrainer` on the CPU: 32 prompts x 8 completions of 32 tokens, the small model.

Prints one JSON line: {"what": "grpo_step", "model": "small", "form": "trl", "seconds": median, "seconds_min": ..., "repetitions": ...,
"disturbed": how many of those steps other processes disturbed}.
A step is what lies between two `on_step_end`: prompts drawn, completions generated, reward called, advantages, one optimizer step.

Settings are TRL's quickest for this shape: float32 (its bf16 default is slow on a CPU), no gradient checkpointing, no reference
model (beta 0), one optimizer step for each generation batch, so old log-probabilities are not recomputed, one micro-batch (unless
`--micro-batch` says otherwise), no vLLM, nothing logged or saved. Prompts have 16 to 32 characters; every completion has
exactly 32 tokens, since `min_new_tokens` keeps the end token out. The tokenizer, one token per character, is made here; nothing is downloaded.
"""

import argparse
import json
import logging
import os
import random
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from quiet import Laps, Watch, summary

PROMPTS, COPIES, NEW, VOCAB = 32, 8, 32, 64


def character_tokenizer():
    """64 tokens: padding, end, and 62 characters."""
    letters = "0123456789+-*/=()abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS"
    vocab = {"<pad>": 0, "<end>": 1} | {c: i + 2 for i, c in enumerate(letters)}
    assert len(vocab) == VOCAB
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def small_model():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=384,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            bos_token_id=None,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def prompts(count):
    """Character strings of 16 to 32 characters."""
    draw = random.Random(0)
    return ["".join(draw.choice("0123456789+-") for _ in range(draw.randint(16, 31))) + "=" for _ in range(count)]


def share_of_even_digits(completions, **_):
    """A reward that costs nothing and separates completions."""
    return [sum(c in "02468" for c in text) / NEW for text in completions]


class Clock(TrainerCallback):
    """Times the steps after the warm-up and stops the run once enough of them were undisturbed."""

    def __init__(self, warm_up, laps):
        self.warm_up, self.laps, self.watch = warm_up, laps, Watch()

    def on_step_end(self, args, state, control, **kwargs):
        lap = self.watch.lap()
        if state.global_step > self.warm_up:
            self.laps.add(*lap)
        if self.laps.done():
            control.should_training_stop = True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7, help="measured steps")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds to wait for undisturbed steps")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=PROMPTS * COPIES, help="completions per backward pass")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    logging.disable(logging.WARNING)

    steps = arguments.warm_up + 40 * arguments.steps
    accumulation = PROMPTS * COPIES // arguments.micro_batch
    laps = Laps(arguments.steps, limit=arguments.limit)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=small_model(),
            reward_funcs=share_of_even_digits,
            train_dataset=Dataset.from_dict({"prompt": prompts(8 * PROMPTS)}),
            processing_class=character_tokenizer(),
            callbacks=[Clock(arguments.warm_up, laps)],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=arguments.micro_batch,
                gradient_accumulation_steps=accumulation,
                steps_per_generation=accumulation,
                num_generations=COPIES,
                num_iterations=1,
                max_completion_length=NEW,
                generation_kwargs={"min_new_tokens": NEW},
                temperature=1.0,
                beta=0.0,
                optim="adamw_torch_fused",
                learning_rate=1e-4,
                lr_scheduler_type="constant",
                max_steps=steps,
                logging_steps=10 * steps,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_num_workers=0,
                dataloader_pin_memory=False,
            ),
        )
        # The means over the run that TRL keeps in any case: whether completions had the length of the case.
        metrics = trainer._metrics["train"]
        trainer.train()
        lengths = metrics["completions/mean_length"]
        if any(length != NEW for length in lengths):
            raise SystemExit(f"completions of {sorted(set(lengths))} tokens instead of {NEW}: not the case to be measured")

    line = {
        "what": "grpo_step",
        "model": "small",
        "form": "trl" if accumulation == 1 else f"trl/micro{arguments.micro_batch}",
        "completions": PROMPTS * COPIES,
        **summary(*laps.result()),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
