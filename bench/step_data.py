#!/usr/bin/env python3
"""Writes bench/step.jsonl, the prompts of configs/bench_step.yaml: 256 of 16 to 32 characters, drawn as peers/trl_step.py draws them.

The answers, 44 characters, are for the warm start: from them a policy quickly learns not to end a completion before its 32nd token,
so that every one is cut at that limit, as TRL's are by `min_new_tokens`. Each of the first 31 characters is one of two that occur
at no other place, then come those of the 31st again: what follows depends only on the last character, and the end only follows the last two.
"""

import json
import pathlib
import random

LETTERS = "0123456789+-*/=()abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS"
PROMPTS, ANSWER = 256, 44


def main():
    draw = random.Random(0)
    half = len(LETTERS) // 2
    prompts = ["".join(draw.choice("0123456789+-") for _ in range(draw.randint(16, 31))) + "=" for _ in range(PROMPTS)]
    answers = [
        "".join(LETTERS[min(place, half - 1) + draw.choice((0, half))] for place in range(ANSWER)) for _ in range(PROMPTS)
    ]
    rows = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in zip(prompts, answers)]
    pathlib.Path(__file__).with_name("step.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
