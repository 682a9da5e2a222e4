"""The sieve inside verl: a replay buffer for `trainer.v1.sampler.custom_sampler`.

    trainer.v1.sampler.custom_sampler.path=pkg://tamis.verl
    trainer.v1.sampler.custom_sampler.name=ReplayBuffer
    algorithm.filter_groups.enable=True
    algorithm.filter_groups.metric=acc

verl's trainer asks its replay buffer for the groups of a batch. This one looks through the queue, has tamis's filter
judge each group that has finished, asks verl for as many new prompts as the batch will probably lack, and returns the
oldest groups that were kept. Generation, rewards, advantages and losses are verl's, and so is validation. Nothing of
verl is patched or copied.

Needs what verl itself needs, and nothing else.
"""

from __future__ import annotations

try:
    import transfer_queue  # noqa: F401
    import verl.trainer.ppo.v1.replay_buffer  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"tamis.verl needs verl with what its v1 trainer needs (`pip install verl==0.9.1 TransferQueue`): {missing}"
    ) from missing

from .buffer import ReplayBuffer
from .errors import NothingKept, SamplerError

__all__ = ["NothingKept", "ReplayBuffer", "SamplerError"]
