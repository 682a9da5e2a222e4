#!/usr/bin/env bash
# TRL 1.16.0 (PyPI) with transformers 5.23.0 and torch 2.15.0: the files that `log_completions=True` writes.
# Fetches torch, too (2 GB).
#
# Expected: completions_00003.parquet has the completions that step 3 trained on, once, and an evaluation after step 4 has
# a file of its own or a column that tells its rows from the others.
# Seen: with `steps_per_generation` above the accumulation every step of a generation batch writes the whole batch again
# under its own number, so four files of one batch hold its rows four times, and no column says so. An evaluation writes
# to the file of its step, in whose place its rows stand alone: the training rows of that step are gone.
# What helps: drop files whose prompts, completions and rewards repeat those before, and files of steps that `log_history`
# in trainer_state.json has an evaluation of. (`tamis advise` and its neighbours do; `tamis.trl.attach(trainer, record=...)`
# writes each completion once, with its group.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    trl==1.16.0 transformers==5.23.0 torch==2.15.0 accelerate==1.15.0 datasets==5.2.0
cd "$folder"
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2>/dev/null <<'PYTHON'
import contextlib
import os

import pandas
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = ["<pad>", "<eos>", "<unk>", *"0123456789+="]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
tokenizer.decoder = decoders.Fuse()
torch.manual_seed(0)
shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
trainer = GRPOTrainer(
    model=LlamaForCausalLM(LlamaConfig(vocab_size=len(words), pad_token_id=0, eos_token_id=1, bos_token_id=1, **shape)),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"),
    reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
    train_dataset=Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(10)]}),
    eval_dataset=Dataset.from_dict({"prompt": [f"{i}+0=" for i in range(4)]}),
    args=GRPOConfig(
        "out", per_device_train_batch_size=4, per_device_eval_batch_size=4, num_generations=4, steps_per_generation=4,
        gradient_accumulation_steps=1, max_completion_length=6, max_steps=8, logging_steps=1, log_completions=True,
        eval_strategy="steps", eval_steps=8, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    ),
)
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    trainer.train()
files = [pandas.read_parquet(f"out/completions/completions_{step:05d}.parquet") for step in range(1, 9)]
rows = [list(zip(file["prompt"], file["completion"])) for file in files]
print("rows of the files of steps 1 to 7:", [len(file) for file in files[:7]])
print("files 1 to 4 have the same rows:", all(each == rows[0] for each in rows[:4]))
print("files 5 to 7 have the same rows:", all(each == rows[4] for each in rows[4:7]))
evaluated = {f"{i}+0=" for i in range(4)}
print("file 8 has rows of the evaluation alone:", set(files[7]["prompt"]) <= evaluated)
print("columns:", list(files[7].columns))
assert all(each == rows[0] for each in rows[:4]) and len(rows[0]) == 16
assert set(files[7]["prompt"]) <= evaluated
PYTHON
# Output on 2026-11-29, Python 3.11.7:
#   rows of the files of steps 1 to 7: [16, 16, 16, 16, 16, 16, 16]
#   files 1 to 4 have the same rows: True
#   files 5 to 7 have the same rows: True
#   file 8 has rows of the evaluation alone: True
#   columns: ['step', 'prompt', 'completion', '<lambda>', 'advantage']
