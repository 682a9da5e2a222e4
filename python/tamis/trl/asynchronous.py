"""The sieve of TRL's `AsyncGRPOTrainer`, which trains while its rollout loop generates in another process.

There is no batch to fill. The loop asks `SievedLoop` for the rows of each group and gets none for a group
that the filter drops. The group's metric goes through TRL's own queue, ahead of the group's rows, to
`AsyncSieve` in the trainer's process. That counts, ends training if nothing is kept, and gives TRL's
checkpoint which groups are over.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import logging
import queue
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
from ..schedule import BeginStep, Dispatched, Scheduler, Scored, Stop
from .errors import TESTED_ASYNCHRONOUS, AttachError, NothingKept
from .refusals import make_filter, moved_methods, wrong_types
from .resume import have_saved, refuse, restored, saved_in
from .rows import metric_values, numbered, weighted_sums
from .sieve import Attached, must_equal

_log = logging.getLogger("tamis.trl")


@dataclass(frozen=True)
class Seen:
    """The metric of a group's members, sent from the rollout loop to the trainer."""

    group: int
    values: list[float]
    num_tokens: int


class SievedLoop(_AsyncRolloutLoop):
    """TRL's rollout loop without the groups that the filter drops."""

    def __init__(self, *, sieve: tuple[Filter | None, str | None], **keywords: Any) -> None:
        super().__init__(**keywords)
        # The objects of a factory are known here at the latest, and so are the names of all rewards.
        reasons: list[str] = []
        self._filter, self._metric = make_filter(self.reward_func_names, *sieve, reasons)
        if reasons:
            raise AttachError("\n".join(reasons))
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
    """The sieve of an `AsyncGRPOTrainer`, `trainer.sieve`, and in place of TRL's queue: it takes out its own
    messages and passes on all others."""

    def __init__(self, trainer: Any, filter: Filter | None, settings: dict[str, Any]) -> None:
        self._trainer = trainer
        self._filter = filter
        self._queue = trainer.rollout_queue
        self._order: list[int] = []
        self._dropped: set[int] = set()
        self._in_a_row: list[Seen] = []
        self._counts: Counter[str] = Counter()
        self.settings = settings
        """What was asked for: `filter` (None: every group is kept), `metric`, `num_generations` of the
        rollout loop, and the limit in `max_num_gen_batches` and `gen_batch_size`."""
        self.totals: dict[str, dict[str, int]] = {}
        """Where every group went so far: each place with its groups, trajectories and tokens. `generated` is
        `trained` and `dropped`; `dropped/REASON` are parts of that. `trained` are those that were handed to
        the trainer: it may find some of their rows too old or too long. What is made again counts again."""
        for place in ("generated", "trained", "dropped"):
            self._add(place, 0, 0)
        self.num_trained = 0
        """Groups before the place of the last checkpoint that were trained on."""

    def __getattr__(self, name: str) -> Any:
        if name == "_queue":
            # A sieve that is only being made, as by `copy`.
            raise AttributeError(name)
        return getattr(self._queue, name)

    def get(self, *arguments: Any, **keywords: Any) -> Any:
        """The next row to train on. Raises `queue.Empty` as the queue does, and `NothingKept`."""
        while isinstance(told := self._queue.get(*arguments, **keywords), Seen):
            self._count(told)
        return told

    def get_nowait(self) -> Any:
        """The same without waiting."""
        return self.get(False)

    def _add(self, place: str, num_groups: int, num_tokens: int) -> None:
        counts = self.totals.setdefault(place, {"groups": 0, "trajectories": 0, "tokens": 0})
        counts["groups"] += num_groups
        counts["trajectories"] += num_groups * self.settings["num_generations"]
        counts["tokens"] += num_tokens

    def _count(self, seen: Seen) -> None:
        metrics = self._trainer._metrics["train"]
        verdict = (self._filter or Filter()).judge([seen.values])[0]
        is_kept = self._filter is None or verdict.kept
        for place in ["generated", "trained"] if is_kept else ["generated", "dropped", f"dropped/{verdict.reason}"]:
            self._add(place, 1, seen.num_tokens)
        self._counts.update(["groups/generated", "groups/kept" if is_kept else "groups/dropped"])
        metrics["train/filter_rate"].append((float(not is_kept), 1.0))
        if verdict.num_correct is not None:
            metrics["all/pass_rate"].append((verdict.num_correct, verdict.num_scored))
        if verdict.num_scored:
            metrics["all/filter_metric/mean"].append((verdict.mean * verdict.num_scored, verdict.num_scored))
        self._order.append(seen.group)
        if is_kept:
            self._in_a_row = []
            return
        self._dropped.add(seen.group)
        self._in_a_row.append(seen)
        if len(self._in_a_row) >= self.settings["max_num_gen_batches"] * self.settings["gen_batch_size"]:
            dropped, self._in_a_row = self._in_a_row, []
            raise NothingKept(self._diagnosis(dropped))

    def _diagnosis(self, dropped: list[Seen]) -> dict[str, Any]:
        """The scheduler's report on these groups, as a step that has them in one round."""
        limit = {name: self.settings[name] for name in ("max_num_gen_batches", "gen_batch_size")}
        size = {"train_batch_size": 1, "gen_batch_size": len(dropped), "n": self.settings["num_generations"]}
        judge = self.settings["filter"] | {"metric": self.settings["metric"]}
        scheduler = Scheduler(**size, filter=judge, mode="rounds", max_num_gen_batches=1)
        commands = [*scheduler.handle(BeginStep()), *scheduler.handle(Dispatched(range(len(dropped))))]
        for i, seen in enumerate(dropped):
            commands += scheduler.handle(Scored(i, seen.values, num_tokens=seen.num_tokens))
        (diagnosis,) = (command.diagnosis for command in commands if isinstance(command, Stop))
        said = f"stopped: none of {len(dropped)} groups in a row was kept ("
        said += ", ".join(f"{name} = {value}" for name, value in limit.items())
        # Its first line is of rounds and steps, and there is no record to look into.
        text = diagnosis["text"].partition("\n")[2].replace("check in rollouts/ ", "check ")
        limit |= {"rounds": limit["max_num_gen_batches"], "step": self._trainer.state.global_step + 1}
        return diagnosis | limit | {"text": f"{said})\n{text}"}

    def over(self, trained: set[int]) -> set[int]:
        """Groups that a resumed run does not make again, besides those: dropped ones, and those that were
        read before a trained one, because TRL discarded them (too old, or too long)."""
        last = max((place for place, group in enumerate(self._order) if group in trained), default=-1)
        return self._dropped.union(self._order[: last + 1])

    def log(self) -> None:
        """Adds the step's counts to the trainer's metrics."""
        for name in ("groups/generated", "groups/kept", "groups/dropped"):
            self._trainer._metrics["train"][name].append(float(self._counts[name]))
        self._counts.clear()

    def _compared(self) -> dict[str, Any]:
        data = self._trainer.train_dataset
        compared = {name: self.settings[name] for name in ("filter", "metric", "num_generations")}
        # If an environment has the data, TRL makes rows without text, as many as a step has samples.
        has_text = next(iter(data), {}).get("prompt") != [{"role": "user", "content": ""}]
        return compared | {"rows": len(data) if has_text else None}

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint, in plain types. Groups in a row are counted anew after a resume."""
        return {
            "totals": self.totals,
            "settings": self._compared(),
            "trained": self.num_trained,
            "global_step": self._trainer.state.global_step,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from such a state. Raises `AttachError` if the filter, its metric, `num_generations` or
        the number of rows differ from those of the state."""
        if self._queue is not None:
            must_equal(self._compared(), state["settings"])
        self.totals, self.num_trained = state["totals"], state["trained"]
        # TRL takes the place in the data for this.
        self._trainer._groups_before_resume = self.num_trained


