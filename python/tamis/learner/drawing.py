"""Drawing a token from logits: repetition penalty, temperature, top-k, top-p, min-p, and an inverse of the cumulative
distribution at a keyed number.

    z = logits          logprob = log_softmax(z / temperature)[y]          entropy of softmax(z / temperature)

Both are of the whole distribution; y is drawn from what penalty and truncation leave of it. The definitions, ties
included, are those of the native engine.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .protocol import RequestError

# Weights in a block: sums of blocks are searched first, then the weights of one block.
_BLOCK = 64


@dataclass(frozen=True)
class Drawing:
    """How a sample's tokens are drawn and when it ends, as the page defines it."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    max_tokens: int
    end_tokens: frozenset

    @classmethod
    def read(cls, settings):
        """From one object of the list `drawing`."""
        temperature = settings.number("temperature", least=0.0)
        top_k = settings.count("top_k", least=0)
        top_p = settings.number("top_p", above=0.0)
        min_p = settings.number("min_p", least=0.0)
        penalty = settings.number("repetition_penalty", above=0.0)
        max_tokens = settings.count("max_tokens", least=1)
        end_tokens = settings.counts("end_tokens")
        settings.finish()
        if top_p > 1.0 or min_p > 1.0:
            raise RequestError("`top_p` and `min_p` are at most 1")
        if temperature != 0.0 and not 1e-6 <= temperature <= 1e6:
            raise RequestError("`temperature` is 0, or from 1e-6 to 1e6")
        return cls(temperature, top_k, top_p, min_p, penalty, max_tokens, frozenset(end_tokens))


class Drawings:
    """The drawings of some rows, as columns [n] on a device; `None` if no row needs it."""

    def __init__(self, rows, device):
        def column(values):
            return torch.tensor(values, dtype=torch.float32).to(device)

        self.factor = column([1.0 / (row.temperature or 1.0) for row in rows])[:, None]
        greedy = [row.temperature == 0.0 for row in rows]
        self.is_greedy = torch.tensor(greedy).to(device) if any(greedy) else None
        self.all_greedy = all(greedy)
        penalties = [row.repetition_penalty for row in rows]
        self.penalty = column(penalties)[:, None] if any(one != 1.0 for one in penalties) else None
        # Of all of the rows, so that parts and the fixed columns of a step have one shape.
        self.most_k = max((row.top_k for row in rows), default=0)
        self.top_k = torch.tensor([row.top_k for row in rows]).to(device)[:, None] if self.most_k else None
        self.top_p = column([row.top_p for row in rows]) if any(row.top_p < 1.0 for row in rows) else None
        self.min_p = column([row.min_p for row in rows])[:, None] if any(row.min_p for row in rows) else None

    def part(self, begin, end):
        """Those of some of the rows."""
        part = object.__new__(Drawings)
        for name, value in vars(self).items():
            setattr(part, name, value[begin:end] if isinstance(value, torch.Tensor) else value)
        return part

    @property
    def kind(self):
        """What a draw computes: rows of one kind can take each other's columns."""
        held = {name: isinstance(value, torch.Tensor) or value for name, value in vars(self).items()}
        return tuple(sorted(held.items(), key=lambda item: item[0]))

    def copy_(self, other):
        """Takes over the columns of other rows of the same kind, in place."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                value.copy_(getattr(other, name))


def draw(logits, drawings, uniforms, seen=None):
    """Token i64, log-probability and entropy f32 of each row, [n] each.

    logits: f32 [n, V]; uniforms: f64 [n] in [0, 1); seen: bool [n, V], the tokens of prompt and completion, if a row
    has a penalty.
    """
    z = logits * drawings.factor
    z -= z.amax(1, keepdim=True)
    weights = z.exp()
    total = weights.sum(1)
    log_sum = total.log()
    entropy = log_sum - (weights * z).sum(1) / total
    effective = logits
    if drawings.penalty is not None:
        penalised = torch.where(logits > 0, logits / drawings.penalty, logits * drawings.penalty)
        effective = torch.where(seen, penalised, logits)
        altered = effective * drawings.factor
        weights = (altered - altered.amax(1, keepdim=True)).exp()
    if drawings.all_greedy:
        tokens = effective.argmax(1)
    else:
        tokens = _inverse(_cut(weights, drawings), uniforms)
        if drawings.is_greedy is not None:
            tokens = torch.where(drawings.is_greedy, effective.argmax(1), tokens)
    logprob = z.gather(1, tokens[:, None])[:, 0] - log_sum
    return tokens, logprob, entropy


def _cut(weights, drawings):
    """Weights, f32 [n, V], with zeros outside top-k, then top-p of the rest, then min-p."""
    if drawings.top_k is None and drawings.top_p is None and drawings.min_p is None:
        return weights
    least = torch.zeros_like(weights[:, :1])
    if drawings.min_p is not None:
        least = drawings.min_p * weights.amax(1, keepdim=True)
    if drawings.top_k is not None:
        num_tokens = weights.shape[1]
        # A row without this truncation, or with one that is as wide as the vocabulary, keeps all.
        is_cut = (drawings.top_k > 0) & (drawings.top_k < num_tokens)
        likeliest = weights.topk(min(drawings.most_k, num_tokens), 1).values
        of_k = likeliest.gather(1, (drawings.top_k - 1).clamp(0, likeliest.shape[1] - 1))
        of_k = torch.where(is_cut, of_k, 0.0)
        # All that equal the last of them stay.
        weights = torch.where(weights >= of_k, weights, 0.0)
        least = torch.maximum(least, of_k)
    if drawings.top_p is not None:
        # Equal ones by their ids.
        ordered, tokens = weights.sort(dim=1, descending=True, stable=True)
        sums = ordered.double().cumsum(1)
        wanted = drawings.top_p[:, None].double() * sums[:, -1:]
        # Up to the one that reaches it; rounding must not cut if everything stays.
        is_over = (F.pad(sums[:, :-1], (1, 0)) >= wanted) & (drawings.top_p[:, None] < 1.0)
        weights = weights.scatter(1, tokens, ordered.masked_fill(is_over, 0.0))
    return torch.where(weights >= least, weights, 0.0)


def _inverse(weights, uniforms):
    """The first token, in order of ids, at which the running sum of weights exceeds its part of the total, i64 [n]."""
    missing = -weights.shape[1] % _BLOCK
    # Padding copies, even by nothing.
    blocks = (F.pad(weights, (0, missing)) if missing else weights).unflatten(1, (-1, _BLOCK))
    sums = blocks.sum(2, dtype=torch.float64)
    ends = sums.cumsum(1)
    target = uniforms[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)
    # A target that rounding puts at the total is beyond every block: the last one with a weight has it.
    block = torch.where(sums.gather(1, block) > 0, block, _last(sums > 0))
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    own = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    place = torch.searchsorted(own.double().cumsum(1) + before, target, right=True).clamp_(max=_BLOCK - 1)
    # The sums of a block and of its weights differ by rounding: never take a token without weight.
    place = torch.where(own.gather(1, place) > 0, place, _last(own > 0))
    return (block * _BLOCK + place).clamp_(max=weights.shape[1] - 1)[:, 0]


def _last(is_there):
    """The last place of each row that is true, i64 [n, 1]; 0 if none is."""
    places = torch.arange(is_there.shape[1], device=is_there.device)
    return torch.where(is_there, places, 0).amax(1, keepdim=True)
