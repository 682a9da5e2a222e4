"""The replay buffer: which groups verl's trainer gets, and how many prompts are generated for them."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as VerlsReplayBuffer
from verl.utils.skip import SkipManager

from .errors import KWARGS, SamplerError, nothing_kept
from .settings import REWARD, read_settings

_log = logging.getLogger("tamis.verl")
_log.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

_TRAIN = "train"
_STATUSES = {"pending", "running", "finished", "failure"}
_MOST_STEPS_IN_FLIGHT = 10
"""Steps whose groups are in flight at once, at most, if no limit is lower."""
_MOST_BATCHES_DROPPED, _LEAST_GROUPS_IN_A_BATCH = 10, 32
"""Without a limit: how many batches of groups in a row may come back of which none is kept, and how many groups
such a batch has at least."""
_SECONDS_BETWEEN_LINES = 60
_MEMORY = 64
"""The keep rate is of about as many groups as were drawn for the last so many that were trained on."""

_PLACES = {
    "drawn": "groups/drawn_total",
    "trained": "groups/trained_total",
    "left_out": "trajectories/left_out_total",
    "filled": "groups/kept_when_insufficient_total",
    "dropped": "training/filter_groups/evicted_samples",
    "failed": "training/rollout_failure/evicted_samples",
    "stale": "training/off_policy/evicted_samples",
    "surplus": "training/filter_groups/discarded_surplus_samples",
}
"""Names of the counts, verl's own if it has one. If a step has several batches, verl adds up its own names, and
others that have "total" in them and neither "min" nor "max"."""


class ReplayBuffer(VerlsReplayBuffer):  # type: ignore[misc]
    """A replay buffer for `trainer.v1.sampler.custom_sampler` of verl 0.9.1, in each of its three modes.

    `sampler_kwargs` may have:
        filter: the name of a kind (default `variance`), its keys, or null: every group that did not fail.
        metric: what the filter looks at: `reward` (the sum of `rm_scores`) or a name that the reward function
            returns. Default: `algorithm.filter_groups.metric`.
        max_num_gen_batches: how many times `data.train_batch_size` groups a batch may take. Default:
            `algorithm.filter_groups.max_num_gen_batches` if that is above 0. Otherwise it is 10 if `on_limit` is
            not `error`. With `error` there is then no limit, but a run ends that keeps none of 10 batches of
            groups in a row, each of which counts as 32 groups at least. Null: no limit at all.
        on_limit: what happens then. `error` raises `NothingKept`, `use_partial` returns what was kept,
            `keep_dropped` fills up with groups that the filter dropped. If nothing was kept, all three raise.
        refill: `expected` draws as many prompts as the batch lacks by the keep rate so far; `exact` draws one for
            each group that is lost.
        surplus: `discard` or `carry` kept groups beyond a batch. Default: `discard` in
            the mode `sync` and `carry` in the others.
        max_lag: how many policy versions later a group may be trained on. Default: one less than
            `trainer.v1.sampler.max_off_policy_threshold`, which counts the versions that a group spans.
        poll_interval: seconds between two looks at the queue (default 2).

    Raises `SamplerError` with every reason for which the settings cannot be.
    """

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: Mapping[str, Any],
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Mapping[str, Any] | None,
        refill_fn: Callable[[int], Any] | None = None,
    ) -> None:
        # verl passes a method of its trainer, and so the configuration that the other arguments are parts of.
        config = getattr(getattr(refill_fn, "__self__", None), "config", None)
        settings = read_settings(
            sampler_kwargs, trainer_mode, max_off_policy_threshold, max_off_policy_strategy, config
        )
        if refill_fn is None:
            raise SamplerError("`refill_fn` is None: no group can be replaced")
        super().__init__(
            trainer_mode=trainer_mode,
            trainer_config=trainer_config,
            max_off_policy_threshold=max_off_policy_threshold,
            max_off_policy_strategy=max_off_policy_strategy,
            sampler_kwargs=sampler_kwargs,
            poll_interval=settings.poll_interval,
            refill_fn=refill_fn,
        )
        self.settings = settings
        self._is_sync = trainer_mode == "sync"
        asynchronous = {} if self._is_sync else trainer_config
        self._num_batches_a_step = asynchronous.get("parameter_sync_step", 1)
        self._num_steps_ahead = asynchronous.get("num_warmup_batches", 0)

        self._numbers: dict[str, int] = {}
        """Of every group in the queue, in the order in which they were drawn."""
        self._num_drawn = 0
        self._steps: dict[str, int] = {}
        self._tags: dict[str, dict[str, Any]] = {}
        self._rows: dict[str, list[str]] = {}
        self._in_flight: list[str] = []
        self._kept: set[str] = set()
        self._unscored: dict[str, set[int]] = {}
        """Members of kept groups that are not trained on, for they have no metric."""
        self._held: set[str] = set()
        """Dropped groups that fill a batch at the limit."""
        self._settled: dict[str, list[float] | None] = {}
        """What came back since the last batch: the metric of each member; None if the group is lost."""
        # Until something is known, as if a few had been kept.
        self._num_judged = self._num_good = 4.0
        self._num_in_a_row = 0
        """Groups that came back since the last one that was kept."""
        self._step_size = 0
        self._step = self._num_taken = 0
        self._group_size = 0
        self._is_metric_known = False
        self._names: set[str] = set()
        self._num_without = self._num_groups_without = 0
        """What the reward function returned, and the trajectories and groups without the metric, until it is known."""
        self._num_waiting = 0
        self._begin_report()
        self._begin_figures()
        rule = "every group" if settings.filter is None else f"{settings.filter.rule}, by `{settings.metric}`"
        _log.info("tamis.verl.ReplayBuffer trains on %s (refill: %s)", rule, settings.refill)

    @SkipManager.annotate_tq(role="rollout_tq", phase="sample")  # type: ignore[untyped-decorator]
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The `batch_size` oldest groups that were kept, as soon as there are so many, and counts of groups
        by place. Members without a metric are left out. In the mode `sync` nothing is in flight then. Batches
        of
        validation are verl's own.

        Raises `NothingKept` at the limit, and `SamplerError` if the metric is not there.
        """
        if partition_id != _TRAIN:
            batch: tuple[KVBatchMeta, dict[str, Any]] = super().sample(global_steps, partition_id, batch_size)
            return batch
        self._step_size = batch_size * self._num_batches_a_step
        self._wait(global_steps, batch_size)
        chosen = self._oldest(self._kept)[:batch_size]
        keys: list[str] = []
        left_out: list[str] = []
        for uid in chosen:
            unscored = self._unscored.get(uid, ())
            for key in self._rows[uid]:
                (left_out if _member(key) in unscored else keys).append(key)
        tq.kv_clear(partition_id=_TRAIN, keys=[*chosen, *left_out])
        self._counts["left_out"] += len({key.rsplit("_", 1)[0] for key in left_out})
        self._count_out(chosen, "trained")
        self._clear(self._held, "dropped")
        if not self.settings.carries:
            self._clear(self._kept, "surplus")
        self._settled.clear()
        self._step, self._num_taken = global_steps, self._taken(global_steps) + batch_size
        remembered = _MEMORY / (_MEMORY + batch_size)
        self._num_judged, self._num_good = remembered * self._num_judged, remembered * self._num_good
        return KVBatchMeta(partition_id=_TRAIN, keys=keys, tags=[self._tags[key] for key in keys]), self._report()

    def wait_for_sampleable(
        self, global_steps: int, partition_id: str, target_count: int
    ) -> tuple[set[str], dict[str, Any]]:
        """Waits until `target_count` groups were kept. Returns all that were, and counts of the other groups
        by place. Raises what `sample` raises."""
        self._refuse_validation(partition_id)
        self._wait(global_steps, target_count)
        # verl gives means of such a wait the weight 0: they are in the report of the next batch.
        return set(self._kept), self._report(with_figures=False)

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """Number of kept groups that are not too old. Raises `SamplerError` if the metric is not there."""
        self._refuse_validation(partition_id)
        self._poll()
        return len(self._kept) - len(self._stale(global_steps))

    @staticmethod
    def _refuse_validation(partition_id: str) -> None:
        if partition_id != _TRAIN:
            raise ValueError(f"partition {partition_id!r}: only groups of {_TRAIN!r} are judged and waited for")

    # The groups that are waited for.

    def _wait(self, global_steps: int, target: int) -> None:
        """Draws prompts and waits until `target` groups are kept."""
        self._step_size = max(self._step_size, target)
        last_line = time.time()
        while True:
            self._poll()
            self._clear(self._stale(global_steps), "stale")
            if len(self._kept) >= target and not self._waits_for_more(global_steps):
                return
            if number := self._num_lacking(global_steps, target):
                self.refill_fn(number)
            elif not self._in_flight:
                self._reach_limit(global_steps, target)
                return
            if time.time() - last_line > _SECONDS_BETWEEN_LINES:
                last_line = time.time()
                _log.info("%s, %d in flight", self._describe(global_steps, target), len(self._in_flight))
            time.sleep(self.poll_interval)

    def _waits_for_more(self, global_steps: int) -> bool:
        if self._is_sync:
            # verl puts the servers to sleep after a batch.
            return bool(self._in_flight)
        threshold = self.settings.threshold
        return (
            self.settings.waits
            and threshold is not None
            and any(self._span(uid, global_steps) >= threshold for uid in self._in_flight)
        )

    def _num_lacking(self, global_steps: int, target: int) -> int:
        """How many prompts to draw, so that those in flight probably fill the batch. In the asynchronous modes they
        fill the rest of the step, and as many steps ahead as verl has batches of warm-up."""
        wanted = target
        if not self._is_sync:
            wanted = max(target, self._step_size - self._taken(global_steps))
            wanted += int(self._num_steps_ahead * self._step_size)
        to_keep = wanted - len(self._kept)
        if to_keep <= 0:
            return 0
        enough = float(to_keep)
        if self.settings.refill == "expected":
            rate = self._num_good / self._num_judged
            # Half a group less, and a tenth of a deviation, because groups kept beyond the batch are
            # discarded.
            margin = 0.0 if self.settings.carries else 0.5 + 0.1 * math.sqrt(to_keep * (1 - rate))
            enough = max(enough, (to_keep - margin) / rate)
        # A stretch of uniform groups makes the rate small, so the number that follows from it is not drawn at
        # once.
        enough = min(enough, max(float(to_keep), _MOST_STEPS_IN_FLIGHT * float(self._step_size)))
        lacking = math.ceil(enough - len(self._in_flight) - 1e-9)
        if self.settings.max_num_gen_batches is not None:
            limit = self.settings.max_num_gen_batches * self._step_size
            lacking = min(lacking, limit - len(self._settled) - len(self._in_flight))
        elif self.settings.ends_if_dead:
            limit = _MOST_BATCHES_DROPPED * max(self._step_size, _LEAST_GROUPS_IN_A_BATCH)
            lacking = min(lacking, limit - self._num_in_a_row - len(self._in_flight))
        return max(0, lacking)

    def _taken(self, global_steps: int) -> int:
        """Groups that earlier batches of this step had."""
        return self._num_taken if self._step == global_steps else 0

    def _reach_limit(self, global_steps: int, target: int) -> None:
        """All that may be drawn has come back, and the batch is short."""
        said = self._describe(global_steps, target)
        if not self._kept or self.settings.on_limit == "error":
            # Without a limit it is what came back in vain.
            limit = self.settings.max_num_gen_batches or math.ceil(len(self._settled) / self._step_size)
            judge, metric = self.settings.filter, self.settings.metric
            raise nothing_kept(said, self._settled.values(), self._step_size, limit, judge, metric)
        if self.settings.on_limit == "keep_dropped":
            fill = self._oldest(self._held)[: target - len(self._kept)]
            self._held.difference_update(fill)
            self._kept.update(fill)
            self._counts["filled"] += len(fill)
        _log.warning("%s: %s", said, self.settings.on_limit)

    def _describe(self, global_steps: int, target: int) -> str:
        lost = sum(values is None for values in self._settled.values())
        return (
            f"step {global_steps}: {len(self._kept)} of {target} groups kept after {len(self._settled)} came back, "
            f"{lost} of them failed or too old"
        )

    # The groups in the queue.

    def _poll(self) -> None:
        """Looks through the queue, and judges what has finished."""
        self._tags = (tq.kv_list() or {}).get(_TRAIN, {})
        self._rows = defaultdict(list)
        prompts = {}
        for key, tag in self._tags.items():
            if tag.get("is_prompt", False):
                prompts[key] = tag
            else:
                # A row of a member: `{uid}_{member}_{index}`.
                self._rows[key.rsplit("_", 2)[0]].append(key)
        self._steps = {uid: tag["global_steps"] for uid, tag in prompts.items()}
        by_status: dict[str, list[str]] = defaultdict(list)
        for uid, tag in prompts.items():
            if uid not in self._numbers:
                self._numbers[uid] = self._num_drawn
                self._num_drawn += 1
                self._counts["drawn"] += 1
            if uid not in self._kept and uid not in self._held:
                by_status[tag["status"]].append(uid)
        if unknown := by_status.keys() - _STATUSES:
            raise SamplerError(f"verl gives prompts the status {', '.join(sorted(unknown))}, which 0.9.1 does not have")
        finished, failed = by_status["finished"], by_status["failure"]
        self._in_flight = by_status["pending"] + by_status["running"]

        self._settled |= dict.fromkeys(failed)
        self._num_judged += len(failed)
        self._num_in_a_row += len(failed)
        self._clear(failed, "failed")
        judge = self.settings.filter
        if judge is not None and judge.compares_groups and self._in_flight:
            # Those of a round are judged together.
            self._in_flight += finished
        elif finished:
            self._judge(finished)

    def _judge(self, uids: list[str]) -> None:
        judge = self.settings.filter
        dropped = []
        if judge is None:
            self._settled |= {uid: [math.nan] * len(self._rows[uid]) for uid in uids}
            dropped = [uid for uid in uids if not self._rows[uid]]
        else:
            values = self._values(uids)
            self._settled |= values
            offsets = [0]
            for uid in uids:
                offsets.append(offsets[-1] + len(values[uid]))
                self._unscored[uid] = {i for i, value in enumerate(values[uid]) if not math.isfinite(value)}
            flat = [value for uid in uids for value in values[uid]]
            for uid, verdict in zip(uids, judge.judge(flat, offsets), strict=True):
                if verdict.num_scored:
                    self._figures["scored"] += verdict.num_scored
                    self._metric_sum += verdict.mean * verdict.num_scored
                    self._figures["correct"] += verdict.num_correct or 0
                    if verdict.num_correct is None:
                        self._figures["rated_otherwise"] += 1
                if not verdict.kept:
                    dropped.append(uid)
                    self._reasons[str(verdict.reason)] += 1
                    if verdict.num_scored and verdict.min == verdict.max:
                        self._uniform[verdict.min] += 1
                    if self.settings.on_limit == "keep_dropped" and verdict.num_scored > 1:
                        if len(self._held) < self._step_size:
                            self._held.add(uid)
        self._kept.update(set(uids) - set(dropped))
        self._num_judged += len(uids)
        self._num_good += len(uids) - len(dropped)
        self._num_in_a_row = self._num_in_a_row + len(uids) if len(dropped) == len(uids) else 0
        self._figures["judged"] += len(uids)
        self._figures["rejected"] += len(dropped)
        self._clear(set(dropped) - self._held, "dropped")

    def _values(self, uids: list[str]) -> dict[str, list[float]]:
        """The metric of each member of these groups; NaN if it has none, or no row. A member with several outputs
        has that of the last."""
        last: dict[str, dict[int, str]] = {uid: {} for uid in uids}
        for uid in uids:
            for key in sorted(self._rows[uid], key=lambda key: int(key.rsplit("_", 1)[1])):
                last[uid][_member(key)] = key
                self._group_size = max(self._group_size, _member(key) + 1)
        keys = [key for members in last.values() for key in members.values()]
        if not keys:
            return {uid: [] for uid in uids}
        metric = self.settings.metric
        field = "rm_scores" if metric in REWARD else "extra_fields"
        try:
            found = list(tq.kv_batch_get(keys=keys, partition_id=_TRAIN, select_fields=[field])[field])
        except (KeyError, ValueError) as error:
            raise SamplerError(
                f"the finished group {uids[0]} has no `{field}` in the queue: rewards have to be there before the "
                f"buffer samples. {error}"
            ) from error
        if field == "rm_scores":
            numbers = [_decimal(float(scores.sum())) for scores in found]
        else:
            numbers = self._of_reward_function(keys, found, len(uids))
        of_key = dict(zip(keys, numbers, strict=True))
        places = range(self._group_size)
        return {uid: [of_key.get(members.get(i, ""), math.nan) for i in places] for uid, members in last.items()}

    def _of_reward_function(self, keys: list[str], found: list[Any], num_groups: int) -> list[float]:
        metric = self.settings.metric
        infos = []
        for value in found:
            fields = getattr(value, "data", value)
            infos.append((fields.get("reward_extra_info") if isinstance(fields, Mapping) else None) or {})
        if not self._is_metric_known:
            # Later on a member without it is one that was not scored.
            self._is_metric_known = any(metric in info for info in infos)
            self._names |= {str(name) for info in infos for name in info}
            self._num_without += len(infos)
            self._num_groups_without += num_groups
            # A few may be unscored, but in a whole step some member has it.
            if not self._is_metric_known and 0 < self._step_size <= self._num_groups_without:
                names = ", ".join(f"`{name}`" for name in sorted(self._names))
                raise SamplerError(
                    f"none of the first {self._num_without} trajectories has the metric `{metric}`: the reward "
                    f"function returned {names or 'no names, so it returns a number and no dictionary'}. Set "
                    f"`{KWARGS}.metric` to one of them, or to `reward`"
                )
        numbers = []
        for key, info in zip(keys, infos, strict=True):
            value = info.get(metric)
            try:
                numbers.append(math.nan if value is None else float(value))
            except (TypeError, ValueError):
                raise SamplerError(
                    f"`{metric}` of the trajectory {key} is {value!r}: a filter needs numbers. Set "
                    f"`{KWARGS}.metric` to another name that the reward function returns, or to `reward`"
                ) from None
        return numbers

    def _span(self, uid: str, global_steps: int) -> int:
        """Policy versions from the one that the group was drawn with to the one of now, both counted."""
        return global_steps - self._steps[uid] + 1

    def _stale(self, global_steps: int) -> list[str]:
        threshold = self.settings.threshold
        if threshold is None or self.settings.waits:
            return []
        return [uid for uid in self._kept if self._span(uid, global_steps) > threshold]

    def _oldest(self, uids: Iterable[str]) -> list[str]:
        return sorted(uids, key=lambda uid: (self._steps[uid], self._numbers[uid]))

    # Where groups went.

    def _clear(self, uids: Iterable[str], place: str) -> None:
        """Removes these groups and their rows from the queue."""
        gone = list(uids)
        if gone:
            tq.kv_clear(partition_id=_TRAIN, keys=[*gone, *(key for uid in gone for key in self._rows[uid])])
            self._count_out(gone, place)
        if place == "stale":
            self._settled |= {uid: None for uid in gone if uid in self._settled}

    def _count_out(self, uids: list[str], place: str) -> None:
        for uid in uids:
            del self._numbers[uid]
            self._unscored.pop(uid, None)
        self._kept.difference_update(uids)
        self._held.difference_update(uids)
        self._counts[place] += len(uids)

    def _begin_report(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._uniform: Counter[float] = Counter()

    def _begin_figures(self) -> None:
        self._figures: Counter[str] = Counter()
        self._metric_sum = 0.0

    def _report(self, with_figures: bool = True) -> dict[str, Any]:
        """Reports the counts since the last report. The drawn groups are those that went to the other places,
        plus the change in the number that waits in the queue. Means are over everything since the last report
        that had some."""
        counts, figures = self._counts, self._figures
        report: dict[str, Any] = {name: counts[place] for place, name in _PLACES.items()}
        if self.settings.on_limit != "keep_dropped":
            del report[_PLACES["filled"]]
        report["groups/waiting_change_total"] = len(self._numbers) - self._num_waiting
        report |= {f"groups/dropped/{reason}_total": number for reason, number in self._reasons.items()}
        if with_figures:
            if figures["judged"]:
                report["train/filter_rate"] = figures["rejected"] / figures["judged"]
            if figures["scored"]:
                report["all/filter_metric/mean"] = self._metric_sum / figures["scored"]
                if not figures["rated_otherwise"]:
                    report["all/pass_rate"] = figures["correct"] / figures["scored"]
            self._begin_figures()
        if self._uniform:
            # verl logs it as a table.
            report[DAPO_FILTERED_REWARD_COUNTS_KEY] = dict(self._uniform)
        self._num_waiting = len(self._numbers)
        self._begin_report()
        return report


def _member(key: str) -> int:
    """Which member of its group a row is of: `{uid}_{member}_{index}`."""
    return int(key.rsplit("_", 2)[1])


def _decimal(value: float) -> float:
    """The number that a float of 32 bits was made from, if that has seven digits at most: what sums of rewards differ
    by beyond that is rounding. The sieve inside TRL reads rewards alike."""
    return value if not math.isfinite(value) or value.is_integer() else float(f"{value:.7g}")
