"""Errors of the sieve inside TRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TESTED = "1.0.0, 1.6.0, 1.9.2, 1.13.0 and 1.16.0"
"""Versions of TRL that this module is tested with."""
TESTED_ASYNCHRONOUS = "1.13.0 and 1.16.0"
"""The same for its `AsyncGRPOTrainer`."""


class AttachError(ValueError):
    """The sieve does not go with this trainer: every reason, one a line."""


_NAMES = {
    "`data.train` or `data.arithmetic.levels`": "`train_dataset`",
    "data.train_batch_size": "generation_batch_size / num_generations",
    "data.gen_batch_size": "schedule.gen_batch_size",
    "rollout.n": "num_generations",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.backend": "generation",
    "train.optimizer.learning_rate": "learning_rate",
    "-> use_partial": "-> keep_dropped",
    " (the gold answers themselves were scored at the start)": "",
}
"""The scheduler's words about a configuration of tamis, and those for a trainer of TRL."""


class NothingKept(RuntimeError):
    """A generation batch could not be filled within the limits of the schedule. The text is the scheduler's
    diagnosis in TRL's names; `diagnosis` has its numbers."""

    def __init__(self, diagnosis: Mapping[str, Any]) -> None:
        text = str(diagnosis["text"])
        for name, in_trl in _NAMES.items():
            text = text.replace(name, in_trl)
        super().__init__(text)
        self.diagnosis = dict(diagnosis) | {"text": text}

    def __reduce__(self) -> tuple[Any, ...]:
        # It may have to reach another process, and is made of more than its text.
        return type(self), (self.diagnosis,)
