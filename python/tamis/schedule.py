"""The scheduling machine as an object: what happened goes in as an event, what to do comes out as commands.

The machine does no work itself, waits for nothing and looks at no clock: equal events give equal commands. Its whole
state is a text (`Scheduler.snapshot`), so a killed run continues as if it had not been killed.

    scheduler = Scheduler(train_batch_size=2, n=4, filter=Filter("variance"))
    for command in scheduler.handle(BeginStep()):
        match command:
            case Draw(num_prompts=num): ...      # start so many groups, then handle(Dispatched(...))
            case Judged(group=id, kept=kept): ...
            case StepReady(close=close): ...     # train on close.trained, then handle(Trained()), handle(Published(...))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ._native import Config, Filter, Machine

__all__ = [
    "Abort",
    "Aborted",
    "BeginStep",
    "Cancelled",
    "Command",
    "Continue",
    "Dispatched",
    "Draw",
    "Event",
    "Failed",
    "Finish",
    "Judged",
    "NextEpoch",
    "Published",
    "RoundComplete",
    "Sampled",
    "Scheduler",
    "Scored",
    "Screened",
    "SkipStep",
    "StepClose",
    "StepClosed",
    "StepReady",
    "Stop",
    "Train",
    "Trained",
]


@dataclass(frozen=True)
class BeginStep:
    """The driver is ready for the next step: at the start, and after a step was trained or skipped."""


@dataclass(frozen=True)
class Dispatched:
    """Answer to `Draw`: the groups started, in dispatch order."""

    groups: Sequence[int]
    """As many as asked for, or fewer if the epoch ended; numbers greater than any before. With `mode="deficit"` a driver
    that generates in chunks may start fewer, at least one: they are the round then."""
    version: int = 0
    """The policy version that samples them."""
    exhausted: bool = False
    """Whether the epoch has no prompt left."""


@dataclass(frozen=True)
class Sampled:
    """A member of a group was scored, others are still to come; only a streaming schedule wants to know."""

    group: int
    value: float | None = None
    """The filter's metric of the member; None if it has none."""


@dataclass(frozen=True)
class Screened:
    """The first members of a group were scored (`screen_first` starts only these): answered by `Continue`,
    or by `Judged`, which ends the group."""

    group: int
    values: Sequence[float | None]
    """The filter's metric of each of them; NaN or None if it has none."""
    num_tokens: int = 0
    """Completion tokens of these members."""
    num_lost_tokens: int = 0
    """Completion tokens of abandoned attempts at members that were made again."""
    num_turns: int = 0
    """Turns of the policy in these members."""
    num_lost_turns: int = 0
    """Turns of abandoned attempts that were made again."""
    is_identical_in_text: bool = False
    """Whether the texts of these members are the same."""


@dataclass(frozen=True)
class Scored:
    """A group is complete and all its members were scored."""

    group: int
    values: Sequence[float | None]
    """The filter's metric of each member [n]; NaN or None if it has none."""
    num_tokens: int = 0
    """Completion tokens of all members."""
    num_lost_tokens: int = 0
    """Completion tokens of abandoned attempts at members that were made again."""
    num_turns: int = 0
    """Turns of the policy in all members."""
    num_lost_turns: int = 0
    """Turns of abandoned attempts that were made again."""
    is_identical_in_text: bool = False
    """Whether all members' texts are the same."""


@dataclass(frozen=True)
class Failed:
    """A member's generation failed for good, and with it its group."""

    group: int
    num_tokens: int = 0
    num_turns: int = 0


@dataclass(frozen=True)
class Aborted:
    """A group that was to be aborted has stopped."""

    group: int
    num_tokens: int = 0
    num_turns: int = 0


@dataclass(frozen=True)
class Trained:
    """The step was trained."""

    left_out: int = 0
    """Members of the step's groups that bore no loss."""
    tokens: int = 0
    """Their completion tokens."""
    turns: int = 0
    """Their turns."""


@dataclass(frozen=True)
class Published:
    """Weights were published: groups that are dispatched from now on are sampled by them."""

    version: int


@dataclass(frozen=True)
class Cancelled:
    """The run is to end now, between steps or in the middle of generation."""


