"""Supervised fine-tuning in PyTorch: the loss and its gradient are those of TRL's SFTTrainer on the same tokens."""

import gzip
import json

# First: without PyTorch it reports that and skips the tests.
from support import GOLDEN, Case, call, columns, golden_folder, opened

import torch


def cases():
    with gzip.open(GOLDEN / "trl_sft.json.gz", "rt") as file:
        return json.load(file)["cases"]


def split(ids, labels):
    """Prompt, completion and mask: the completion begins with the first token that has a loss."""
    learned = [place for place, label in enumerate(labels) if label != -100 and place > 0]
    first, last = learned[0], learned[-1]
    return ids[:first], ids[first : last + 1], [label != -100 for label in labels[first : last + 1]]


class Sft(Case):
    def test_loss_and_gradient_are_those_of_trl(self):
        for case in cases():
            outputs = case["outputs"]
            rows = [split(ids, labels) for ids, labels in zip(outputs["input_ids"], outputs["labels"])]
            mask = torch.tensor([learned for _, _, masks in rows for learned in masks], dtype=torch.float32)
            num_tokens = outputs["num_items"]
            self.assertEqual(int(mask.sum()), num_tokens, case["name"])
            # Packed into one wave, and row by row.
            for waves in ([range(len(rows))], [[row] for row in range(len(rows))]):
                learner = opened(golden_folder("sft"))
                total = 0.0
                for wave in waves:
                    own = [rows[row] for row in wave]
                    packed = columns([prompt for prompt, _, _ in own], [(place, completion) for place, (_, completion, _) in enumerate(own)])
                    masked = torch.tensor([learned for _, _, masks in own for learned in masks], dtype=torch.float32)
                    found = call(learner, "forward_hold", {"network": "policy"}, packed)[1]["logprob"]
                    total -= float((found.double() * masked).sum())
                    call(learner, "backward", {}, {"logprob": -masked / num_tokens})
                norm = call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item()
                self.assertAlmostEqual(total / num_tokens / outputs["loss"], 1, delta=1e-5, msg=case["name"])
                self.assertAlmostEqual(norm / outputs["grad_norm"], 1, delta=1e-5, msg=case["name"])
