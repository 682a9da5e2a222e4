"""Seconds of the clipped policy loss with its gradient and metrics in PyTorch, padded as verl and TRL do it, on trajectories like those of
`loss_speed`: lognormal lengths, mean about 1,000 tokens, cap 8,192.

Prints JSON lines {"what": "policy_loss", "form": "verl" | "trl", "tokens": unmasked, "padded": ..., "seconds": median, "seconds_min": ...}.

Both are written from a description of what the systems compute. `verl`: log-ratio clamped to +-20, two clipped branches, dual clip 3, token
mean, and the metrics clip share, dual clip share and KL of the batch. `trl`: ratio and its clamp, the smaller of both branches, token mean, and the
metrics clip share low, high and region. Autograd goes to the log-probabilities.
"""

import argparse
import json

import numpy as np
import torch

from quiet import measure, summary


def batch(trajectories):
    draw = np.random.default_rng(3)
    lengths = np.clip(np.exp(6.55 + 0.85 * draw.standard_normal(trajectories)), 1, 8192).astype(int)
    longest = int(lengths.max())
    mask = torch.from_numpy((np.arange(longest)[None, :] < lengths[:, None]).astype(np.float32))
    logprob = -2.0 * torch.rand(trajectories, longest) * mask
    old = logprob + 0.4 * (torch.rand(trajectories, longest) - 0.5) * mask
    advantage = torch.randn(trajectories, 1).expand(-1, longest) * mask
    return logprob.requires_grad_(), old, advantage, mask


def mean(values, mask):
    return (values * mask).sum() / (mask.sum() + 1e-8)


def verl(logprob, old, advantage, mask):
    difference = torch.clamp(logprob - old, min=-20.0, max=20.0)
    ratio = torch.exp(difference)
    kl = mean(-difference, mask)
    plain = -advantage * ratio
    clipped = -advantage * torch.clamp(ratio, 0.8, 1.28)
    upper = torch.maximum(plain, clipped)
    share = mean((clipped > plain).float(), mask)
    bound = -advantage * 3.0
    lower = torch.minimum(bound, upper)
    dual_share = mean(((upper > bound) & (advantage < 0)).float(), mask)
    loss = mean(torch.where(advantage < 0, lower, upper), mask)
    loss.backward()
    return loss.item(), share.item(), dual_share.item(), kl.item()


def trl(logprob, old, advantage, mask):
    ratio = torch.exp(logprob - old)
    clipped = torch.clamp(ratio, 0.8, 1.28)
    loss_t = -torch.min(ratio * advantage, clipped * advantage)
    loss = (loss_t * mask).sum() / mask.sum().clamp(min=1.0)
    loss.backward()
    low = (ratio < 0.8) & (advantage < 0)
    high = (ratio > 1.28) & (advantage > 0)
    shares = [((kind.float() * mask).sum() / mask.sum()).item() for kind in (low, high, low | high)]
    return loss.item(), *shares


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trajectories", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(3)
    columns = batch(arguments.trajectories)
    for form, loss in (("verl", verl), ("trl", trl)):

        def run(loss=loss):
            columns[0].grad = None
            return loss(*columns)

        timing = summary(*measure(run, arguments.repetitions, limit=30.0))
        line = {"what": "policy_loss", "form": form, "tokens": int(columns[3].sum()), "padded": columns[3].numel(), **timing}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
