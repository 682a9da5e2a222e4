"""The losses as functions of PyTorch: the value and the gradient are those of tamis, autograd only passes them on.

    objective = tamis.Objective("clip", aggregation="token-mean")
    result = tamis.torch.policy_loss(objective, logprob, advantage, mask=mask, old=old_logprob)
    result.loss.backward()

Columns are tensors on any device, in any floating-point type. They are computed on the CPU: in double precision
if they are double, otherwise from single precision. The gradient has one number per token, so what moves between
device and CPU is a few megabytes a million tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._native import Evaluation, Normalisers, Objective, ValueEvaluation, ValueLoss

__all__ = ["PolicyLossResult", "ValueLossResult", "policy_loss", "value_loss"]

Column = Union[Tensor, Sequence[Any]]


@dataclass(frozen=True)
class PolicyLossResult:
    """A policy's loss with what belongs to it."""

    loss: Tensor
    """The loss [], through which `backward` reaches `logprob` and `entropy`."""
    metrics: dict[str, float]
    """Metrics by their names in a run's `metrics.jsonl`."""
    state: dict[str, Any]
    """State for the next optimizer batch."""
    normalisers: Normalisers
    """The divisors of the means."""


@dataclass(frozen=True)
class ValueLossResult:
    """A critic's loss with its metrics."""

    loss: Tensor
    """The loss [], through which `backward` reaches `values`."""
    metrics: dict[str, float]
    """Metrics by their names in a run's `metrics.jsonl`."""


def _column(column: Column | None) -> Any:
    """A CPU tensor as an array that shares its memory; anything else unchanged."""
    if not isinstance(column, Tensor):
        return column
    column = column.detach()
    if column.is_floating_point() and column.dtype not in (torch.float32, torch.float64):
        column = column.float()
    return column.cpu().numpy()


class _Differentiated(torch.autograd.Function):
    """A value whose derivatives with respect to its inputs are known: inputs, then the value and the derivatives."""

    @staticmethod
    def forward(ctx: Any, value: float, derivatives: tuple[Tensor | None, ...], *inputs: Tensor | None) -> Tensor:
        ctx.save_for_backward(*derivatives)
        first = next(tensor for tensor in inputs if tensor is not None)
        wide = torch.float64 if first.dtype == torch.float64 else torch.float32
        return torch.tensor(value, dtype=wide, device=first.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        given = (
            None if derivative is None else derivative * gradient.to(derivative.dtype)
            for derivative in ctx.saved_tensors
        )
        return (None, None, *given)


def _derivative(numbers: Any, like: Tensor) -> Tensor:
    """Derivatives [N] as a tensor of the shape, type and place of what they are of."""
    dtype = torch.float32 if numbers.typecode == "f" else torch.float64
    if len(numbers) == 0:
        return torch.zeros_like(like)
    flat = torch.frombuffer(numbers, dtype=dtype)
    return flat.reshape(like.shape).to(device=like.device, dtype=like.dtype)


def policy_loss(
    objective: Objective,
    logprob: Tensor,
    advantage: Column,
    *,
    offsets: Column | None = None,
    mask: Column | None = None,
    old: Column | None = None,
    behaviour: Column | None = None,
    reference: Column | None = None,
    entropy: Tensor | None = None,
    weight: Column | None = None,
    selection: Column | None = None,
    group_sizes: Column | None = None,
    group_tokens: Column | None = None,
    group_sequences: Column | None = None,
    normalisers: Normalisers | None = None,
    state: dict[str, Any] | None = None,
    seed: int = 0,
) -> PolicyLossResult:
    """The loss of an objective, differentiable in `logprob` and, with an entropy bonus, in `entropy`.

    `logprob` is [B, T] with `mask`, or flat [N] with `offsets` [B + 1]; the arguments are those of
    `Objective.evaluate`. An objective that chooses tokens over the whole batch (`needs_selection`) does so here, its
    draws keyed by `seed`; of a micro-batch pass the `selection` of the whole.

    NaN and log-probabilities above 0 raise `ColumnError` with token and trajectory of the first, unless `mask` leaves
    them out. Above 0 by up to 0.001 they are rounding. NaN in `behaviour` means that the sampler gave none.
    """
    columns: dict[str, Any] = {
        "offsets": _column(offsets),
        "mask": _column(mask),
        "old": _column(old),
        "entropy": _column(entropy),
    }
    numbers, advantages = _column(logprob), _column(advantage)
    if selection is None and objective.needs_selection:
        if normalisers is not None:
            raise ValueError(
                "tokens are chosen over the whole optimizer batch: pass the micro-batch's part of Objective.select "
                "as `selection`"
            )
        selection = objective.select(numbers, advantages, **columns, seed=seed)
    evaluation: Evaluation = objective.evaluate(
        numbers,
        advantages,
        **columns,
        behaviour=_column(behaviour),
        reference=_column(reference),
        weight=_column(weight),
        selection=_column(selection),
        group_sizes=_column(group_sizes),
        group_tokens=_column(group_tokens),
        group_sequences=_column(group_sequences),
        normalisers=normalisers,
        state=state,
    )
    dentropy = evaluation.dentropy
    derivatives = (
        _derivative(evaluation.dlogprob, logprob),
        None if dentropy is None or entropy is None else _derivative(dentropy, entropy),
    )
    inputs = (logprob, entropy if derivatives[1] is not None else None)
    loss = _Differentiated.apply(evaluation.loss, derivatives, *inputs)
    return PolicyLossResult(loss, evaluation.metrics, evaluation.state, evaluation.normalisers)


def value_loss(
    loss: ValueLoss,
    values: Tensor,
    old: Column,
    returns: Column,
    *,
    offsets: Column | None = None,
    mask: Column | None = None,
    group_sizes: Column | None = None,
    group_tokens: Column | None = None,
    group_sequences: Column | None = None,
    normalisers: Normalisers | None = None,
) -> ValueLossResult:
    """A critic's loss, differentiable in `values`, shaped as in `policy_loss`."""
    evaluation: ValueEvaluation = loss.evaluate(
        _column(values),
        _column(old),
        _column(returns),
        offsets=_column(offsets),
        mask=_column(mask),
        group_sizes=_column(group_sizes),
        group_tokens=_column(group_tokens),
        group_sequences=_column(group_sequences),
        normalisers=normalisers,
    )
    derivative = _derivative(evaluation.dvalues, values)
    value = _Differentiated.apply(evaluation.loss, (derivative,), values)
    return ValueLossResult(value, evaluation.metrics)
