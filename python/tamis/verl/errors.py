"""Errors of the sieve inside verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._native import Filter
from ..schedule import BeginStep, Dispatched, Draw, Failed, Scheduler, Scored, Stop

KWARGS = "trainer.v1.sampler.sampler_kwargs"

_NAMES = {
    "rollout.n:": "actor_rollout_ref.rollout.n:",
    "rollout.temperature": "actor_rollout_ref.rollout.temperature",
    "rollout.top_p": "actor_rollout_ref.rollout.top_p",
    "schedule.max_num_gen_batches": f"{KWARGS}.max_num_gen_batches",
    "schedule.on_limit": f"{KWARGS}.on_limit",
    "`data.train` or `data.arithmetic.levels`": "`data.train_files`",
    "train.optimizer.learning_rate": "actor_rollout_ref.actor.optim.lr",
    " (the gold answers themselves were scored at the start)": "",
}
"""The scheduler's words about a configuration of tamis, and those for one of verl."""


class SamplerError(ValueError):
    """Settings of the sampler, or of verl beside it, that cannot be used: every reason, one a line."""


class NothingKept(RuntimeError):
    """A batch could not be filled within `max_num_gen_batches`. The text is tamis's diagnosis in verl's names;
    `diagnosis` has its numbers."""

    def __init__(self, text: str, diagnosis: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.diagnosis = dict(diagnosis or {})


def nothing_kept(
    headline: str,
    groups: Iterable[Sequence[float] | None],
    size: int,
    limit: int,
    filter: Filter | None,
    metric: str,
) -> NothingKept:
    """The error for a batch of `size` groups, of which so many came back: the metric of each member, or None for a
    group that is lost. tamis's scheduler diagnoses them, in rounds of a batch."""
    diagnosis = _diagnose(list(groups), size, limit, filter, metric)
    lines = [] if diagnosis is None else str(diagnosis["text"]).splitlines()[1:]
    text = "\n".join([headline, *lines])
    for name, in_verl in _NAMES.items():
        text = text.replace(name, in_verl)
    return NothingKept(text, diagnosis)


def _diagnose(
    left: list[Sequence[float] | None], size: int, limit: int, filter: Filter | None, metric: str
) -> dict[str, Any] | None:
    """None if the batch would have been full: groups that are kept and then too old count as lost here."""
    n = max([2, *(len(values) for values in left if values)])
    scheduler = Scheduler(
        train_batch_size=size,
        n=n,
        filter=None if filter is None else filter.settings | {"metric": metric},
        gen_batch_size=size,
        max_num_gen_batches=limit,
    )
    commands = scheduler.handle(BeginStep())
    group = 0
    while commands:
        match commands.pop(0):
            case Draw(num_prompts=number):
                ids = range(group, group := group + number)
                commands += scheduler.handle(Dispatched(ids))
                for id in ids:
                    values = left.pop(0) if left else None
                    padded = None if values is None else [*values, *[None] * (n - len(values))]
                    commands += scheduler.handle(Failed(id) if padded is None else Scored(id, padded))
            case Stop(diagnosis=diagnosis):
                return diagnosis
    return None
