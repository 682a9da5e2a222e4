"""Rounds of groups until a generation batch is full, and the class that comes before the trainer's own."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import gather_object

from .._native import Filter
from ..schedule import (
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
from .errors import AttachError, NothingKept
from .record import Record
from .rows import (
    as_integers,
    count_tokens,
    environments_for,
    is_cut,
    join_rows,
    metric_values,
    normalized_sums,
    numbered,
    rounded,
    split_rows,
    take_extra,
    weighted_sums,
)

_log = logging.getLogger("tamis.trl")

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


class Generated(BaseException):
    """Leaves TRL's method after generation, with the prompts and what `_generate` returned. No handler of
    errors on the way is meant to see it."""

    def __init__(self, prompts: list[Any], parts: tuple[Any, ...]) -> None:
        super().__init__()
        self.prompts = prompts
        self.parts = parts


@dataclass
class Member:
    """A completion on the process that generated it."""

    row: dict[str, Any]
    prompt: Any
    parts: tuple[Any, ...]
    extra: dict[str, Any]


@dataclass
class Group:
    """The facts about a group that every process knows."""

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


class Prompts:
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


def restored_scheduler(state: Mapping[str, Any], now: Mapping[str, Any]) -> Scheduler:
    """The scheduler of a checkpoint's state. Raises `AttachError` if its settings or `data` are not those of
    now."""
    restored = Scheduler.restore(state["scheduler"])
    must_equal(now, restored.settings | state["data"])
    return restored


def must_equal(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raises `AttachError` if a setting is not what it was in the checkpoint."""
    if differing := [name for name in now if now[name] != then.get(name)]:
        raise AttachError(
            "the checkpoint's sieve has other settings: "
            + ", ".join(f"`{name}` is {now[name]} and was {then.get(name)}" for name in sorted(differing))
        )


