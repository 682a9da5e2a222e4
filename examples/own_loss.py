"""A loss and an advantage of your own, with NumPy. They compute what tamis's `clip` (without a dual clip) and `dr_grpo` compute.

    tamis train configs/quickstart.yaml 'objective.loss={kind: python, path: examples/own_loss.py}'
    tamis train configs/quickstart.yaml 'objective.advantage={kind: python, path: examples/own_loss.py}'

docs/objectives.md, "A loss of your own in Python", lists the columns.
"""

import numpy as np


def loss(columns, low=0.2, high=0.2):
    """The clipped ratio: the loss of each token, and its derivative by the token's log-probability."""
    ratio = np.exp(np.clip(columns.logprobs - columns.old_logprobs, -20, 20))
    free = -columns.advantages * ratio
    held = -columns.advantages * np.clip(ratio, 1 - low, 1 + high)
    is_held = held > free
    return np.where(is_held, held, free), np.where(is_held, 0.0, free)


def advantage(columns):
    """The reward less the mean of its group: one number for each trajectory."""
    means = np.bincount(columns.groups, weights=columns.rewards) / np.bincount(columns.groups)
    return columns.rewards - means[columns.groups]
