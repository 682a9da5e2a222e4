"""The settings and trainers that `attach` refuses, and why."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import trl
from packaging.version import Version

from .._native import Filter
from ..errors import ConfigError
from ..schedule import Scheduler
from .errors import TESTED

_SEAM = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
}
"""The methods that are stepped in front of, and their parameters in the versions of `TESTED`."""

_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "mode": (lambda value: value == "streaming", "TRL generates whole batches: use `deficit` or `rounds`"),
    "on_limit": (
        lambda value: value in ("use_partial", "skip"),
        "TRL trains on batches of one size only, and always on one: use `error`, `keep_dropped` or `duplicate`",
    ),
    "on_empty_round": (
        lambda value: value == "skip",
        "TRL always trains on a batch: use `retry`, `retry:N` or `error`",
    ),
    "on_exhausted": (lambda value: value in ("use_partial", "stop"), "TRL decides when training ends: use `next_epoch`"),
    "surplus": (
        lambda value: value == "carry",
        "TRL takes what it is given for sampled by the weights of now, and would train on groups of older ones without "
        "a correction: use `discard`",
    ),
    "refill": (lambda value: value is False, "a batch would stay short, and TRL trains on batches of one size only"),
    "rounds_in_flight": (lambda value: value not in (None, 1), "TRL generates one batch at a time"),
    "screen_first": (lambda value: value is not None, "TRL generates all completions of a prompt at once"),
    "order": (
        lambda value: value != "dispatch",
        "TRL generates whole rounds, so no group is complete before another: use `dispatch`",
    ),
    "early_updates": (lambda value: True, "TRL generates the whole batch before it trains"),
    "selector": (
        lambda value: value != {"kind": "shuffle"} and value != "shuffle",
        "prompts come in TRL's own order, so that a run without dropped groups is TRL's",
    ),
    **{
        key: (lambda value: True, f"TRL's own settings decide it: {instead}")
        for key, instead in {
            "train_batch_size": "`generation_batch_size` over `num_generations`",
            "n": "`num_generations`",
            "ppo_mini_batch_size": "`per_device_train_batch_size` and `gradient_accumulation_steps`",
            "total_steps": "`max_steps`",
            "total_epochs": "`num_train_epochs`",
        }.items()
    },
    "filter": (lambda value: True, "it is an argument of `attach`"),
}
"""Values of `schedule` that TRL's training cannot follow, and why."""


_OTHERWISE = {
    "GFPOTrainer": "drops members of each group itself: use GRPOTrainer, with the filter `within_group` if you like",
    "GRPOWithReplayBufferTrainer": "replaces groups without signal itself, by older ones: use GRPOTrainer",
    "MiniLLMTrainer": "learns from a teacher, whether rewards differ or not",
}
"""Trainers of trl.experimental that rewards do not decide about."""


def wrong_types(arguments: Mapping[str, Any]) -> list[str]:
    """Which arguments of `attach` are of a type that it does not take."""
    takes: dict[str, tuple[Any, str]] = {
        "filter": ((Filter, str, Mapping), "a kind by its name, a dictionary of its keys, or a `tamis.Filter`"),
        "metric": (str, "the name of a reward function, or `length`"),
        "schedule": (Mapping, "a dictionary of its keys"),
        "record": ((str, os.PathLike), "the path of a folder"),
        "seed": (int, "a whole number from 0 on"),
    }
    return [
        f"`{name}` is of type {type(value).__name__}: give {what}"
        for name, (types, what) in takes.items()
        if (value := arguments[name]) is not None and (isinstance(value, bool) or not isinstance(value, types))
    ]


def moved_methods(
    cls: type, seam: Mapping[str, list[str]] = MappingProxyType(_SEAM), tested: str = TESTED
) -> list[str]:
    """Which methods are not what they were in the versions that were tested."""
    reasons = []
    for method, parameters in seam.items():
        found = list(inspect.signature(getattr(cls, method)).parameters) if hasattr(cls, method) else None
        if found != parameters:
            seen = "is missing" if found is None else f"has the parameters {', '.join(found)}"
            reasons.append(f"{cls.__name__}.{method} of TRL {trl.__version__} {seen}: versions that work are {tested}")
    return reasons


