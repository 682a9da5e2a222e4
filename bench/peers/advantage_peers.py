"""Seconds of group-relative advantages and of group statistics with the variance filter, on the rewards of `advantage_speed`.

Prints JSON lines {"what": "advantage" | "statistics", "form": "numpy" | "verl", "trajectories": ..., "seconds": median, "seconds_min": ...}.

- `numpy`: groups side by side, one reshape, vectorised.
- `verl`: its loops in Python over trajectories, written from a description of them: scores are collected in a dictionary of lists by the
  prompt's unique id, mean and deviation of each list are PyTorch tensors, and each trajectory looks its own up. Measured on 1,048,576
  trajectories only.
"""

import argparse
import json
from collections import defaultdict

import numpy as np
import torch

from quiet import measure, summary

SIZE = 16


def rewards(groups):
    state, bits = 1, (1 << 64) - 1
    right = np.empty(groups, dtype=int)
    for group in range(groups):
        state = (state * 6364136223846793005 + 1442695040888963407) & bits
        right[group] = [0, SIZE, *[1 + (state >> 33) % (SIZE - 1)] * 2][group % 4]
    return (np.arange(SIZE)[None, :] * 7 % SIZE < right[:, None]).astype(float)


def numpy_advantage(rows):
    deviation = rows.std(1, ddof=1, keepdims=True)
    return (rows - rows.mean(1, keepdims=True)) / (deviation + 1e-6)


def numpy_statistics(rows):
    """What the filter's statistics hold: mean, deviation, extremes, and which groups stay."""
    low, high = rows.min(1), rows.max(1)
    return rows.mean(1), rows.std(1), low, high, (high > low).nonzero()[0]


def verl_advantage(scores, ids):
    lists, means, deviations = defaultdict(list), {}, {}
    for i in range(len(scores)):
        lists[ids[i]].append(scores[i])
    for uid, values in lists.items():
        values = torch.stack(values)
        means[uid], deviations[uid] = torch.mean(values), torch.std(values)
    for i in range(len(scores)):
        scores[i] = (scores[i] - means[ids[i]]) / (deviations[ids[i]] + 1e-6)
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    def report(what, form, trajectories, run, repetitions):
        timing = summary(*measure(run, repetitions, warm_up=1 if repetitions > 1 else 0, limit=30.0))
        print(json.dumps({"what": what, "form": form, "trajectories": trajectories, **timing}), flush=True)

    for groups in (65_536, 655_360):
        rows = rewards(groups)
        report("advantage", "numpy", rows.size, lambda rows=rows: numpy_advantage(rows), arguments.repetitions)
        report("statistics", "numpy", rows.size, lambda rows=rows: numpy_statistics(rows), arguments.repetitions)
    rows = rewards(65_536)
    ids = np.repeat(np.array([f"group-{group}" for group in range(len(rows))], dtype=object), SIZE)
    report("advantage", "verl", rows.size, lambda: verl_advantage(torch.from_numpy(rows.reshape(-1).copy()), ids), 1)


if __name__ == "__main__":
    main()
