"""The completions that TRL generated and scored, row by row."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import trl

from .errors import TESTED, AttachError

# Rows and columns of what `_generate` returns: for each row a value, for the whole a dictionary of columns, a
# number or None.


def split_rows(parts: tuple[Any, ...], num_rows: int) -> list[tuple[Any, ...]]:
    """The result of `_generate`, row by row."""

    def column(part: Any) -> list[Any]:
        if isinstance(part, list) and len(part) == num_rows:
            return part
        if isinstance(part, dict):
            columns = {name: column(values) for name, values in part.items()}
            return [{name: values[i] for name, values in columns.items()} for i in range(num_rows)]
        if part is None or isinstance(part, list) and not part:
            return [_Whole(part)] * num_rows
        if isinstance(part, torch.Tensor) and part.ndim == 0:
            return [_NumTokens()] * num_rows
        raise AttachError(
            f"TRL {trl.__version__} generates a {type(part).__name__} that is no column of {num_rows} rows: "
            f"tamis is tested with {TESTED}"
        )

    return list(zip(*[column(part) for part in parts], strict=True))


@dataclass(frozen=True)
class _Whole:
    """Stands for a row's value in a column without rows."""

    value: Any


class _NumTokens:
    """In place of the number of the policy's tokens, which TRL before 1.9 returns too."""


def join_rows(rows: list[tuple[Any, ...]], num_tokens: int, device: Any) -> tuple[Any, ...]:
    """The rows as `_generate` would return them; `num_tokens` is the policy's tokens over all processes."""

    def column(values: Sequence[Any]) -> Any:
        if isinstance(values[0], _NumTokens):
            return torch.tensor(num_tokens, device=device)
        if all(isinstance(value, _Whole) for value in values):
            return values[0].value
        if isinstance(values[0], dict):
            return {name: column([value[name] for value in values]) for name in values[0]}
        return [None if isinstance(value, _Whole) else value for value in values]

    return tuple(column(values) for values in zip(*rows, strict=True))


def count_tokens(parts: tuple[Any, ...]) -> list[int]:
    """The policy's tokens of each row: without what tools answered."""
    mask = parts[2] if len(parts) > 3 else None
    return [len(ids) for ids in parts[1]] if mask is None else [int(sum(row)) for row in mask]


def as_integers(ids: Any) -> list[int]:
    return [int(id) for id in ids]


def is_cut(trainer: Any, ids: Any) -> bool:
    """Whether the completion has no end: TRL's rule."""
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(
        trainer.processing_class, "tokenizer", trainer.processing_class
    )
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", tokenizer.eos_token_id)]
    return len(ids) == 0 or int(ids[-1]) not in [*ends, tokenizer.pad_token_id]


def take_extra(trainer: Any, num_rows: int) -> list[dict[str, Any]]:
    """Values that reward functions logged with `log_extra`, row by row; the trainer no longer has them."""
    pending = getattr(trainer, "_pending_extra_logs", {})
    extra: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for name, values in pending.items():
        for own, value in zip(extra, values, strict=False):
            own[name] = value
    pending.clear()
    return extra


def numbered(names: Sequence[str]) -> list[str]:
    """The names, each once: a number after each that has the name of one before it."""
    unique: list[str] = []
    for name in names:
        if name in unique:
            made = (f"{name}_{number}" for number in itertools.count(2))
            name = next(each for each in made if each not in names and each not in unique)
        unique.append(name)
    return unique


def rounded(value: float) -> float:
    """The number that a float of 32 bits was made from, if that has seven digits at most."""
    return value if value.is_integer() else float(f"{value:.7g}")


def weighted_sums(rewards: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """TRL's weighted sum of each row, to twelve digits: equal sums of different parts are equal here. NaN if
    no function that has a weight answered."""
    factors = [rounded(weight) for weight in weights.tolist()]
    sums = []
    for row in rewards.tolist():
        parts = [
            weight * rounded(value) for weight, value in zip(factors, row, strict=True) if weight and value == value
        ]
        # For infinities of both signs `fsum` raises an error, and TRL gives NaN.
        total = sum(parts) if any(map(math.isinf, parts)) else math.fsum(parts)
        sums.append(float(f"{total:.12g}") if parts else math.nan)
    return sums


def metric_values(
    metric: str | None,
    names: Sequence[str],
    rewards: torch.Tensor,
    num_tokens: Sequence[int],
    sums: Callable[[torch.Tensor], list[float]],
) -> list[float]:
    """The filter's metric of each member of a group, NaN if it has none: its tokens for `length`, the rewards
    [n, functions] of the function that `metric` names, or their `sums` if it names none."""
    if metric == "length":
        return [float(length) for length in num_tokens]
    if metric is not None:
        return [rounded(value) for value in rewards[:, list(names).index(metric)].tolist()]
    return sums(rewards)


def normalized_sums(rewards: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """The weighted sum of each function's rewards in units of their deviation within the group, as in TRL's
    `multi_objective_aggregation="normalize_then_sum"`, with which equal sums may have signal. Rounded at a
    hundred-thousandth of the largest weight, so that what cancels out is exactly 0."""
    columns = torch.tensor([[rounded(value) for value in row] for row in rewards.tolist()], dtype=torch.float64)
    total = torch.zeros(len(columns), dtype=torch.float64)
    for column, weight in zip(columns.T, weights.double(), strict=True):
        scored = column[~torch.isnan(column)]
        if weight != 0 and len(scored) > 1 and scored.min() != scored.max():
            total += weight * torch.nan_to_num((column - scored.mean()) / (scored.std() + 1e-4))
    total[torch.isnan(columns[:, weights != 0]).all(dim=1)] = math.nan
    largest = weights.abs().max().item()
    digits = 5 - math.floor(math.log10(largest)) if largest else 5
    return [round(value, digits) for value in total.tolist()]


class _Answered:
    """In place of an environment whose answers are there already."""

    def reset(self, **_: Any) -> None:
        return None


@contextlib.contextmanager
def environments_for(trainer: Any, num_rows: int, are_answered: bool) -> Iterator[None]:
    """Environments for so many rows while TRL's method runs. If they have answered, they are not reset once
    more, for that may take a container each."""
    changed: dict[str, Any] = {}
    if hasattr(trainer, "environment_factories"):
        if are_answered and (factories := trainer.environment_factories):
            changed["environment_factories"] = dict.fromkeys(factories, _Answered)
            changed["_environment_pool"] = {name: [] for name in factories}
            # TRL's method makes this list from those.
            changed["environments"] = None
    elif getattr(trainer, "environments", None):
        # TRL before 1.9 has an environment for each row of a generation batch, and wants as many rows.
        changed["environments"] = [_Answered()] * num_rows if are_answered else trainer.environments[:num_rows]
    saved = {name: getattr(trainer, name) for name in changed}
    for name, value in changed.items():
        setattr(trainer, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(trainer, name, value)
