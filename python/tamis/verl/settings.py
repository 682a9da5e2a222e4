"""Turns `trainer.v1.sampler.sampler_kwargs` and verl's own keys into the sampler's settings."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._native import Filter
from ..errors import ConfigError
from .errors import KWARGS, SamplerError

REWARD = ("reward", "seq_reward")
"""Names of verl's own reward of a trajectory: the sum of its `rm_scores`."""

_LATE = ("seq_final_reward", "token_level_rewards")

_DEFAULTS: dict[str, Any] = {
    "filter": "variance",
    "metric": None,
    "max_num_gen_batches": None,
    "on_limit": "error",
    "refill": "expected",
    "surplus": None,
    "max_lag": None,
    "poll_interval": 2.0,
}

_BATCHES = 10
"""The limit, if none is set and a batch needs one."""

_CHOICES = {
    "on_limit": ("error", "use_partial", "keep_dropped"),
    "refill": ("expected", "exact"),
    "surplus": (None, "discard", "carry"),
}


@dataclass(frozen=True)
class Settings:
    filter: Filter | None
    metric: str
    max_num_gen_batches: int | None
    ends_if_dead: bool
    """Whether a run that keeps nothing for long ends, though no limit was set."""
    on_limit: str
    refill: str
    carries: bool
    """Whether kept groups beyond the batch wait for the next one."""
    threshold: int | None
    """How many policy versions a group may span, as verl counts: its lag and one. None: any number."""
    waits: bool
    """Whether a batch waits for groups in flight that have reached the threshold, and none is thrown away."""
    poll_interval: float


def read_settings(
    asked: Mapping[str, Any] | None, trainer_mode: str, threshold: int | None, strategy: str, config: Any
) -> Settings:
    """The settings of these keyword arguments. `config` is the whole configuration of the trainer, or None if it
    is not known. Raises `SamplerError` with every reason for which they cannot be."""
    reasons: list[str] = []
    asked = _plain(asked or {})
    given = _DEFAULTS | {key: value for key, value in asked.items() if key in _DEFAULTS}
    for key in asked.keys() - _DEFAULTS.keys():
        near = difflib.get_close_matches(str(key), _DEFAULTS, 1)
        meant = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(_DEFAULTS)}"
        reasons.append(f"`{KWARGS}.{key}` is unknown: {meant}")
    for key, choices in _CHOICES.items():
        if given[key] not in choices:
            known = ", ".join("null" if choice is None else f"`{choice}`" for choice in choices)
            reasons.append(f"`{KWARGS}.{key}` is {given[key]!r}: it is one of {known}")
    groups = _at(config, "algorithm", "filter_groups")
    of_verl = _at(groups, "max_num_gen_batches")
    if of_verl is not None and type(of_verl) is not int:
        reasons.append(f"`algorithm.filter_groups.max_num_gen_batches` is {of_verl!r}: a whole number; 0 means no limit")
        of_verl = None
    if "max_num_gen_batches" not in asked and (of_verl or 0) > 0:
        given["max_num_gen_batches"] = of_verl
    # A batch that is filled up or partial needs a limit. Otherwise only a run that keeps nothing has to end.
    is_said = "max_num_gen_batches" in asked or given["max_num_gen_batches"] is not None
    if not is_said and given["on_limit"] != "error":
        given["max_num_gen_batches"] = _BATCHES
    for key, least, none in (("max_num_gen_batches", 1, "no limit"), ("max_lag", 0, "verl's own threshold")):
        value = given[key]
        if value is not None and (type(value) is not int or value < least):
            reasons.append(f"`{KWARGS}.{key}` is {value!r}: a whole number from {least}, or null: {none}")
    interval = given["poll_interval"]
    if type(interval) not in (int, float) or not 0 < interval < math.inf:
        reasons.append(f"`{KWARGS}.poll_interval` is {interval!r}: seconds, above 0")
        interval = 0

    is_sync = trainer_mode == "sync"
    carries = not is_sync if given["surplus"] is None else given["surplus"] == "carry"
    if not is_sync and not carries:
        reasons.append(
            f"`{KWARGS}.surplus: discard` with `trainer.v1.trainer_mode: {trainer_mode}`: what is in flight continues "
            "while verl trains, so it would be thrown away batch after batch: use `carry`, or the mode `sync`"
        )
    if given["max_lag"] is not None:
        if not carries:
            reasons.append(
                f"`{KWARGS}.max_lag` has no effect: no group waits for a later batch. Remove it, or set "
                f"`{KWARGS}.surplus: carry`"
            )
        elif type(given["max_lag"]) is int:
            threshold = given["max_lag"] + 1

    judge, metric = _make_filter(given, _at(groups, "metric"), reasons)
    if judge is not None and judge.compares_groups and not is_sync:
        reasons.append(
            f"`{KWARGS}.filter`: {judge.kind} compares the groups of a round, and with `trainer.v1.trainer_mode: "
            f"{trainer_mode}` there are no rounds: use `variance` or `mean_range`, or the mode `sync`"
        )
    if judge is not None and judge.kind == "within_group":
        reasons.append(f"`{KWARGS}.filter`: within_group leaves members of a group out, and verl takes whole groups")

    if is_sync and config is not None and not _draws_single_prompts(config, groups):
        reasons.append(
            "verl draws whole batches of prompts, so a dropped group cannot be replaced by one prompt: set "
            "`algorithm.filter_groups.enable=True` (verl then sets `data.gen_batch_size` to 1)"
        )
    model = _at(config, "reward", "reward_model")
    if judge is not None and _at(model, "enable") and not _at(model, "enable_resource_pool"):
        reasons.append(
            "`reward.reward_model` shares the trainer's GPUs, so rewards come after the buffer has sampled: set "
            "`reward.reward_model.enable_resource_pool=True`, or use a rule-based reward"
        )
    if reasons:
        raise SamplerError("\n".join(reasons))
    return Settings(
        filter=judge,
        metric=metric,
        max_num_gen_batches=given["max_num_gen_batches"],
        ends_if_dead=not is_said,
        on_limit=given["on_limit"],
        refill=given["refill"],
        carries=carries,
        threshold=threshold if carries else None,
        waits=strategy == "wait" and not is_sync,
        poll_interval=float(interval),
    )