class Sieve:
    """The sieve of a trainer: `trainer.sieve`."""

    def __init__(
        self,
        trainer: Any,
        filter: Filter | None,
        metric: str | None,
        scheduler: Scheduler,
        record: Record | None,
        seed: int,
    ) -> None:
        self._trainer = trainer
        self._filter = filter
        self._metric = metric
        self._scheduler = scheduler
        self._record = record
        shuffle = getattr(trainer, "shuffle_dataset", True) is not False
        self._dataset = trainer.train_dataset
        self._prompts = Prompts(len(trainer.train_dataset), scheduler.settings["train_batch_size"], shuffle, seed)
        self._scheduler.set_num_prompts(self._prompts.num_in_pass)
        self._next_group = 0
        self._steps = 0
        self._resumed_from: str | os.PathLike[str] | None = None
        self._run: str | None = None
        self._is_rolling = False
        self._batch: tuple[list[Member], torch.Tensor, int] | None = None
        self.report: dict[str, Any] | None = None
        """Numbers of the last generation batch; `text` has them as text, `metrics` by name."""

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Where every group went so far: each place with its groups, trajectories, turns and tokens."""
        return self._scheduler.totals

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the scheduler."""
        return self._scheduler.settings

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint, in plain types: equal on every process."""
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
        """The settings, besides those of the scheduler, that decide which prompts come and how they are judged."""
        prompts = self._prompts
        return {"rows": prompts.num_rows, "shuffle": prompts.shuffle, "seed of the prompts": prompts.seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from such a state. Raises `AttachError` if the settings or the data differ from those of
        the state."""
        self._scheduler = restored_scheduler(state, self.settings | self._data)
        self._prompts.restore(state["epoch"], state["place"])
        self._next_group = state["next_group"]
        self._steps = state["steps"]

    # The inputs of TRL's method while it runs.

    def _generate(self, prompts: list[Any], generate: Callable[[list[Any]], tuple[Any, ...]]) -> tuple[Any, ...]:
        if self._is_rolling:
            raise Generated(prompts, generate(prompts))
        assert self._batch is not None
        members, _, num_tokens = self._batch
        # TRL's own list: environments may have been given other prompts than those of the answers.
        prompts[:] = [member.prompt for member in members]
        return join_rows([member.parts for member in members], num_tokens, self._trainer.accelerator.device)

    # A generation batch.

    def _fill(self, parent: Any) -> dict[str, Any]:
        """Rounds until the batch is full, then TRL's method with the kept rows."""
        before = self.state()
        try:
            close, groups, members = self._rounds(parent)
            batch = [groups[id] for id in [*close.trained, *close.duplicated]]
            for group in batch:
                group.verdict = "kept_when_insufficient" if group.id in close.kept_when_insufficient else "trained"
            unchosen = self._unchosen(batch)
            output = self._train_on(parent, batch, members, unchosen)
            advantages = self._trainer.accelerator.gather(output["advantages"]).tolist()
            idle = self._idle(batch, output, advantages, unchosen)
            close.report["metrics"] |= Counter(f"train/num_left_out/{reason}" for reason in idle.values())
            self._steps += 1
            self._scheduler.handle(Trained(left_out=len(idle), tokens=sum(groups[id].num_tokens[i] for id, i in idle)))
            self._scheduler.handle(Published(self._steps))
            if self._record is not None:
                self._write(close, list(groups.values()), batch, members, idle, advantages)
        except BaseException:
            # A caller that catches it and continues finds no prompt missing, and no column of a batch that
            # does not exist.
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
        return output

    def _rounds(self, parent: Any) -> tuple[StepClose, dict[int, Group], dict[tuple[int, int], Member]]:
        groups: dict[int, Group] = {}
        members: dict[tuple[int, int], Member] = {}
        skipped: list[StepClose] = []
        dropped: Counter[str] = Counter()
        commands: deque[Command] = deque(self._scheduler.handle(BeginStep()))
        while commands:
            match commands.popleft():
                case NextEpoch():
                    self._prompts.next_epoch()
                case Draw(round=round, num_prompts=num):
                    chunk = self.settings["train_batch_size"]
                    if self.settings["size"] != "fixed":
                        # A deficit round of several chunks would continue after the batch is full.
                        num = min(num, chunk)
                    drawn = [
                        Group(self._next_group + i, row, self._prompts.epoch, round - 1)
                        for i, row in enumerate(self._prompts.take(num))
                    ]
                    self._next_group += len(drawn)
                    groups |= {group.id: group for group in drawn}
                    told = Dispatched([group.id for group in drawn], self._steps, self._prompts.is_exhausted)
                    commands.extend(self._scheduler.handle(told))
                    for start in range(0, len(drawn), chunk):
                        self._roll(parent, drawn[start : start + chunk], members)
                    for group in drawn:
                        scored = Scored(group.id, group.values, num_tokens=sum(group.num_tokens))
                        commands.extend(self._scheduler.handle(scored))
                case Judged(group=id, kept=False, reason=reason):
                    groups[id].verdict = str(reason)
                    dropped[f"train/num_dropped/{reason}"] += 1
                    if self.settings["on_limit"] != "keep_dropped":
                        self._forget(groups[id], members)
                case RoundComplete(report=report):
                    self._say(report["text"])
                case StepReady(close=close):
                    self._say(close.report["text"])
                    attempts = [each.report["metrics"] for each in [*skipped, close]]
                    close.report["metrics"] = _combined(attempts) | dropped
                    return close, groups, members
                case SkipStep(close=close):
                    # No group at all was kept, and TRL trains on every batch: the next attempt is for the
                    # same one.
                    skipped.append(close)
                    commands.extend(self._scheduler.handle(BeginStep()))
                case Stop(diagnosis=diagnosis):
                    error = NothingKept(diagnosis)
                    self._say(str(error))
                    raise error
        raise RuntimeError("the scheduler neither filled the batch nor gave a reason")

    def _forget(self, group: Group, members: dict[tuple[int, int], Member]) -> None:
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

    def _roll(self, parent: Any, chunk: list[Group], members: dict[tuple[int, int], Member]) -> None:
        """Has TRL generate and score these groups, each process its share of the rows."""
        trainer = self._trainer
        n, world, rank = trainer.num_generations, trainer.accelerator.num_processes, trainer.accelerator.process_index
        places = [(group.id, i) for group in chunk for i in range(n)]
        # Every process has equally many: if groups do not divide, some rows are generated that are not
        # counted.
        share = -(-len(places) // world)
        by_id = {group.id: group for group in chunk}
        local = places[rank * share : (rank + 1) * share]
        padding = [places[-1]] * (share - len(local))
        # Like TRL, each member has a row of its own: environments may write into it.
        rows = trainer.data_collator([dict(self._rows[by_id[id].prompt_id]) for id, _ in [*local, *padding]])

        self._is_rolling = True
        with environments_for(trainer, len(rows), are_answered=False):
            try:
                parent._generate_and_score_completions(rows)
                raise AttachError(f"{type(trainer).__name__} generates without `_generate`")
            except Generated as made:
                prompts, parts = made.prompts, made.parts
            finally:
                self._is_rolling = False
            ids, completions = parts[1], parts[3] if len(parts) > 3 else parts[2]
            rewards = parent._calculate_rewards(rows, prompts, completions, ids)

        extra = take_extra(trainer, len(rows))
        facts = torch.tensor(
            [[num_tokens, is_cut(trainer, own)] for num_tokens, own in zip(count_tokens(parts), ids, strict=True)],
            device=trainer.accelerator.device,
        )
        facts = trainer.accelerator.gather(facts).tolist()
        made_of = zip(rows, prompts, split_rows(parts, len(rows)), extra, strict=True)
        for place, (row, prompt, part, more) in zip(local, made_of, strict=False):
            members[place] = Member(row, prompt, part, more)
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

    def _values(self, group: Group) -> list[float]:
        """The filter's metric of each member."""
        weights = self._trainer.reward_weights.cpu()
        normalizes = self._normalizes_each and self._filter_kind == "variance"
        values = metric_values(
            self._metric,
            self._trainer.reward_func_names,
            torch.stack(group.rewards).cpu(),
            group.num_tokens,
            lambda rewards: (normalized_sums if normalizes else weighted_sums)(rewards, weights),
        )
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

    def _unchosen(self, batch: list[Group]) -> list[bool]:
        """Which members of the batch the filter leaves out; empty if it chooses whole groups."""
        if self._filter is None or self._filter_kind != "within_group":
            return []
        return [
            chosen is False
            for group in batch
            for chosen in self._filter.judge([group.values])[0].members or [None] * len(group.values)
        ]

    def _train_on(
        self, parent: Any, batch: list[Group], members: dict[tuple[int, int], Member], unchosen: list[bool]
    ) -> dict[str, Any]:
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
        if unchosen:
            # TRL leaves such members out of its statistics.
            rewards[torch.tensor(unchosen, device=rewards.device)] = math.nan
        num_tokens = sum(sum(group.num_tokens) for group in batch)
        local = [mine[place] for place in places[rank * share : (rank + 1) * share]]
        columns = sorted({name for member in mine.values() for name in member.extra})
        if columns:
            extra = {name: [member.extra.get(name) for member in local] for name in columns}
            trainer._pending_extra_logs.update(extra)
        self._batch = (local, rewards, num_tokens)
        try:
            with environments_for(trainer, len(local), are_answered=True):
                output: dict[str, Any] = parent._generate_and_score_completions([dict(member.row) for member in local])
        finally:
            self._batch = None
        if len(output["advantages"]) != len(local):
            raise AttachError(
                f"{type(trainer).__name__} made {len(output['advantages'])} rows of {len(local)}: it drops or adds "
                "members itself, so the sieve does not know what is trained on"
            )
        return output

    def _idle(
        self, batch: list[Group], output: dict[str, Any], advantages: list[float], unchosen: list[bool]
    ) -> dict[tuple[int, int], str]:
        """Members of kept groups that bear no loss, and why; those that the filter left out are masked, as TRL
        does itself with truncated completions."""
        idle = {}
        places = []
        for group in batch:
            for i, reward in enumerate(group.rewards):
                places.append((group.id, i))
                if group.verdict != "trained":
                    # Groups that fill up a batch are counted whole.
                    continue
                if getattr(self._trainer, "mask_truncated_completions", False) and group.is_truncated[i]:
                    idle[places[-1]] = "truncated"
                elif torch.isnan(reward).all() and advantages[len(places) - 1] == 0:
                    # TRL 1.0 takes such a reward for 0, and trains on it.
                    idle[places[-1]] = "unscored"
                elif unchosen and unchosen[len(places) - 1]:
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
        groups: list[Group],
        batch: list[Group],
        members: dict[tuple[int, int], Member],
        idle: dict[tuple[int, int], str],
        advantages: list[float],
    ) -> None:
        """Rows of the run folder, by the main process. If it cannot, the error is raised on every process, for
        the others would wait."""
        trainer = self._trainer
        places = [(group.id, i) for group in batch for i in range(len(group.rewards))]
        advantage = dict(reversed(list(zip(places, advantages, strict=True))))
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        told = {}
        for place, member in members.items():
            prompt_ids, ids = (as_integers(part) for part in member.parts[:2])
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
        assert self._record is not None
        failed: list[str] = []
        if trainer.accelerator.is_main_process:
            try:
                names = numbered(trainer.reward_func_names)
                rows = self._told_rows(groups, told, names, idle, advantage)
                self._record.step(self._steps, rows, names, close.report["metrics"])
            except Exception as error:
                failed.append(f"`record`: step {self._steps} cannot be written: {error}")
        if failed := gather_object(failed):
            raise OSError(failed[0])

    def _told_rows(
        self,
        groups: list[Group],
        told: Mapping[tuple[int, int], Mapping[str, Any]],
        names: list[str],
        idle: Mapping[tuple[int, int], str],
        advantage: Mapping[tuple[int, int], float],
    ) -> list[dict[str, Any]]:
        trainer = self._trainer
        weights = trainer.reward_weights.cpu()
        rows = []
        for group in groups:
            totals = weighted_sums(torch.stack(group.rewards).cpu(), weights)
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
                        "scores": dict(zip(names, map(rounded, reward.tolist()), strict=True)),
                        "extra": facts["extra"],
                        "reward": totals[i],
                        "advantage": None if (group.id, i) in idle else advantage.get((group.id, i)),
                        "metric": self._metric or "reward",
                        "metric_value": group.values[i],
                        "verdict": idle.get((group.id, i), group.verdict),
                        "finish_reason": "length" if group.is_truncated[i] else "stop",
                    }
                )
        return rows


class Attached:
    """A trainer with a sieve, of either kind."""


class Sieved(Attached):
    """Comes before the trainer's own class."""

    sieve: Sieve
    model: Any

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        # The trainer's own class may have other parameters.
        parent: Any = super()
        checkpoint = keywords.get("resume_from_checkpoint", arguments[0] if arguments else None)
        self.sieve._resumed_from = checkpoint if isinstance(checkpoint, str | os.PathLike) else None
        return parent.train(*arguments, **keywords)

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
