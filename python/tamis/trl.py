"""The sieve inside TRL: a trainer of TRL that replaces groups without signal before it trains.

    trainer = GRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=...)
    tamis.trl.attach(trainer, schedule={"max_num_gen_batches": 10}, record="runs/my")
    trainer.train()

Nothing of TRL is patched or copied. The trainer gets a class between itself and its own, with three methods. For
each generation batch that TRL asks for, groups are generated and scored by TRL's own methods, in rounds that
`tamis.Scheduler` orders, until as many groups as the batch has were kept by the filter. Then TRL's method runs once
more with the kept rows, and what was generated and scored before is handed to it. So tokenizing, tools, environments,
vLLM, advantages, losses and tables are TRL's.

Needs what TRL itself needs, and nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

try:
    import torch
    import trl
    from accelerate.utils import gather_object
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as missing:
    raise ImportError(f"tamis.trl needs TRL with what TRL needs (`pip install trl`): {missing}") from missing

from ._native import Filter
from .errors import ConfigError
from .schedule import (
    BeginStep,
    Command,
    Dispatched,
    Draw,
    Judged,
    NextEpoch,
    Published,
    RoundComplete,
    Scheduler,
    Scored,
    SkipStep,
    StepClose,
    StepReady,
    Stop,
    Trained,
)

__all__ = ["AttachError", "NothingKept", "Sieve", "attach"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

TESTED = "1.0.0, 1.6.0, 1.9.2, 1.13.0 and 1.16.0"
"""Versions of TRL that this module is tested with."""

_SEAM = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
}
"""The methods that are stepped in front of, and their parameters in the versions of `TESTED`."""

_LOGGED = (
    "groups/generated",
    "groups/trained",
    "groups/dropped",
    "groups/surplus",
    "train/num_gen_batches",
    "train/filter_rate",
    "all/pass_rate",
    "all/filter_metric/mean",
    "tokens/generated",
    "tokens/trained",
)
"""What goes beside TRL's own metrics; `record` has all of them."""


class AttachError(ValueError):
    """The sieve does not go with this trainer: every reason, one a line."""


class NothingKept(RuntimeError):
    """A generation batch could not be filled within the limits of the schedule; the text is the scheduler's
    diagnosis."""

    def __init__(self, diagnosis: Mapping[str, Any]) -> None:
        super().__init__(str(diagnosis["text"]))
        self.diagnosis = dict(diagnosis)


class _Generated(BaseException):
    """Leaves TRL's method after generation, with the prompts and what `_generate` returned. No handler of
    errors on the way is meant to see it."""

    def __init__(self, prompts: list[Any], parts: tuple[Any, ...]) -> None:
        super().__init__()
        self.prompts = prompts
        self.parts = parts


@dataclass
class _Member:
    """A completion on the process that generated it."""

    row: dict[str, Any]
    prompt: Any
    parts: tuple[Any, ...]
    extra: dict[str, Any]


@dataclass
class _Group:
    """What every process knows of a group."""

    id: int
    prompt_id: int
    epoch: int
    round: int
    rewards: list[torch.Tensor] = field(default_factory=list)
    """Of each member, a number for each reward function, as TRL has them."""
    values: list[float] = field(default_factory=list)
    """The filter's metric of each member; NaN if it has none."""
    num_tokens: list[int] = field(default_factory=list)
    """The policy's tokens of each member."""
    is_truncated: list[bool] = field(default_factory=list)
    verdict: str = "surplus"


class _Prompts:
    """The rows of the data in the order in which TRL's sampler takes them: a permutation each pass, from one
    generator. Like TRL, a pass leaves out the rows at its end that are fewer than a batch."""

    def __init__(self, num_rows: int, batch_size: int, shuffle: bool, seed: int) -> None:
        self.num_rows = num_rows
        self.shuffle = shuffle
        self.seed = seed
        self.num_in_pass = num_rows - num_rows % batch_size
        self.restore(0, 0)

    def restore(self, epoch: int, place: int) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)
        self.epoch = -1
        while self.epoch < epoch:
            self.next_epoch()
        self.place = place

    def next_epoch(self) -> None:
        self.epoch += 1
        self.place = 0
        if self.shuffle:
            self._order = torch.randperm(self.num_rows, generator=self._generator).tolist()
        elif self.epoch == 0:
            self._order = list(range(self.num_rows))

    def take(self, number: int) -> list[int]:
        """The next so many, or fewer if the pass ends."""
        rows = self._order[self.place : min(self.place + number, self.num_in_pass)]
        self.place += len(rows)
        return rows

    @property
    def is_exhausted(self) -> bool:
        return self.place == self.num_in_pass