@dataclass(frozen=True)
class StepClose:
    """Where the groups of a step go. Dropped groups were named by `Judged`, failed ones by the driver."""

    trained: list[int]
    """Groups to train on, in batch order; empty unless the step is ready."""
    kept_when_insufficient: list[int]
    """Those of them that the filter dropped: with `on_limit="keep_dropped"` they fill a batch."""
    duplicated: list[int]
    """Those of them that are trained on once more, one entry for each copy: with `on_limit="duplicate"` the batch is
    `trained` and then these."""
    surplus: list[int]
    """Kept groups to throw away."""
    stale: list[int]
    """Carried groups to throw away because they are too old."""
    carried: list[int]
    """Kept groups to hold for the next step."""
    aborted: list[int]
    """Groups that were aborted."""
    returned: list[int]
    """Groups whose prompts go back to the source, to be drawn first."""
    report: dict[str, Any] = field(repr=False)
    """Numbers of the step; `text` is its line in the log, `metrics` what a run writes to `metrics.jsonl`."""


@dataclass(frozen=True)
class NextEpoch:
    """Begin another pass over the data."""

    epoch: int


@dataclass(frozen=True)
class Draw:
    """Take prompts from the current epoch and start a group for each; answered by `Dispatched`."""

    step: int
    round: int
    num_prompts: int


@dataclass(frozen=True)
class Continue:
    """Begin the other members of a group as well: its first ones differ."""

    group: int


@dataclass(frozen=True)
class Judged:
    """The filter judged a group, or it ended with its first members."""

    group: int
    kept: bool
    reason: str | None = None
    """Why it was dropped; None if it is kept."""


@dataclass(frozen=True)
class RoundComplete:
    """A round is over."""

    report: dict[str, Any]
    """Numbers of the round; `text` is its line in the log."""


@dataclass(frozen=True)
class StepReady:
    """Train on `close.trained`; answered by `Trained`."""

    close: StepClose


@dataclass(frozen=True)
class Train:
    """Train on these groups, a part of the step, while the rest still generates."""

    step: int
    part: int
    groups: list[int]


@dataclass(frozen=True)
class Abort:
    """Stop generating these groups; each is answered by `Aborted`, or by its outcome if it had ended."""

    groups: list[int]


@dataclass(frozen=True)
class StepClosed:
    """The step is complete and all of it was handed out; answer with `Trained` once it is trained."""

    close: StepClose


@dataclass(frozen=True)
class SkipStep:
    """Nothing is trained; `BeginStep` tries again."""

    why: str
    close: StepClose


@dataclass(frozen=True)
class Finish:
    """The run ends well."""

    why: str
    close: StepClose


@dataclass(frozen=True)
class Stop:
    """The run ends for want of signal."""

    diagnosis: dict[str, Any]
    """Observations and the changes to make; `text` is their text."""
    close: StepClose


Event = Union[BeginStep, Dispatched, Sampled, Screened, Scored, Failed, Aborted, Trained, Published, Cancelled]
Command = Union[
    NextEpoch, Draw, Continue, Judged, RoundComplete, StepReady, Train, Abort, StepClosed, SkipStep, Finish, Stop
]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _to_mapping(event: Event) -> Any:
    match event:
        case BeginStep():
            return "begin_step"
        case Dispatched(groups, version, exhausted):
            return {"dispatched": {"groups": list(groups), "version": version, "exhausted": exhausted}}
        case Sampled(group, value):
            return {"sampled": {"group": group, "value": _number(value)}}
        case Screened() | Scored():
            facts = {
                "num_tokens": event.num_tokens,
                "num_lost_tokens": event.num_lost_tokens,
                "num_turns": event.num_turns,
                "num_lost_turns": event.num_lost_turns,
                "is_identical_in_text": event.is_identical_in_text,
            }
            values = [_number(value) for value in event.values]
            name = "scored" if isinstance(event, Scored) else "screened"
            return {name: {"group": event.group, "values": values, "facts": facts}}
        case Failed(group, num_tokens, num_turns):
            return {"failed": {"group": group, "num_tokens": num_tokens, "num_turns": num_turns}}
        case Aborted(group, num_tokens, num_turns):
            return {"aborted": {"group": group, "num_tokens": num_tokens, "num_turns": num_turns}}
        case Trained(left_out, tokens, turns):
            return {"trained": {"left_out": left_out, "tokens": tokens, "turns": turns}}
        case Published(version):
            return {"published": {"version": version}}
        case Cancelled():
            return "cancelled"
    raise TypeError(f"expected an event of tamis.schedule, got {type(event).__name__}")


