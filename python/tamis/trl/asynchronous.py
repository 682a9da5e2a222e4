"""The sieve of TRL's `AsyncGRPOTrainer`, which trains while its rollout loop generates in another process.

There is no batch to fill. The loop asks `SievedLoop` for the rows of each group and gets none for a group that
the filter drops. What the filter looked at goes through TRL's own queue, ahead of the group's rows, to
`AsyncSieve` in the trainer's process. That counts, ends training if nothing is kept, and tells TRL's checkpoint
which groups are over.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import trl
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, TrainingSequence, _AsyncRolloutLoop
from trl.trainer.utils import get_callable_name

from .._native import Filter
from ..errors import ConfigError
from ..schedule import (
    BeginStep,
    Dispatched,
    Judged,
    Published,
    RoundComplete,
    Scheduler,
    Scored,
    StepReady,
    Stop,
    Trained,
)
from .errors import TESTED_ASYNCHRONOUS, AttachError, NothingKept
from .refusals import make_filter, moved_methods, wrong_types
from .resume import have_saved, restored, saved_in
from .rows import metric_values, numbered, weighted_sums
from .sieve import Attached, restored_scheduler

_log = logging.getLogger("tamis.trl")

_UNSCHEDULED = (
    *("mode", "refill", "granularity", "margin", "rounds_in_flight", "on_empty_round", "on_exhausted", "surplus"),
    *("max_lag", "screen_first", "order", "early_updates", "selector", "train_batch_size", "n", "ppo_mini_batch_size"),
    *("total_steps", "total_epochs"),
)
"""Keys of `schedule` that nothing here could follow."""


@dataclass(frozen=True)
class Seen:
    """What the filter looked at in a group, sent from the rollout loop to the trainer."""

    group: int
    values: list[float]
    num_tokens: int


class SievedLoop(_AsyncRolloutLoop):
    """TRL's rollout loop without the groups that the filter drops."""

    def __init__(self, *, sieve: tuple[Filter | None, str | None], **keywords: Any) -> None:
        super().__init__(**keywords)
        self._filter, self._metric = sieve
        # TRL has the rewards by name: of two functions of one name only the last one's.
        self.reward_func_names = numbered(self.reward_func_names)

    async def _score_group(self, group: Any) -> list[Any]:
        # A row without tokens for each member: some members have no row of their own, others several.
        marked = [[*rows, TrainingSequence([], [], [], "")] for rows in group.completions_sequences]
        rows = await super()._score_group(replace(group, completions_sequences=marked))
        members = [row.metrics for row in rows if len(row.input_ids) == 0]
        rewards = torch.tensor(
            [[member[f"rewards/{name}"] for name in self.reward_func_names] for member in members], dtype=torch.float64
        )
        num_tokens = [len(ids) for ids in group.completions_ids]
        weights = torch.ones(len(self.reward_func_names))
        values = metric_values(
            self._metric, self.reward_func_names, rewards, num_tokens, lambda rewards: weighted_sums(rewards, weights)
        )
        await self._send(Seen(group.group_id, values, sum(num_tokens)))
        if self._filter is not None and not self._filter.judge([values])[0].kept:
            return []
        return [row for row in rows if len(row.input_ids) > 0]

    async def _send(self, seen: Seen) -> None:
        while not self._stop_event.is_set():
            try:
                self.rollout_buffer.put_nowait(seen)
                return
            except queue.Full:
                await asyncio.sleep(0.1)