class TamisSieve(TrainerCallback, ExportableState):
    """Keeps the state in checkpoints, and has the figures of each step logged."""

    def __init__(self, sieve: AsyncSieve) -> None:
        self._sieve = sieve

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self._sieve.state()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if saved := saved_in(state):
            refuse(restored(lambda: self._sieve.restore(saved)))
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
        over = trained | self.sieve.over(trained)
        # TRL notes this place: groups after it are made again, and counted then.
        place = next(group for group in itertools.count() if group not in over)
        self.sieve.num_trained = self._groups_before_resume + sum(group < place for group in trained)
        # TRL counts epochs by the set too, so it gets it back.
        self._trained_groups = over
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
    if getattr(worker, "_process", None) is not None:
        reasons.append("`rollout_worker` was started: attach before it, for TRL starts it itself")
    if cls.get_train_dataloader.__module__.partition(".")[0] != "trl":
        reasons.append(f"{cls.__name__}.get_train_dataloader is your own, and what it reads has the sieve's messages")
    if getattr(trainer, "is_in_train", False):
        reasons.append("`train()` is running: attach before it")
    num_generations = trainer.args.num_generations
    if worker is not None:
        # A worker of your own may have been made with another number, or with the loop's.
        default = inspect.signature(_AsyncRolloutLoop.__init__).parameters["num_generations"].default
        num_generations = worker._loop_kwargs.get("num_generations", default)
    if num_generations < 2:
        reasons.append("`num_generations` is 1: a group needs two members to differ")
    if not hasattr(trainer.train_dataset, "__len__"):
        reasons.append("`train_dataset` has no length: load it as a `Dataset`, not as an `IterableDataset`")
    if given["record"] is not None:
        reasons.append("`record`: dropped completions stay in the rollout process, which has no part in TRL's steps")
    if given["seed"] is not None:
        reasons.append("`seed`: TRL's rollout loop takes the prompts in the order of the data")
    judge, metric = make_filter(_reward_names(worker), given["filter"], given["metric"], reasons)
    if judge is not None and judge.compares_groups:
        reasons.append(f"`filter: {judge.kind}` compares groups, and here each one is judged as it comes")
    elif judge is not None and judge.kind == "within_group":
        reasons.append("`filter: within_group`: TRL computes a group's advantages before members can be left out")
    asked = dict(given["schedule"] or {})
    for key, value in asked.items():
        if key == "filter":
            reasons.append("`schedule.filter`: it is an argument of `attach`")
        elif key not in ("max_num_gen_batches", "gen_batch_size", "on_limit"):
            reasons.append(
                f"`schedule.{key}`: TRL draws prompts and trains on groups as they come; `max_num_gen_batches` and "
                "`gen_batch_size` are the keys that mean something here"
            )
        elif key == "on_limit" and value != "error":
            reasons.append(f"`schedule.on_limit: {value}`: there is no batch to fill up: use `error`")
        elif key != "on_limit" and (type(value) is not int or value < 1):
            reasons.append(f"`schedule.{key}` is {value!r}: give a whole number from 1 on")
    if reasons:
        raise AttachError("\n".join(reasons))

    samples = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    # A step may have one group, and ten of ten are dropped in healthy runs.
    num_groups = max(samples * trainer.accelerator.num_processes // num_generations, 32)
    settings = {
        "filter": None if judge is None else {k: v for k, v in judge.settings.items() if k != "metric"},
        "metric": metric or "reward",
        "num_generations": num_generations,
        "max_num_gen_batches": asked.get("max_num_gen_batches", 10),
        "gen_batch_size": asked.get("gen_batch_size", num_groups),
    }
    limit = settings["max_num_gen_batches"] * settings["gen_batch_size"]
    trainer.sieve = AsyncSieve(trainer, judge, settings)
    trainer.__class__ = type(f"Sieved{cls.__name__}", (SievedAsync, cls), {})
    trainer.add_callback(TamisSieve(trainer.sieve))
    if worker is not None:
        worker._loop_cls = SievedLoop
        worker._loop_kwargs["sieve"] = (judge, metric)
        trainer.rollout_queue = trainer.sieve
        if judge is not None:
            _log.warning(
                f"{cls.__name__} trains on groups that the filter keeps ({judge.rule}), and ends if it drops "
                f"{limit} in a row. Gradient norms are several "
                f"times larger if most groups were uniform: `max_grad_norm` ({trainer.args.max_grad_norm}) clips more. "
                f"`max_inflight_tasks` ({trainer.args.max_inflight_tasks}) was made for groups that are all trained "
                "on: raise it if `perf/rollout_wait_s` grows. An epoch of TRL still counts trained groups."
            )


def _reward_names(worker: Any) -> list[str] | None:
    """Names of the trainer's rewards, those of functions and of environments that give one; None on a process
    without rollouts, or if a factory is no class, because only the rollout loop knows what it makes."""
    if worker is None:
        return None
    factory = worker._loop_kwargs.get("environment_factory")
    factories = factory.values() if isinstance(factory, dict) else [] if factory is None else [factory]
    kinds = []
    for kind in factories:
        while isinstance(kind, functools.partial):
            kind = kind.func
        if not isinstance(kind, type):
            return None
        kinds += [kind] if hasattr(kind, "get_reward") and kind not in kinds else []
    functions = worker._loop_kwargs.get("reward_funcs") or []
    return [*map(get_callable_name, functions), *(kind.__name__ for kind in kinds)]
