"""GRPO in TRL with the sieve, small enough for a laptop: a model of 21,536 random weights learns to copy two digits.

    python examples/sieve_in_trl.py             # half a minute on one core; needs trl and tamis
    python examples/sieve_in_trl.py --plain     # 60 steps without the sieve, with TRL's completions in runs/copying-trl

At first nearly every group is uniform: all its members are wrong. docs/trl.md shows what tamis prints of both
runs.
"""

import random
import sys

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

import tamis.trl


def make_model():
    characters = ["<pad>", "<eos>", *"0123456789=?"]
    words = Tokenizer(models.WordLevel({text: id for id, text in enumerate(characters)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="?")
    shape = LlamaConfig(
        vocab_size=len(characters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return LlamaForCausalLM(shape), tokenizer


def make_data():
    draw = random.Random(1)
    texts = ["".join(draw.choice("0123456789") for _ in range(2)) for _ in range(256)]
    return Dataset.from_dict({"prompt": [f"{text}=" for text in texts], "answer": texts})


def correct(completions, answer, **columns):
    """The digits of the prompt in their order."""
    return [float(text == right) for text, right in zip(completions, answer)]


def make_trainer(is_plain=False):
    torch.set_num_threads(1)
    set_seed(1)
    model, tokenizer = make_model()
    return GRPOTrainer(
        model=model,
        reward_funcs=correct,
        args=GRPOConfig(
            "runs/copying-trl",
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=2,
            max_steps=60 if is_plain else 100,
            learning_rate=3e-3,
            logging_steps=1,
            log_completions=is_plain,
            num_completions_to_print=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=make_data(),
        processing_class=tokenizer,
    )


def main():
    if "--plain" in sys.argv[1:]:
        make_trainer(is_plain=True).train()
        return
    trainer = make_trainer()
    # At first 0.4 % of the answers are right: the first batch of 8 groups takes 272 prompts.
    tamis.trl.attach(trainer, schedule={"max_num_gen_batches": 60}, record="runs/copying")
    trainer.train()
    print(trainer.sieve.report["text"])


if __name__ == "__main__":
    main()