def obstacles(trainer: Any) -> list[str]:
    """Why the trainer itself cannot have a sieve."""
    cls = type(trainer)
    reasons = moved_methods(cls)
    reasons += [f"{base.__name__} {_OTHERWISE[base.__name__]}" for base in cls.__mro__ if base.__name__ in _OTHERWISE]
    for method in ("get_train_dataloader", "_get_train_sampler"):
        if getattr(cls, method).__module__.partition(".")[0] not in ("trl", "transformers"):
            reasons.append(
                f"{cls.__name__}.{method} is your own, and the sieve takes prompts in the order of TRL's sampler"
            )
    if cls._prepare_inputs.__module__.partition(".")[0] not in ("trl", "transformers"):
        reasons.append(
            f"{cls.__name__}._prepare_inputs is your own, and the sieve takes its rows from `train_dataset`: what it "
            "changes in them would be lost"
        )
    if getattr(trainer, "is_in_train", False):
        reasons.append("`train()` is running: attach before it")
    if getattr(trainer, "rollout_func", None) is not None:
        reasons.append("`rollout_func`: its answers may belong to other prompts than those it is given")
    if trainer.args.auto_find_batch_size:
        reasons.append("`auto_find_batch_size`: a smaller batch would not hold the groups that the sieve fills it with")
    if trainer.num_generations < 2:
        reasons.append("`num_generations` is 1: a group needs two members to differ")
    if rest := trainer.args.generation_batch_size % trainer.num_generations:
        reasons.append(f"`generation_batch_size` is {rest} over a multiple of `num_generations`")
    data, num_groups = trainer.train_dataset, trainer.args.generation_batch_size // trainer.num_generations
    if data is None or not hasattr(data, "__len__"):
        reasons.append("`train_dataset` has no length: load it as a `Dataset`, not as an `IterableDataset`")
    elif len(data) < num_groups:
        reasons.append(f"`train_dataset` has {len(data)} rows, and a generation batch takes {num_groups}")
    return reasons


def make_filter(
    names: Sequence[str] | None, filter: Filter | str | Mapping[str, Any] | None, metric: str | None, reasons: list[str]
) -> tuple[Filter | None, str | None]:
    """The filter, and the name of what it looks at; None: the sum of the rewards. `names` are those of the reward
    functions, if they are known."""
    judge = None
    try:
        if filter is None or isinstance(filter, Filter):
            judge = filter
        else:
            judge = Filter(**({"kind": filter} if isinstance(filter, str) else dict(filter)))
    except (ConfigError, TypeError, ValueError) as error:
        reasons.append(f"`filter`: {error}")
    if judge is not None and judge.kind == "within_group" and Version(trl.__version__) < Version("1.6"):
        reasons.append(
            f"`filter: within_group` needs TRL 1.6: {trl.__version__} has no way to leave a member out of its group's "
            "mean reward"
        )
    named = None if judge is None else judge.settings.get("metric")
    if metric is not None and named is not None and metric != named:
        reasons.append(f"`metric` is {metric!r}, and the filter's own is {named!r}: give one of them")
    metric = metric if metric is not None else named
    if names is None:
        return judge, metric
    metrics = [*names, "length"]
    if metric in ("reward", "score", "seq_reward") and metric not in metrics:
        return judge, None
    if metric == "length" and metric in names:
        reasons.append("`metric`: 'length' is a reward function, and the number of tokens: rename the first")
    elif metrics.count(metric) > 1:
        reasons.append(f"`metric`: there are {metrics.count(metric)} reward functions {metric!r}: rename them")
    if metric is not None and metric not in metrics:
        reasons.append(f"`metric`: there is no reward function {metric!r}; there are {', '.join(metrics)}")
    return judge, metric


def make_scheduler(
    trainer: Any, judge: Filter | None, metric: str | None, asked: dict[str, Any], reasons: list[str]
) -> Scheduler | None:
    """The scheduler of these keys, as far as TRL's training can follow it."""
    for key, (refuses, why) in _REFUSED.items():
        if key in asked and refuses(asked[key]):
            reasons.append(f"`schedule.{key}: {json.dumps(asked.pop(key), default=str)}`: {why}")
    asked.setdefault("mode", "rounds" if judge is not None and judge.compares_groups else "deficit")
    if asked["mode"] == "deficit":
        asked.setdefault("granularity", 1)
    num_groups = max(trainer.args.generation_batch_size // trainer.num_generations, 1)
    named = None if judge is None else judge.settings | {"metric": metric or "reward"}
    try:
        return Scheduler(train_batch_size=num_groups, n=max(trainer.num_generations, 2), filter=named, **asked)
    except (ConfigError, TypeError) as error:
        reasons.append(f"`schedule`: {error}")
        return None
