"""The scheduling machine of a run: it decides what is generated next and what is trained on.

It takes events (prompts dispatched, a group scored, a step trained, weights published) and answers with commands (draw
prompts, train on these groups, stop). It does no I/O and reads no clock: the same events give the same commands. Its
whole state is a text (`Scheduler.snapshot`), so a resumed run continues as if it had not been interrupted.

    scheduler = Scheduler(train_batch_size=2, n=4, filter=Filter("variance"))
    for command in scheduler.handle(BeginStep()):
        match command:
            case Draw(num_prompts=num): ...      # start this many groups, then handle(Dispatched(...))
            case Judged(group=id, kept=kept): ...
            case StepReady(close=close): ...     # train on close.trained; handle(Trained()), handle(Published(...))
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
    """As many as requested, or fewer if the epoch ended; ids are greater than all earlier ones. With `mode="deficit"`
    and one round in flight a driver may begin fewer, at least one: these are then the whole round."""
    version: int = 0
    """The policy version that samples them."""
    exhausted: bool = False
    """Whether the epoch has no prompt left."""


@dataclass(frozen=True)
class Sampled:
    """A member of a group was scored and others are still to come. Only a streaming schedule uses this."""

    group: int
    value: float | None = None
    """The filter's metric of the member; None if it has none."""


@dataclass(frozen=True)
class Screened:
    """The first members of a group were scored, and the group was begun with only these (`screen_first`). The answer is
    `Continue`, or `Judged`, which ends the group."""

    group: int
    values: Sequence[float | None]
    """The filter's metric of each of them; NaN or None if it has none."""
    num_tokens: int = 0
    """Completion tokens of these members."""
    num_lost_tokens: int = 0
    """Completion tokens of aborted and retried attempts at members."""
    num_turns: int = 0
    """Turns of the policy in these members."""
    num_lost_turns: int = 0
    """Turns of such attempts."""
    is_identical_in_text: bool = False
    """Whether these members have the same text."""


@dataclass(frozen=True)
class Scored:
    """A group is complete and all its members were scored."""

    group: int
    values: Sequence[float | None]
    """The filter's metric of each member [n]; NaN or None if it has none."""
    num_tokens: int = 0
    """Completion tokens of all members."""
    num_lost_tokens: int = 0
    """Completion tokens of aborted and retried attempts at members."""
    num_turns: int = 0
    """Turns of the policy in all members."""
    num_lost_turns: int = 0
    """Turns of such attempts."""
    is_identical_in_text: bool = False
    """Whether all members have the same text."""


@dataclass(frozen=True)
class Failed:
    """A member's generation failed for good; its group fails with it."""

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
    """Members of the step's groups that had no loss; they count as left out instead of trained."""
    tokens: int = 0
    """Their completion tokens."""
    turns: int = 0
    """Their turns."""


@dataclass(frozen=True)
class Published:
    """Weights were published: they sample the groups that are dispatched from now on."""

    version: int


@dataclass(frozen=True)
class Cancelled:
    """The run is to end now, between steps or during generation."""


@dataclass(frozen=True)
class StepClose:
    """A step has ended: the places of its groups. `Judged` has named dropped groups, and the driver failed ones."""

    trained: list[int]
    """Groups to train on, in batch order; empty unless the step is ready."""
    kept_when_insufficient: list[int]
    """Those of them that the filter dropped and that fill the batch because too few were kept
    (`on_limit="keep_dropped"`)."""
    duplicated: list[int]
    """Those of them that are trained on again, one entry for each copy: the batch is `trained` followed by these
    (`on_limit="duplicate"`)."""
    surplus: list[int]
    """Kept groups to discard."""
    stale: list[int]
    """Carried groups to discard because they are too old."""
    carried: list[int]
    """Kept groups to hold for the next step."""
    aborted: list[int]
    """Groups that were aborted."""
    returned: list[int]
    """Groups whose prompts go back to the source and are drawn first if the run continues."""
    report: dict[str, Any] = field(repr=False)
    """Numbers of the step. `text` is its line in the log; `metrics` are those that a run writes to `metrics.jsonl`."""


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
    """The filter judged a group, or the group ended with its first members."""

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
    """The run is finished: validate, save, report."""

    why: str
    close: StepClose


@dataclass(frozen=True)
class Stop:
    """The run ends for lack of signal."""

    diagnosis: dict[str, Any]
    """Observations and the changes to make; `text` is the same as prose."""
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
    `ppo_mini_batch_size` of `train`, and all keys of `schedule` (`mode`, `refill`, `max_num_gen_batches`, `on_limit`,
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
        """Makes the machine of a configuration."""
        return cls._of(Machine.of_config(config))

    @classmethod
    def restore(cls, snapshot: str) -> Scheduler:
        """Restores the machine from a snapshot."""
        return cls._of(Machine.restore(snapshot))

    @classmethod
    def _of(cls, machine: Machine) -> Scheduler:
        scheduler = cls.__new__(cls)
        scheduler._machine = machine
        return scheduler

    def handle(self, event: Event) -> list[Command]:
        """Processes an event and returns the commands that follow from it.

        Raises `EventError` if the event does not fit the present state; the machine is then unchanged.
        """
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
        """Accounting of the groups of all closed steps: groups, trajectories, turns and tokens of each place."""
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
        """Whether the trained groups or their metrics depend on the order in which groups finish."""
        return self._machine.depends_on_timing

    def awaits(self, group: int) -> bool:
        """Whether it still waits for the result of a group."""
        return self._machine.awaits(group)

    def held(self) -> list[int]:
        """Groups whose trajectories the driver must still hold: kept and not yet trained, or not yet settled."""
        return self._machine.held()

    def set_length(self, total_steps: int | None = None, total_epochs: int | None = None) -> None:
        """Changes the length of the run; None: no limit of that kind."""
        self._machine.set_length(total_steps, total_epochs)

    def set_num_prompts(self, num_prompts: int) -> None:
        """Sets the number of prompts in the data, including those that the driver passes over.

        Epochs that keep nothing end the run once this many groups were judged in them. If the number is not set, one
        such epoch ends the run, however few prompts it had.
        """
        self._machine.set_num_prompts(num_prompts)

    def __getstate__(self) -> str:
        return self.snapshot()

    def __setstate__(self, snapshot: str) -> None:
        self._machine = Machine.restore(snapshot)

    def __repr__(self) -> str:
        progress = self.progress
        return f"<Scheduler: {progress['steps']} steps, {progress['prompts']} prompts>"
