"""A loss of your own in PyTorch, which differentiates it: the clipped ratio, as in own_loss.py.

    tamis train configs/quickstart.yaml 'objective.loss={kind: python, path: examples/own_loss_torch.py}'
"""

import torch


def loss(columns, low=0.2, high=0.2):
    """The clipped ratio: the loss of each token, made of `columns.logprobs`."""
    ratio = torch.exp(torch.clamp(columns.logprobs - columns.old_logprobs, -20, 20))
    return torch.maximum(-columns.advantages * ratio, -columns.advantages * torch.clamp(ratio, 1 - low, 1 + high))
