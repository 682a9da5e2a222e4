"""The reward: parameters are the completion and columns of the row, by their names."""

import re


def reward(completion, answer):
    numbers = re.findall(r"-?\d+", completion)
    return 1.0 if numbers and numbers[-1] == str(answer) else 0.0
