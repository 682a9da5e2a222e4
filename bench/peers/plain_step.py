"""Seconds of a GRPO step as a plain loop of transformers' `generate` and an update, for machines without TRL: prints one
JSON line for bench/smollm2.py, as trl_smollm2.py does, and takes the same arguments."""

import json
import os
import random
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import step_arguments
from spread_reward import compute_score

# Rows of a training pass, whose logits exist at once.
ROWS = 8


def logprobs_of(model, tokens, mask, completion, autocast):
    """Log-probability of each completion's tokens, f32 [n, C]."""
    with autocast:
        logits = model(input_ids=tokens, attention_mask=mask, logits_to_keep=completion.shape[1] + 1).logits[:, :-1]
    return logits.float().log_softmax(-1).gather(-1, completion[..., None])[..., 0]


def main():
    given = step_arguments.parser(__doc__).parse_args()
    torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    folder = given.model or given.folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    rows = [json.loads(line) for line in (given.folder / "train.jsonl").read_text().splitlines()]
    order, steps, lengths, zero_std = random.Random(0), [], [], []
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for _ in range(given.steps):
        begin = time.perf_counter(), time.process_time()
        asked = [[{"role": "user", "content": row["question"]}] for row in order.sample(rows, given.prompts) for _ in range(8)]
        prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True).to(device)
        with torch.no_grad(), autocast:
            tokens = model.generate(
                **prompts, do_sample=True, top_k=0, max_new_tokens=given.tokens, pad_token_id=tokenizer.pad_token_id,
                cache_implementation="static", disable_compile=True,
            )  # fmt: skip
        completion = tokens[:, prompts["input_ids"].shape[1] :]
        is_end = completion == tokenizer.eos_token_id
        is_own = (is_end.cumsum(1) - is_end.long()) == 0
        texts = tokenizer.batch_decode(completion, skip_special_tokens=True)
        rewards = torch.tensor([compute_score(None, text, None) for text in texts], device=device).view(-1, 8)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        mask = torch.cat([prompts["attention_mask"], is_own.long()], 1)
        for part in range(0, len(tokens), ROWS):
            at = slice(part, part + ROWS)
            logprobs = logprobs_of(model, tokens[at], mask[at], completion[at], autocast)
            ratio = (logprobs - logprobs.detach()).exp()
            (-(ratio * advantages[at, None] * is_own[at]).sum() / is_own.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        steps.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        lengths.append(float(is_own.sum(1).float().mean()))
        zero_std.append(float((rewards.std(1) == 0).float().mean()))
    wall, processor = (statistics.median(column) for column in zip(*steps[1:], strict=True))
    row = {"who": "plain loop", "wall": wall, "processor": processor, "length": statistics.mean(lengths[1:])}
    print(json.dumps(row | {"steps": steps, "zero_std": zero_std}))


if __name__ == "__main__":
    sys.exit(main())