def _make_filter(given: dict[str, Any], of_verl: str | None, reasons: list[str]) -> tuple[Filter | None, str]:
    judge = None
    asked = given["filter"]
    if not isinstance(asked, str | dict | None):
        reasons.append(f"`{KWARGS}.filter` is {asked!r}: the name of a kind, its keys, or null: every group")
        asked = None
    try:
        if asked is not None:
            judge = Filter(**({"kind": asked} if isinstance(asked, str) else asked))
    except (ConfigError, TypeError, ValueError) as error:
        reasons.append(f"`{KWARGS}.filter`: {error}")
    own = None if judge is None else judge.settings.get("metric")
    metric = given["metric"]
    for key, name in ((f"{KWARGS}.metric", metric), ("algorithm.filter_groups.metric", of_verl)):
        if name is not None and (not isinstance(name, str) or not name):
            reasons.append(f"`{key}` is {name!r}: a name that the reward function returns, or `reward`")
            return judge, "reward"
    if metric is not None and own is not None and metric != own:
        reasons.append(f"`{KWARGS}.metric` is {metric!r} and `{KWARGS}.filter.metric` is {own!r}: give one of them")
    metric = str(metric or own or of_verl or "reward")
    if metric in _LATE:
        reasons.append(f"`{metric}` has the KL penalty, which verl adds after the buffer has sampled: use `reward`")
    return judge, metric


def _draws_single_prompts(config: Any, groups: Any) -> bool:
    return bool(
        _at(groups, "enable")
        or _at(config, "trainer", "v1", "sampler", "sync_refill_failed_groups")
        or _at(config, "data", "gen_batch_size") == 1
    )


def _at(config: Any, *path: str) -> Any:
    """The value there, or None."""
    for name in path:
        if config is None:
            return None
        config = config.get(name)
    return config


def _plain(value: Any) -> Any:
    """Dictionaries in place of OmegaConf's."""
    return {key: _plain(value[key]) for key in value} if isinstance(value, Mapping) else value