class AsyncSieve:
    """The sieve of an `AsyncGRPOTrainer`, `trainer.sieve`: in TRL's queue it takes out what is for itself."""

    def __init__(self, trainer: Any, scheduler: Scheduler) -> None:
        self._trainer = trainer
        self._scheduler = scheduler
        # Of data that environments only start from, a pass may be very short.
        self._pass = max(len(trainer.train_dataset), 10 * scheduler.settings["gen_batch_size"])
        self._scheduler.set_num_prompts(self._pass)
        self._scheduler.handle(BeginStep())
        self._queue = trainer.rollout_queue
        self._order: list[int] = []
        self._dropped: set[int] = set()
        self._counts: Counter[str] = Counter()
        self.num_trained = 0
        """Groups that were trained on when the last checkpoint was saved."""

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Where every group went so far: each place with its groups, trajectories, turns and tokens. `trained`
        are those that were handed to the trainer: it may find some of their rows too old or too long."""
        return self._scheduler.totals

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the scheduler."""
        return self._scheduler.settings

    def get(self, *arguments: Any, **keywords: Any) -> Any:
        """The next row to train on. Raises `queue.Empty` as the queue does, and `NothingKept`."""
        while isinstance(told := self._queue.get(*arguments, **keywords), Seen):
            self._count(told)
        return told

    def qsize(self) -> int:
        size: int = self._queue.qsize()
        return size

    def _count(self, seen: Seen) -> None:
        metrics = self._trainer._metrics["train"]
        number = self._scheduler.progress["prompts"]
        self._order.append(seen.group)
        is_exhausted = (number + 1) % self._pass == 0
        steps = self._scheduler.progress["steps"]
        commands = self._scheduler.handle(Dispatched([number], steps, is_exhausted))
        commands += self._scheduler.handle(Scored(number, seen.values, num_tokens=seen.num_tokens))
        for command in commands:
            match command:
                case Judged(kept=kept):
                    self._counts.update(["groups/generated", "groups/kept" if kept else "groups/dropped"])
                    metrics["train/filter_rate"].append((float(not kept), 1.0))
                    if not kept:
                        self._dropped.add(seen.group)
                case RoundComplete(report={"tally": tally}):
                    metrics["all/pass_rate"].append((tally["correct"], tally["rated"]))
                    metrics["all/filter_metric/mean"].append((tally["metric_sum"], tally["scored"]))
                case StepReady():
                    for event in (Trained(), Published(steps + 1), BeginStep()):
                        self._scheduler.handle(event)
                case Stop(diagnosis=diagnosis):
                    raise NothingKept(diagnosis | {"text": _in_a_row(diagnosis["text"])})

    def over(self, trained: set[int]) -> set[int]:
        """Groups that a resumed run does not make again, beside those: dropped ones, and what was read before
        one that was trained on, for TRL threw that away (too old, or too long)."""
        last = max((place for place, group in enumerate(self._order) if group in trained), default=-1)
        return self._dropped.union(self._order[: last + 1])

    def log(self) -> None:
        """Adds what the step came to to the trainer's metrics."""
        for name in ("groups/generated", "groups/kept", "groups/dropped"):
            self._trainer._metrics["train"][name].append(float(self._counts[name]))
        self._counts.clear()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in plain types."""
        return {
            "scheduler": self._scheduler.snapshot(),
            "data": {"rows": len(self._trainer.train_dataset)},
            "trained": self.num_trained,
            "global_step": self._trainer.state.global_step,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from such a state. Raises `AttachError` if the settings or the data differ from those of
        the state."""
        self._scheduler = restored_scheduler(state, self.settings | {"rows": len(self._trainer.train_dataset)})
        # TRL takes the place in the data for this.
        self._trainer._groups_before_resume = state["trained"]


def _in_a_row(text: str) -> str:
    """The scheduler's text, for rounds of a group each and steps of one."""
    text = re.sub(r"in step \d+: 0 of 1 groups kept after (\d+) rounds", r"after \1 groups, none of them kept", text)
    text = re.sub(r"in step \d+: (.*) \((\d+) rounds\)", r"after \2 groups: \1", text)
    return text.replace("look in rollouts/ ", "look ")