class Sieve:
    """The sieve of a trainer: `trainer.sieve`."""

    def __init__(
        self,
        trainer: Any,
        filter: Filter | None,
        metric: str | None,
        scheduler: Scheduler,
        record: _Record | None,
        seed: int,
    ) -> None:
        self._trainer = trainer
        self._filter = filter
        self._metric = metric
        self._scheduler = scheduler
        self._record = record
        shuffle = getattr(trainer, "shuffle_dataset", True) is not False
        self._prompts = _Prompts(len(trainer.train_dataset), scheduler.settings["train_batch_size"], shuffle, seed)
        self._scheduler.set_num_prompts(self._prompts.num_in_pass)
        self._next_group = 0
        self._steps = 0
        self._resumed_from: str | os.PathLike[str] | None = None
        self._is_rolling = False
        self._batch: tuple[list[_Member], torch.Tensor, int] | None = None
        self.report: dict[str, Any] | None = None
        """Numbers of the last generation batch; `text` says them in words, `metrics` has them by name."""

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Where every group went so far: each place with its groups, trajectories, turns and tokens."""
        return self._scheduler.totals

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the scheduler."""
        return self._scheduler.settings

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in plain types: equal on every process."""
        return {
            "scheduler": self._scheduler.snapshot(),
            "data": self._data,
            "epoch": self._prompts.epoch,
            "place": self._prompts.place,
            "next_group": self._next_group,
            "steps": self._steps,
        }

    @property
    def _data(self) -> dict[str, Any]:
        """What decides which prompts come and how they are judged, beside the settings of the scheduler."""
        prompts = self._prompts
        return {"rows": prompts.num_rows, "shuffle": prompts.shuffle, "seed of the prompts": prompts.seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from such a state. Raises `AttachError` if the settings or the data differ from those of
        the state."""
        restored = Scheduler.restore(state["scheduler"])
        now, then = self.settings | self._data, restored.settings | state["data"]
        if differing := [name for name in now if now[name] != then.get(name)]:
            raise AttachError(
                "the checkpoint's sieve has other settings: "
                + ", ".join(f"`{name}` is {now[name]} and was {then.get(name)}" for name in sorted(differing))
            )
        self._scheduler = restored
        self._prompts.restore(state["epoch"], state["place"])
        self._next_group = state["next_group"]
        self._steps = state["steps"]

    # What TRL's method asks for while it runs.

    def _generate(self, prompts: list[Any], generate: Callable[[list[Any]], tuple[Any, ...]]) -> tuple[Any, ...]:
        if self._is_rolling:
            raise _Generated(prompts, generate(prompts))
        assert self._batch is not None
        members, _, num_tokens = self._batch
        # TRL's own list: environments may have told other prompts than the answers belong to.
        prompts[:] = [member.prompt for member in members]
        return _joined([member.parts for member in members], num_tokens, self._trainer.accelerator.device)

    # A generation batch.

    def _fill(self, parent: Any) -> dict[str, Any]:
        """Rounds until the batch is full, then TRL's method with the kept rows."""
        before = self.state()
        try:
            close, groups, members = self._rounds(parent)
            batch = [groups[id] for id in [*close.trained, *close.duplicated]]
            for group in batch:
                group.verdict = "kept_when_insufficient" if group.id in close.kept_when_insufficient else "trained"
            output = self._train_on(parent, batch, members)
            advantages = self._trainer.accelerator.gather(output["advantages"]).tolist()
            idle = self._idle(batch, output, advantages)
            self._steps += 1
            self._scheduler.handle(Trained(left_out=len(idle), tokens=sum(groups[id].num_tokens[i] for id, i in idle)))
            self._scheduler.handle(Published(self._steps))
        except BaseException:
            # Whoever catches it and continues finds no prompt missing, and no column of a batch that is not
            # there.
            self.restore(before)
            self._trainer._pending_extra_logs.clear()
            self._trainer._pending_metrics.clear()
            raise
        self.report = close.report
        metrics = self._trainer._metrics["train"]
        for name in _LOGGED:
            if (value := close.report["metrics"].get(name)) is not None:
                metrics[name].append(value)
        metrics["sieve/epoch"].append(self._prompts.epoch + self._prompts.place / self._prompts.num_in_pass)
        if self._record is not None:
            self._write(close, list(groups.values()), batch, members, idle, advantages)
        return output

    def _rounds(self, parent: Any) -> tuple[StepClose, dict[int, _Group], dict[tuple[int, int], _Member]]:
        groups: dict[int, _Group] = {}
        members: dict[tuple[int, int], _Member] = {}
        skipped: list[StepClose] = []
        commands: deque[Command] = deque(self._scheduler.handle(BeginStep()))
        while commands:
            match commands.popleft():
                case NextEpoch():
                    self._prompts.next_epoch()
                case Draw(round=round, num_prompts=num):
                    drawn = [
                        _Group(self._next_group + i, row, self._prompts.epoch, round - 1)
                        for i, row in enumerate(self._prompts.take(num))
                    ]
                    self._next_group += len(drawn)
                    groups |= {group.id: group for group in drawn}
                    told = Dispatched([group.id for group in drawn], self._steps, self._prompts.is_exhausted)
                    commands.extend(self._scheduler.handle(told))
                    chunk = self.settings["train_batch_size"]
                    for start in range(0, len(drawn), chunk):
                        self._roll(parent, drawn[start : start + chunk], members)
                    for group in drawn:
                        scored = Scored(group.id, group.values, num_tokens=sum(group.num_tokens))
                        commands.extend(self._scheduler.handle(scored))
                case Judged(group=id, kept=False, reason=reason):
                    groups[id].verdict = str(reason)
                    if self.settings["on_limit"] != "keep_dropped":
                        self._forget(groups[id], members)
                case RoundComplete(report=report):
                    self._say(report["text"])
                case StepReady(close=close):
                    self._say(close.report["text"])
                    close.report["metrics"] = _combined([each.report["metrics"] for each in [*skipped, close]])
                    return close, groups, members
                case SkipStep(close=close):
                    # No group at all was kept, and TRL trains on every batch: the next attempt is for the
                    # same one.
                    skipped.append(close)
                    commands.extend(self._scheduler.handle(BeginStep()))
                case Stop(diagnosis=diagnosis):
                    text = diagnosis["text"].replace(self.settings["difficulty_in"], "`train_dataset`")
                    self._say(text)
                    raise NothingKept(diagnosis | {"text": text})
        raise RuntimeError("the scheduler neither filled the batch nor said why not")

    def _forget(self, group: _Group, members: dict[tuple[int, int], _Member]) -> None:
        """Frees what only training needs; images take much."""
        for place in [(group.id, i) for i in range(len(group.rewards))]:
            if self._record is None:
                members.pop(place, None)
            elif place in members:
                members[place] = replace(members[place], row={}, prompt=None, parts=members[place].parts[:4])

    def _say(self, text: str) -> None:
        if self._trainer.accelerator.is_main_process:
            _log.info("%s", text)
            if self._record is not None:
                self._record.say(text)

    def _roll(self, parent: Any, chunk: list[_Group], members: dict[tuple[int, int], _Member]) -> None:
        """Has TRL generate and score these groups, each process its share of the rows."""
        trainer = self._trainer
        n, world, rank = trainer.num_generations, trainer.accelerator.num_processes, trainer.accelerator.process_index
        places = [(group.id, i) for group in chunk for i in range(n)]
        # Every process has equally many: where groups do not divide, some rows are generated that nobody
        # counts.
        share = -(-len(places) // world)
        by_id = {group.id: group for group in chunk}
        local = places[rank * share : (rank + 1) * share]
        padding = [places[-1]] * (share - len(local))
        # Like TRL, each member has a row of its own: environments may write into it.
        rows = trainer.data_collator([dict(self._rows[by_id[id].prompt_id]) for id, _ in [*local, *padding]])

        self._is_rolling = True
        with _environments(trainer, len(rows), are_answered=False):
            try:
                parent._generate_and_score_completions(rows)
                raise AttachError(f"{type(trainer).__name__} generates without `_generate`")
            except _Generated as made:
                prompts, parts = made.prompts, made.parts
            finally:
                self._is_rolling = False
            ids, completions = parts[1], parts[3] if len(parts) > 3 else parts[2]
            rewards = parent._calculate_rewards(rows, prompts, completions, ids)

        extra = _taken(trainer, len(rows))
        facts = torch.tensor(
            [[num_tokens, _is_truncated(trainer, own)] for num_tokens, own in zip(_lengths(parts), ids, strict=True)],
            device=trainer.accelerator.device,
        )
        facts = trainer.accelerator.gather(facts).tolist()
        made_of = zip(rows, prompts, _split(parts, len(rows)), extra, strict=True)
        for place, (row, prompt, part, more) in zip(local, made_of, strict=False):
            members[place] = _Member(row, prompt, part, more)
        for (id, _), reward, (num_tokens, is_truncated) in zip(places, rewards, facts, strict=False):
            by_id[id].rewards.append(reward)
            by_id[id].num_tokens.append(int(num_tokens))
            by_id[id].is_truncated.append(bool(is_truncated))
        for group in chunk:
            group.values = self._values(group)

    @cached_property
    def _rows(self) -> Any:
        trainer = self._trainer
        if trainer.args.remove_unused_columns:
            return trainer._remove_unused_columns(trainer.train_dataset, description="training")
        return trainer.train_dataset

    def _values(self, group: _Group) -> list[float]:
        """The filter's metric of each member."""
        rewards = torch.stack(group.rewards).cpu()
        names = list(self._trainer.reward_func_names)
        if self._metric == "length":
            values = [float(length) for length in group.num_tokens]
        elif self._metric is not None:
            values = [_decimal(value) for value in rewards[:, names.index(self._metric)].tolist()]
        elif self._normalizes_each and self._filter_kind == "variance":
            values = _normalized(rewards, self._trainer.reward_weights.cpu())
        else:
            values = _weighted(rewards, self._trainer.reward_weights.cpu())
        if getattr(self._trainer, "mask_truncated_completions", False):
            # TRL trains on none of their tokens.
            values = [math.nan if cut else value for value, cut in zip(values, group.is_truncated, strict=True)]
        return values

    @property
    def _filter_kind(self) -> str | None:
        return None if self._filter is None else self._filter.kind

    @property
    def _normalizes_each(self) -> bool:
        return getattr(self._trainer, "multi_objective_aggregation", None) == "normalize_then_sum"

    def _train_on(self, parent: Any, batch: list[_Group], members: dict[tuple[int, int], _Member]) -> dict[str, Any]:
        """TRL's method with the rows of these groups."""
        trainer = self._trainer
        world, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        places = [(group.id, i) for group in batch for i in range(len(group.rewards))]
        wanted = set(places)
        mine = {place: member for place, member in members.items() if place in wanted}
        if world > 1:
            mine = dict(gather_object(list(mine.items())))
        share = len(places) // world
        rewards = torch.stack([reward for group in batch for reward in group.rewards])
        num_tokens = sum(sum(group.num_tokens) for group in batch)
        local = [mine[place] for place in places[rank * share : (rank + 1) * share]]
        columns = sorted({name for member in mine.values() for name in member.extra})
        if columns:
            extra = {name: [member.extra.get(name) for member in local] for name in columns}
            trainer._pending_extra_logs.update(extra)
        self._batch = (local, rewards, num_tokens)
        try:
            with _environments(trainer, len(local), are_answered=True):
                output: dict[str, Any] = parent._generate_and_score_completions([dict(member.row) for member in local])
        finally:
            self._batch = None
        return output

    def _idle(self, batch: list[_Group], output: dict[str, Any], advantages: list[float]) -> dict[tuple[int, int], str]:
        """Members of the batch that bear no loss, and why; those that the filter left out are masked, as TRL
        does itself with truncated completions."""
        idle = {}
        places = []
        for group in batch:
            chosen = None
            if self._filter is not None and self._filter_kind == "within_group":
                chosen = self._filter.judge([group.values])[0].members
            for i, reward in enumerate(group.rewards):
                places.append((group.id, i))
                if getattr(self._trainer, "mask_truncated_completions", False) and group.is_truncated[i]:
                    idle[places[-1]] = "truncated"
                elif torch.isnan(reward).all() and advantages[len(places) - 1] == 0:
                    # TRL 1.0 takes such a reward for 0, and trains on it.
                    idle[places[-1]] = "unscored"
                elif chosen is not None and not chosen[i]:
                    idle[places[-1]] = "unchosen"
        if "unchosen" in idle.values():
            accelerator = self._trainer.accelerator
            share = len(output["advantages"])
            local = places[accelerator.process_index * share :][:share]
            column = torch.tensor([idle.get(place) != "unchosen" for place in local], device=accelerator.device)
            for name in ("completion_mask", "tool_mask"):
                if name in output:
                    output[name] = output[name] * column[:, None]
            output["advantages"] = output["advantages"] * column
            if "num_items_in_batch" in output:
                mask = output["completion_mask"] * output.get("tool_mask", 1)
                output["num_items_in_batch"] = accelerator.gather(mask.sum()).sum()
        return idle

    def _write(
        self,
        close: StepClose,
        groups: list[_Group],
        batch: list[_Group],
        members: dict[tuple[int, int], _Member],
        idle: dict[tuple[int, int], str],
        advantages: list[float],
    ) -> None:
        """Rows of the run folder, by the main process."""
        trainer = self._trainer
        places = [(group.id, i) for group in batch for i in range(len(group.rewards))]
        advantage = dict(reversed(list(zip(places, advantages, strict=True))))
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        told = {}
        for place, member in members.items():
            prompt_ids, ids = (_integers(part) for part in member.parts[:2])
            mask = member.parts[2] if len(member.parts) > 3 and isinstance(member.parts[2], list) else [1] * len(ids)
            told[place] = {
                "prompt": tokenizer.decode(prompt_ids),
                "completion": tokenizer.decode(ids, skip_special_tokens=True),
                "prompt_ids": prompt_ids,
                "token_ids": ids,
                "loss_mask": [bool(kept) for kept in mask],
                "extra": member.extra,
            }
        if trainer.accelerator.num_processes > 1:
            told = dict(gather_object(list(told.items())))
        if not trainer.accelerator.is_main_process:
            return
        names = list(trainer.reward_func_names)
        weights = trainer.reward_weights.cpu()
        rows = []
        for group in groups:
            totals = _weighted(torch.stack(group.rewards).cpu(), weights)
            for i, reward in enumerate(group.rewards):
                facts = told[group.id, i]
                rows.append(
                    {
                        "step": self._steps,
                        "round": group.round,
                        "group_id": group.id,
                        "prompt_id": group.prompt_id,
                        "epoch": group.epoch,
                        "sample_index": i,
                        "data_source": "",
                        **{
                            name: facts[name]
                            for name in ("prompt", "completion", "prompt_ids", "token_ids", "loss_mask")
                        },
                        "scores": dict(zip(names, map(_decimal, reward.tolist()), strict=True)),
                        "extra": facts["extra"],
                        "reward": totals[i],
                        "advantage": None if (group.id, i) in idle else advantage.get((group.id, i)),
                        "metric": self._metric or "reward",
                        "metric_value": group.values[i],
                        "verdict": idle.get((group.id, i), group.verdict),
                        "finish_reason": "length" if group.is_truncated[i] else "stop",
                    }
                )
        assert self._record is not None
        self._record.step(self._steps, rows, names, close.report["metrics"])


class _Sieved:
    """Comes before the trainer's own class."""

    sieve: Sieve
    model: Any

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        parent: Any = super()
        self.sieve._resumed_from = None if isinstance(resume_from_checkpoint, bool) else resume_from_checkpoint
        return parent.train(resume_from_checkpoint, *arguments, **keywords)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        parent: Any = super()
        if not self.model.training:
            output: dict[str, Any] = parent._generate_and_score_completions(inputs)
            return output
        return self.sieve._fill(parent)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        parent: Any = super()
        sieve = self.sieve
        if sieve._is_rolling or sieve._batch is not None:
            return sieve._generate(prompts, parent._generate)
        made: tuple[Any, ...] = parent._generate(prompts)
        return made

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        if self.sieve._batch is not None:
            return self.sieve._batch[1]
        parent: Any = super()
        rewards: torch.Tensor = parent._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return rewards


def _combined(attempts: list[dict[str, float]]) -> dict[str, float]:
    """The figures of a batch that took several attempts: counts are added, shares of all groups are means
    over them."""
    combined = dict(attempts[-1])
    num_groups = [attempt["groups/generated"] for attempt in attempts]
    for name in combined:
        values = [attempt.get(name, math.nan) for attempt in attempts]
        if name.startswith(("groups/", "trajectories/", "tokens/", "turns/")) or name.endswith("/num_gen_batches"):
            combined[name] = sum(values)
        elif name.startswith("all/") or name == "train/filter_rate":
            known = [(value, num) for value, num in zip(values, num_groups, strict=True) if not math.isnan(value)]
            combined[name] = sum(value * num for value, num in known) / sum(num for _, num in known)
    return combined


# Rows and columns of what `_generate` returns: for each row a value, for the whole a dictionary of columns, a
# number or None.


def _split(parts: tuple[Any, ...], num_rows: int) -> list[tuple[Any, ...]]:
    """What `_generate` returned, row by row."""

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
    """In place of a row's value: what a column without rows is."""

    value: Any


class _NumTokens:
    """In place of the number of the policy's tokens, which TRL before 1.9 returns too."""


def _joined(rows: list[tuple[Any, ...]], num_tokens: int, device: Any) -> tuple[Any, ...]:
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


def _lengths(parts: tuple[Any, ...]) -> list[int]:
    """The policy's tokens of each row: without what tools answered."""
    mask = parts[2] if len(parts) > 3 else None
    return [len(ids) for ids in parts[1]] if mask is None else [int(sum(row)) for row in mask]


def _integers(ids: Any) -> list[int]:
    return [int(id) for id in ids]


def _is_truncated(trainer: Any, ids: Any) -> bool:
    """Whether the completion has no end: TRL's rule."""
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(
        trainer.processing_class, "tokenizer", trainer.processing_class
    )
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", tokenizer.eos_token_id)]
    return len(ids) == 0 or int(ids[-1]) not in [*ends, tokenizer.pad_token_id]


def _taken(trainer: Any, num_rows: int) -> list[dict[str, Any]]:
    """What reward functions logged with `log_extra`, row by row; the trainer has it no more."""
    pending = getattr(trainer, "_pending_extra_logs", {})
    extra: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for name, values in pending.items():
        for own, value in zip(extra, values, strict=False):
            own[name] = value
    pending.clear()
    return extra


def _decimal(value: float) -> float:
    """The number that a float of 32 bits was made from, if that has seven digits at most."""
    return value if value.is_integer() else float(f"{value:.7g}")


def _weighted(rewards: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """TRL's weighted sum of each row, to twelve digits: equal sums of different parts are equal here. NaN if
    no function that has a weight answered."""
    factors = [_decimal(weight) for weight in weights.tolist()]
    sums = []
    for row in rewards.tolist():
        parts = [
            weight * _decimal(value) for weight, value in zip(factors, row, strict=True) if weight and value == value
        ]
        sums.append(float(f"{math.fsum(parts):.12g}") if parts else math.nan)
    return sums


def _normalized(rewards: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """The weighted sum of what each function's rewards are in units of their deviation within the group: what
    TRL has with `multi_objective_aggregation="normalize_then_sum"`, where equal sums may have signal. A
    function whose rewards are all equal gives exactly 0."""
    total = torch.zeros(len(rewards), dtype=torch.float64)
    for column, weight in zip(rewards.double().T, weights.double(), strict=True):
        scored = column[~torch.isnan(column)]
        if weight != 0 and len(scored) > 1 and scored.min() != scored.max():
            total += weight * torch.nan_to_num((column - scored.mean()) / (scored.std() + 1e-4))
    total[torch.isnan(rewards[:, weights != 0]).all(dim=1)] = math.nan
    values: list[float] = total.tolist()
    return values


class _Answered:
    """In place of an environment whose answers are there already."""

    def reset(self, **_: Any) -> None:
        return None


@contextlib.contextmanager
def _environments(trainer: Any, num_rows: int, are_answered: bool) -> Iterator[None]:
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


class _Record:
    """A run folder that `monitor`, `report`, `advise`, `filter` and `rollouts` read, written by the main
    process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due: dict[str, Any] | None = None
        self._logged: dict[str, list[float]] = {}

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def begin(self, steps: int, pending: Mapping[str, Any] | None = None) -> str | None:
        """Makes the folder, or says why not. Steps that a run resumed after `steps` will write again are
        taken out."""
        text = self._metrics.read_text() if self._metrics.exists() else ""
        # A line that the end of a run cut short does not count.
        lines = text[: text.rfind("\n") + 1].splitlines()
        if steps == 0 and lines:
            return f"`record`: {self.folder} has a run already, and this one starts anew: name another folder"
        (self.folder / "rollouts").mkdir(parents=True, exist_ok=True)
        if pending is not None:
            self._due, self._logged = pending["due"], pending["logged"]
        again = self._due["step"] if self._due is not None else steps + 1
        if text:
            part = self._metrics.with_suffix(".part")
            part.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] < again))
            part.replace(self._metrics)
        for file in (self.folder / "rollouts").glob("step_*.parquet"):
            if int(file.stem.removeprefix("step_")) > steps:
                file.unlink()
        return None

    @property
    def pending(self) -> dict[str, Any]:
        """Figures that are not written yet, in plain types."""
        return {"due": self._due, "logged": self._logged}

    def say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with (self.folder / "run.log").open("a") as log:
            log.write(f"{stamp} {text}\n")

    def step(self, step: int, rows: list[dict[str, Any]], names: list[str], metrics: Mapping[str, float]) -> None:
        """Writes the trajectories of a step; its figures are written once TRL has logged what it trained
        to."""
        import pyarrow
        import pyarrow.parquet

        self.flush()
        extra = sorted({name for row in rows for name in row["extra"]})
        columns: dict[str, Any] = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if name == "scores":
                for score in names:
                    key = f"score_{score}" if score in rows[0] else score
                    columns[key] = pyarrow.array([_or_none(row["scores"][score]) for row in rows], pyarrow.float64())
            elif name == "extra":
                for column in extra:
                    key = f"extra_{column}" if column in rows[0] or column in names else column
                    texts = [None if (value := own.get(column)) is None else str(value) for own in values]
                    columns[key] = pyarrow.array(texts, pyarrow.string())
            elif name in ("reward", "advantage", "metric_value"):
                columns[name] = pyarrow.array([_or_none(value) for value in values], pyarrow.float64())
            elif name in ("prompt_ids", "token_ids"):
                columns[name] = pyarrow.array(values, pyarrow.list_(pyarrow.int32()))
            else:
                columns[name] = pyarrow.array(values)
        file = self.folder / "rollouts" / f"step_{step}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
        self._due = {"step": step, **metrics}
        rewards = [row["reward"] for row in rows if not math.isnan(row["reward"])]
        if rewards:
            self._due["all/reward/mean"] = sum(rewards) / len(rewards)

    def logged(self, figures: Mapping[str, Any]) -> None:
        for name, value in figures.items():
            if isinstance(value, int | float) and not name.startswith("eval_") and math.isfinite(value):
                self._logged.setdefault(name, []).append(value)

    def flush(self) -> None:
        """Writes the figures of the step that was begun last, with the means of what TRL logged meanwhile."""
        if self._due is None:
            return
        means = {name: sum(values) / len(values) for name, values in self._logged.items()}
        with self._metrics.open("a") as file:
            file.write(json.dumps(means | self._due) + "\n")
        self._due = None
        self._logged = {}


def _or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _refuse(reasons: list[str]) -> None:
    """Raises on every process if one of them has a reason."""
    if told := list(dict.fromkeys(gather_object(reasons))):
        raise AttachError("\n".join(told))


def _callback(trainer: Any, record: _Record | None) -> TrainerCallback:
    """Keeps the state in checkpoints, and the record's figures."""
    sieve: Sieve = trainer.sieve
    writes = record if trainer.accelerator.is_main_process else None

    def file_in(folder: str | os.PathLike[str]) -> Path:
        return Path(folder) / f"tamis_sieve_{trainer.accelerator.process_index}.pt"

    def place_in_batch() -> int:
        return int(trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations))

    def layout() -> dict[str, int]:
        """What the rest of a generation batch is cut for."""
        return {
            "number of processes": trainer.accelerator.num_processes,
            "`per_device_train_batch_size`": trainer.args.per_device_train_batch_size,
            "`steps_per_generation`": trainer.args.steps_per_generation,
            "`num_iterations`": trainer.num_iterations,
        }

    def restore(saved: Mapping[str, Any], folder: Path) -> list[str]:
        """Continues from a checkpoint, or says why it cannot."""
        try:
            sieve.restore(saved)
        except AttachError as error:
            return [str(error)]
        trainer._step = saved["place_in_batch"]
        trainer._buffered_inputs = None
        if not saved["place_in_batch"]:
            return []
        now, then = layout(), saved["layout"]
        if reasons := [f"{name} is {now[name]} and was {then[name]}" for name in now if now[name] != then[name]]:
            return [
                f"the checkpoint is from inside a generation batch, whose rest is cut otherwise: {', '.join(reasons)}; "
                "resume with the same, or from a checkpoint between batches"
            ]
        device = trainer.accelerator.device
        try:
            # Without an index: several processes on a CPU have `cpu:0`, which PyTorch does not load to.
            location = "cpu" if device.type == "cpu" else device
            rest = torch.load(file_in(folder), map_location=location, weights_only=True)
        except Exception as error:
            return [
                f"the rest of the checkpoint's generation batch cannot be loaded ({file_in(folder)}: {error}): if the "
                "run ended while it was saved, resume from an earlier checkpoint"
            ]
        trainer._buffered_inputs = rest["inputs"]
        return []

    class TamisSieve(TrainerCallback, ExportableState):
        def state(self) -> dict[str, Any]:
            saved = sieve.state() | {"place_in_batch": place_in_batch(), "layout": layout()}
            if writes is not None:
                saved["record"] = writes.pending
            return {"args": {}, "attributes": {"saved": saved}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kept = (state.stateful_callbacks or {}).get("TamisSieve") if state.global_step > 0 else None
            saved = kept["attributes"]["saved"] if kept is not None else {}
            if saved:
                folder = sieve._resumed_from or Path(args.output_dir) / f"checkpoint-{state.global_step}"
                _refuse(restore(saved, Path(folder)))
            elif state.global_step > 0:
                _log.warning(
                    "the checkpoint was saved without a sieve: the data start with their first prompts again, also "
                    "with those that were trained on before"
                )
                # Callbacks whose state a checkpoint lacks are not saved by later ones.
                state.stateful_callbacks = (state.stateful_callbacks or {}) | {"TamisSieve": self.state()}
            reason = writes.begin(sieve._steps, saved.get("record")) if writes is not None else None
            _refuse([] if reason is None else [reason])

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if place_in_batch() and trainer._buffered_inputs is not None:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                folder.mkdir(parents=True, exist_ok=True)
                torch.save({"inputs": trainer._buffered_inputs}, file_in(folder))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if writes is not None and logs and trainer.model.training:
                writes.logged(logs)
                if not place_in_batch():
                    writes.flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if writes is not None:
                writes.flush()

    return TamisSieve()


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
    "on_exhausted": (lambda value: value in ("use_partial", "stop"), "TRL says when training ends: use `next_epoch`"),
    "surplus": (
        lambda value: value == "carry",
        "TRL takes what it is given for sampled by the weights of now, and would train on groups of older ones without "
        "a correction: use `discard`",
    ),
    "refill": (lambda value: value is False, "a batch would stay short, and TRL trains on batches of one size only"),
    "rounds_in_flight": (lambda value: value not in (None, 1), "TRL generates one batch at a time"),
    "screen_first": (lambda value: value is not None, "TRL generates all completions of a prompt at once"),
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

    Each generation batch has as many groups as it had, all of which the filter kept. The prompts are drawn
    from the training data in TRL's order and continue where the last batch ended, also after
    `resume_from_checkpoint`. Like TRL, a pass over the data leaves out the rows at its end that are fewer
    than a batch. Evaluation is untouched. With a filter that keeps everything, losses are those of the
    trainer alone, to the bit.

    Arguments:
        trainer: changed in place and returned. `trainer.sieve` has `totals`, `report` and `settings`
            afterwards.
        filter: a `tamis.Filter`, the name of a kind, or the keys of `filter` in a configuration. None keeps
            every group: for a `record` of what the trainer does alone.
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
    if isinstance(owner, _Sieved):
        raise AttachError("this trainer has a sieve already: make another trainer")
    kinds: Any = trl
    if not isinstance(trainer, (kinds.GRPOTrainer, kinds.RLOOTrainer)):
        why = (
            "it trains while it generates, so there is no batch to fill"
            if name == "AsyncGRPOTrainer"
            else "it is neither a GRPOTrainer nor an RLOOTrainer of TRL, nor derived from one"
        )
        raise AttachError(f"{name}: {why}")
    reasons = _obstacles(owner)
    if record is not None and Path(record).exists() and not Path(record).is_dir():
        reasons.append(f"`record`: {record} is a file, and a folder is written")
    judge, metric = _judge(owner, filter, metric, reasons)
    scheduler = _scheduler(owner, judge, metric, dict(schedule or {}), reasons)
    if reasons or scheduler is None:
        raise AttachError("\n".join(reasons))

    kept = None if record is None else _Record(Path(record))
    owner.sieve = Sieve(owner, judge, metric, scheduler, kept, owner.args.seed if seed is None else seed)
    owner.__class__ = type(f"Sieved{name}", (_Sieved, type(owner)), {})
    owner.add_callback(_callback(owner, kept))
    if owner.accelerator.is_main_process:
        told = [
            f"{name} trains on {'every group' if judge is None else f'groups that the filter keeps ({judge.rule})'}.",
            "Gradient norms are 3 to 4 times larger if most groups were uniform: `max_grad_norm` "
            f"({owner.args.max_grad_norm}) clips more.",
            "An epoch of TRL is still so many batches; `sieve/epoch` counts passes over the data.",
        ]
        if owner.args.beta:
            told.append(f"With beta = {owner.args.beta} a dropped group loses its KL term too.")
        _log.warning("%s", " ".join(told))
    return trainer


_OTHERWISE = {
    "GRPOWithReplayBufferTrainer": "replaces groups without signal itself, by older ones: use GRPOTrainer",
    "MiniLLMTrainer": "learns from a teacher, whether rewards differ or not",
}
"""Trainers of trl.experimental that rewards do not decide about."""


def _moved(cls: type) -> list[str]:
    """Which of the three methods are not what they were in the versions of `TESTED`."""
    reasons = []
    for method, parameters in _SEAM.items():
        found = list(inspect.signature(getattr(cls, method)).parameters) if hasattr(cls, method) else None
        if found != parameters:
            seen = "is missing" if found is None else f"has the parameters {', '.join(found)}"
            reasons.append(f"{cls.__name__}.{method} of TRL {trl.__version__} {seen}: versions that work are {TESTED}")
    return reasons


def _obstacles(trainer: Any) -> list[str]:
    """Why the trainer itself cannot have a sieve."""
    cls = type(trainer)
    reasons = _moved(cls)
    reasons += [f"{base.__name__} {_OTHERWISE[base.__name__]}" for base in cls.__mro__ if base.__name__ in _OTHERWISE]
    for method in ("get_train_dataloader", "_get_train_sampler"):
        if getattr(cls, method).__module__.partition(".")[0] not in ("trl", "transformers"):
            reasons.append(
                f"{cls.__name__}.{method} is your own, and the sieve takes prompts in the order of TRL's sampler"
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


def _judge(
    trainer: Any, filter: Filter | str | Mapping[str, Any] | None, metric: str | None, reasons: list[str]
) -> tuple[Filter | None, str | None]:
    """The filter and the name of what it looks at; None: the sum of the rewards."""
    judge = None
    try:
        if filter is None or isinstance(filter, Filter):
            judge = filter
        else:
            judge = Filter(**({"kind": filter} if isinstance(filter, str) else dict(filter)))
    except (ConfigError, TypeError, ValueError) as error:
        reasons.append(f"`filter`: {error}")
    named = None if judge is None else judge.settings.get("metric")
    if metric is not None and named is not None and metric != named:
        reasons.append(f"`metric` is {metric!r}, and the filter's own is {named!r}: give one of them")
    metric = metric if metric is not None else named
    metrics = [*trainer.reward_func_names, "length"]
    if metric in ("reward", "score", "seq_reward") and metric not in metrics:
        return judge, None
    if metric is not None and metric not in metrics:
        reasons.append(f"`metric`: there is no reward function {metric!r}; there are {', '.join(metrics)}")
    return judge, metric


def _scheduler(
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
