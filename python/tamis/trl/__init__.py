"""The sieve inside TRL: a trainer of TRL that replaces groups without signal before it trains.

    trainer = GRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=...)
    tamis.trl.attach(trainer, schedule={"max_num_gen_batches": 10}, record="runs/my")
    trainer.train()

Nothing of TRL is patched or copied. The trainer gets a class between itself and its own, with three methods.
For each generation batch that TRL asks for, groups are generated and scored by TRL's own methods, in rounds
that `tamis.Scheduler` orders, until as many groups as the batch has were kept by the filter. Then TRL's
method runs once more with the kept rows, and gets the completions and scores from before. So tokenizing,
tools, environments, vLLM, advantages, losses and tables are TRL's.

It needs nothing beyond TRL's own requirements.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

try:
    import trl
except ImportError as missing:
    raise ImportError(f"tamis.trl needs TRL with what TRL needs (`pip install trl`): {missing}") from missing

from .._native import Filter
from .errors import TESTED_ASYNCHRONOUS, AttachError, NothingKept
from .record import Record
from .refusals import make_filter, make_scheduler, obstacles, wrong_types
from .resume import make_callback
from .sieve import Attached, Sieve, Sieved

__all__ = ["AttachError", "NothingKept", "Sieve", "attach"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


def attach(
    trainer: T,
    filter: Filter | str | Mapping[str, Any] | None = "variance",
    *,
    metric: str | None = None,
    schedule: Mapping[str, Any] | None = None,
    record: str | os.PathLike[str] | None = None,
    seed: int | None = None,
) -> T:
    """Makes a `GRPOTrainer`, an `RLOOTrainer` or a trainer derived from them sieve its groups. Before
    `train()`.

    Each generation batch has as many groups as before, and the filter kept all of them. The prompts are drawn
    from the training data in TRL's order and continue after the last batch, also after
    `resume_from_checkpoint`. Like TRL, a pass over the data leaves out the rows at its end that are fewer
    than a batch. Evaluation is untouched. With a filter that keeps everything, losses are those of the
    trainer without a sieve, to the bit.

    An `AsyncGRPOTrainer` has no batches to fill: its rollout loop leaves out the groups that the filter drops.
    It takes filters that judge each group by itself, and of `schedule` the limit (`max_num_gen_batches` times
    `gen_batch_size` groups judged since the last kept one).

    Arguments:
        trainer: changed in place and returned. `trainer.sieve` has `totals`, `report` and `settings`
            afterwards.
        filter: a `tamis.Filter`, the name of a kind, or the keys of `filter` in a configuration. None keeps
            every group: for a `record` of what the trainer does without a filter.
        metric: what the filter looks at: the name of a reward function, `length` (the policy's tokens), or
            None: the sum that TRL makes with `reward_weights`; with
            `multi_objective_aggregation="normalize_then_sum"` and the `variance` filter the sum of the
            normalized rewards. Members without a reward are left out, and so are truncated ones with
            `mask_truncated_completions`.
        schedule: the keys of `schedule` in a configuration, and `gen_batch_size` of `data`. Defaults that differ:
            `mode: deficit` with a `granularity` of 1, or `rounds` for a filter that compares groups.
        record: a folder for trajectories (dropped ones too), figures and a log, as `tamis train` writes them:
            `tamis monitor`, `report`, `advise`, `filter` and `rollouts` read it.
        seed: of the order of the prompts; None: the trainer's.

    Raises `AttachError` with every reason for which it cannot be. While training, `NothingKept` if a batch
    cannot be filled within the limits of the schedule; the trainer can be saved or trained further then, from
    the prompts of that batch.
    """
    owner: Any = trainer
    name = type(owner).__name__
    if isinstance(owner, Attached):
        raise AttachError("this trainer has a sieve already: make another trainer")
    kinds: Any = trl
    is_asynchronous = any(base.__name__ == "AsyncGRPOTrainer" for base in type(trainer).__mro__)
    if not is_asynchronous and not isinstance(trainer, (kinds.GRPOTrainer, kinds.RLOOTrainer)):
        raise AttachError(f"{name}: it is no GRPOTrainer, RLOOTrainer or AsyncGRPOTrainer of TRL, nor derived from one")
    given = {"filter": filter, "metric": metric, "schedule": schedule, "record": record, "seed": seed}
    if is_asynchronous:
        try:
            # It imports what TRL has only for that trainer.
            from .asynchronous import attach_to_loop
        except ImportError as moved:
            raise AttachError(
                f"the rollout loop of {name} in TRL {trl.__version__} was moved or renamed ({moved}): versions that "
                f"work are {TESTED_ASYNCHRONOUS}"
            ) from moved
        attach_to_loop(owner, given)
        return trainer
    reasons = obstacles(owner)
    if wrong := wrong_types(given):
        # The rest depends on them.
        raise AttachError("\n".join([*reasons, *wrong]))
    if record is not None and not os.fspath(record):
        reasons.append("`record` is empty: name a folder")
    elif record is not None and Path(record).exists() and not Path(record).is_dir():
        reasons.append(f"`record`: {record} is a file, and a folder is written")
    if seed is not None and not 0 <= seed < 2**64:
        reasons.append(f"`seed` is {seed}: give a whole number from 0 to {2**64 - 1}")
    judge, metric = make_filter(owner.reward_func_names, filter, metric, reasons)
    scheduler = make_scheduler(owner, judge, metric, dict(schedule or {}), reasons)
    if reasons or scheduler is None:
        raise AttachError("\n".join(reasons))

    kept = None if record is None else Record(Path(record))
    owner.sieve = Sieve(owner, judge, metric, scheduler, kept, owner.args.seed if seed is None else seed)
    owner.__class__ = type(f"Sieved{name}", (Sieved, type(owner)), {})
    owner.add_callback(make_callback(owner, kept))
    if owner.accelerator.is_main_process:
        told = [f"{name} trains on every group."]
        if judge is not None:
            num_batches = len(owner.train_dataset) // scheduler.settings["train_batch_size"]
            told = [
                f"{name} trains on groups that the filter keeps ({judge.rule}).",
                "Gradient norms are several times larger if most groups were uniform: `max_grad_norm` "
                f"({owner.args.max_grad_norm}) clips more.",
                f"An epoch of TRL is still {num_batches} generation batches, however many prompts they take; "
                "`sieve/epoch` counts passes over the data.",
            ]
            if owner.args.beta:
                told.append(f"With beta = {owner.args.beta} a dropped group loses its KL term too.")
        _log.warning("%s", " ".join(told))
    return trainer