def _to_command(told: Any) -> Command:
    ((name, keys),) = told.items()
    if name == "judged":
        verdict = keys["verdict"]
        reason = None if verdict == "kept" else verdict["dropped"]
        return Judged(keys["group"], reason is None, reason)
    if name == "round_complete":
        return RoundComplete(keys)
    if name in ("step_ready", "step_closed"):
        return (StepReady if name == "step_ready" else StepClosed)(StepClose(**keys))
    if "close" in keys:
        keys = {**keys, "close": StepClose(**keys["close"])}
    kinds: dict[str, Any] = {
        "next_epoch": NextEpoch,
        "draw": Draw,
        "continue": Continue,
        "train": Train,
        "abort": Abort,
        "skip_step": SkipStep,
        "finish": Finish,
        "stop": Stop,
    }
    command: Command = kinds[name](**keys)
    return command


class Scheduler:
    """The scheduling machine of a run, in any mode: `rounds`, `deficit` or `streaming`.

    `train_batch_size` groups of `n` members make a step; `filter` judges them (None: every group is trained on). The
    other arguments are keys of a configuration: `gen_batch_size` of `data`, `total_steps`, `total_epochs` and
    `ppo_mini_batch_size` of `train`, all the rest of `schedule` (`mode`, `refill`, `max_num_gen_batches`, `on_limit`,
    `surplus`, ...).
    """

    def __init__(
        self,
        *,
        train_batch_size: int,
        n: int,
        filter: Filter | Mapping[str, Any] | None = None,
        gen_batch_size: int | None = None,
        ppo_mini_batch_size: int | None = None,
        total_steps: int | None = None,
        total_epochs: int | None = None,
        **schedule: Any,
    ) -> None:
        sections = {
            "data": {"train_batch_size": train_batch_size, "gen_batch_size": gen_batch_size},
            "rollout": {"n": n},
            "filter": filter.settings if isinstance(filter, Filter) else filter,
            "schedule": schedule,
            "train": {
                "total_steps": total_steps,
                "total_epochs": total_epochs,
                "ppo_mini_batch_size": ppo_mini_batch_size,
            },
        }
        self._machine = Machine(sections)

    @classmethod
    def of_config(cls, config: Config) -> Scheduler:
        """The machine of a configuration."""
        return cls._of(Machine.of_config(config))

    @classmethod
    def restore(cls, snapshot: str) -> Scheduler:
        """The machine as it was when that snapshot was taken."""
        return cls._of(Machine.restore(snapshot))

    @classmethod
    def _of(cls, machine: Machine) -> Scheduler:
        scheduler = cls.__new__(cls)
        scheduler._machine = machine
        return scheduler

    def handle(self, event: Event) -> list[Command]:
        """Takes an event and returns commands. An event that does not fit raises `EventError` and changes nothing."""
        return [_to_command(told) for told in self._machine.handle(_to_mapping(event))]

    def snapshot(self) -> str:
        """The whole state as a text, for `restore`."""
        return self._machine.snapshot()

    @property
    def progress(self) -> dict[str, int]:
        """Steps, rounds, epochs and prompts so far."""
        return self._machine.progress()

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Where every group of the closed steps went: each place with its groups, trajectories, turns and tokens."""
        return self._machine.totals()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the machine."""
        return self._machine.settings

    @property
    def is_ended(self) -> bool:
        """Whether the run has finished or stopped."""
        return self._machine.is_ended

    @property
    def depends_on_timing(self) -> bool:
        """Whether training, or the reports about it, depend on the order in which groups finish."""
        return self._machine.depends_on_timing

    def awaits(self, group: int) -> bool:
        """Whether it waits for the outcome of a group."""
        return self._machine.awaits(group)

    def held(self) -> list[int]:
        """Groups whose trajectories the driver must keep: not yet settled, or kept and not yet trained."""
        return self._machine.held()

    def set_length(self, total_steps: int | None = None, total_epochs: int | None = None) -> None:
        """Changes the length of the run; None: no limit of that kind."""
        self._machine.set_length(total_steps, total_epochs)

    def set_num_prompts(self, num_prompts: int) -> None:
        """Sets how many prompts the data have, skipped ones included: epochs that keep nothing end the run once as many
        groups were judged in them. Without it one such epoch ends the run, however few prompts it had."""
        self._machine.set_num_prompts(num_prompts)

    def __getstate__(self) -> str:
        return self.snapshot()

    def __setstate__(self, snapshot: str) -> None:
        self._machine = Machine.restore(snapshot)

    def __repr__(self) -> str:
        progress = self.progress
        return f"<Scheduler: {progress['steps']} steps, {progress['prompts']} prompts>"
