"""Greedy answers of a chat model to a file of questions with transformers' `generate`: one JSON line for bench/smollm2.py."""

import argparse
import json
import os
import pathlib
import re
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("questions", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, at most")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_num_interop_threads(1)
    rows = [json.loads(line) for line in given.questions.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(given.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    chats = [[{"role": "user", "content": row["question"]}] for row in rows]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    begin = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        inputs = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        output = model.generate(**inputs, do_sample=False, max_new_tokens=given.tokens)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    # As `gsm8k` with `method: flexible` and as in verl: the last number counts, and `22.` is not `22`.
    found = [[number for number in re.findall(r"-?[0-9.,]+", answer) if number != "."] for answer in answers]
    right = sum(bool(numbers) and numbers[-1] == row["answer"] for numbers, row in zip(found, rows))
    wall, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
    print(json.dumps({"wall": wall, "processor": processor, "accuracy": right / len(rows)}))


if __name__ == "__main__":
    main()