class TamisSieve(TrainerCallback, ExportableState):
    """Keeps the state in checkpoints, and has the figures of each step logged."""

    def __init__(self, sieve: AsyncSieve) -> None:
        self._sieve = sieve

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self._sieve.state()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if saved := saved_in(state):
            if reasons := restored(lambda: self._sieve.restore(saved)):
                raise AttachError("\n".join(reasons))
        elif state.global_step > 0:
            have_saved(self, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._sieve.log()


class SievedAsync(Attached):
    """Comes before the trainer's own class."""

    sieve: AsyncSieve
    _trained_groups: set[int]
    _groups_before_resume: int

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        parent: Any = super()
        trained = self._trained_groups
        self.sieve.num_trained = self._groups_before_resume + len(trained)
        # TRL notes the first group that is not in this set. It counts epochs by the set too, so it gets it back.
        self._trained_groups = trained | self.sieve.over(trained)
        try:
            parent._save_checkpoint(model, trial)
        finally:
            self._trained_groups = trained


def attach_to_loop(trainer: Any, given: Mapping[str, Any]) -> None:
    """Makes the rollout loop of an `AsyncGRPOTrainer` leave out groups; `given` are the arguments of `attach`.
    Raises `AttachError` with every reason for which it cannot be."""
    cls, worker = type(trainer), getattr(trainer, "rollout_worker", None)
    reasons = moved_methods(cls, {"_save_checkpoint": ["self", "model", "trial"]}, TESTED_ASYNCHRONOUS)
    reasons += moved_methods(_AsyncRolloutLoop, {"_score_group": ["self", "group"]}, TESTED_ASYNCHRONOUS)
    attributes = [(trainer, name) for name in ("rollout_queue", "_trained_groups", "_groups_before_resume", "_metrics")]
    reasons += [
        f"{name} of an AsyncGRPOTrainer is missing in TRL {trl.__version__}: versions that work are "
        f"{TESTED_ASYNCHRONOUS}"
        for owner, name in [(AsyncRolloutWorker, "_loop_cls"), *attributes]
        if not hasattr(owner, name)
    ]
    if reasons or (wrong := wrong_types(given)):
        raise AttachError("\n".join(reasons or wrong))
    if worker is not None and getattr(worker, "_loop_cls", None) is not _AsyncRolloutLoop:
        loop = getattr(worker, "_loop_cls", type(worker))
        reasons.append(f"`rollout_worker`: the sieve comes before TRL's own rollout loop, and this is {loop.__name__}")
        worker = None
    if getattr(trainer, "is_in_train", False):
        reasons.append("`train()` is running: attach before it")
    num_generations, data = trainer.args.num_generations, trainer.train_dataset
    if num_generations < 2:
        reasons.append("`num_generations` is 1: a group needs two members to differ")
    if not hasattr(data, "__len__"):
        reasons.append("`train_dataset` has no length: load it as a `Dataset`, not as an `IterableDataset`")
    if given["record"] is not None:
        reasons.append("`record`: dropped completions stay in the rollout process, which has no part in TRL's steps")
    if given["seed"] is not None:
        reasons.append("`seed`: TRL's rollout loop takes the prompts in the order of the data")
    judge, metric = make_filter(_reward_names(worker), given["filter"], given["metric"], reasons)
    if judge is not None and judge.compares_groups:
        reasons.append(f"`filter: {judge.kind}` compares groups, and here each one is judged as it comes")
        judge = None
    elif judge is not None and judge.kind == "within_group":
        reasons.append("`filter: within_group`: TRL computes a group's advantages before members can be left out")
    asked = dict(given["schedule"] or {})
    for key in [key for key in asked if key in _UNSCHEDULED]:
        asked.pop(key)
        reasons.append(
            f"`schedule.{key}`: TRL draws prompts and trains on groups as they come; `max_num_gen_batches` and "
            "`gen_batch_size` are the keys that mean something here"
        )
    if asked.get("on_limit", "error") != "error":
        reasons.append(f"`schedule.on_limit: {asked.pop('on_limit')}`: there is no batch to fill up: use `error`")
    if asked.pop("filter", None) is not None:
        reasons.append("`schedule.filter`: it is an argument of `attach`")
    samples = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    asked.setdefault("gen_batch_size", max(samples * trainer.accelerator.num_processes // num_generations, 1))
    named = None if judge is None else judge.settings | {"metric": metric or "reward"}
    try:
        # A step is one kept group, so the limit holds from each kept one to the next.
        scheduler = Scheduler(
            train_batch_size=1, n=max(num_generations, 2), filter=named, mode="deficit", granularity=1, **asked
        )
    except (ConfigError, TypeError) as error:
        reasons.append(f"`schedule`: {error}")
    if reasons:
        raise AttachError("\n".join(reasons))

    trainer.sieve = AsyncSieve(trainer, scheduler)
    trainer.__class__ = type(f"Sieved{cls.__name__}", (SievedAsync, cls), {})
    trainer.add_callback(TamisSieve(trainer.sieve))
    if worker is not None:
        worker._loop_cls = SievedLoop
        worker._loop_kwargs["sieve"] = (judge, metric)
        trainer.rollout_queue = trainer.sieve
        if judge is not None:
            _log.warning(
                f"{cls.__name__} trains on groups that the filter keeps ({judge.rule}). Gradient norms are several "
                f"times larger if most groups were uniform: `max_grad_norm` ({trainer.args.max_grad_norm}) clips more. "
                f"`max_inflight_tasks` ({trainer.args.max_inflight_tasks}) was made for groups that are all trained "
                "on: raise it if `perf/rollout_wait_s` grows. An epoch of TRL still counts trained groups."
            )


def _reward_names(worker: Any) -> list[str] | None:
    """Names of the trainer's rewards, those of functions and of environments that give one; None on a process
    without rollouts."""
    if worker is None:
        return None
    names = [get_callable_name(function) for function in worker._loop_kwargs["reward_funcs"]]
    factory = worker._loop_kwargs["environment_factory"]
    factories = factory.values() if isinstance(factory, dict) else [factory]
    return names + list(dict.fromkeys(each.__name__ for each in factories if hasattr(each, "get_reward")))
