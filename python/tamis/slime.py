"""tamis's filter for slime: `--dynamic-sampling-filter-path tamis.slime.keep`.

Needs slime, and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

try:
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput
except ImportError as missing:
    raise ImportError(f"tamis.slime needs slime: {missing}") from missing

from ._native import Filter

__all__ = ["keep"]

_FILTER = Filter("variance")


def keep(args: Any, samples: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """Whether slime trains on this group: whether rewards differ within it, compared exactly.

    `samples` has the group's members, or for each member the list of its parts, of which the last one has the
    reward. A member without a reward (None, NaN, or a dictionary without `args.reward_key`) is left out, and so is
    one with `remove_sample`. A group with fewer than two others is dropped as `unscored`, one with a failed or
    aborted member as `failed`. slime counts the reasons as `rollout/dynamic_filter/drop_REASON`.
    """
    members = [sample[-1] if isinstance(sample, list) else sample for sample in samples if sample != []]
    if any(member.status.value in ("failed", "aborted") for member in members):
        return DynamicFilterOutput(keep=False, reason="failed")
    (verdict,) = _FILTER.judge([[_reward(args, member) for member in members]])
    return DynamicFilterOutput(keep=verdict.kept, reason=verdict.reason)


def _reward(args: Any, member: Any) -> float:
    reward = None if member.remove_sample else member.reward
    if args.reward_key and reward is not None:
        reward = reward.get(args.reward_key)
    return math.nan if reward is None else float(reward)
