"""What the sieve inside TRL raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TESTED = "1.0.0, 1.6.0, 1.9.2, 1.13.0 and 1.16.0"
"""Versions of TRL that this module is tested with."""


class AttachError(ValueError):
    """The sieve does not go with this trainer: every reason, one a line."""


class NothingKept(RuntimeError):
    """A generation batch could not be filled within the limits of the schedule; the text is the scheduler's
    diagnosis."""

    def __init__(self, diagnosis: Mapping[str, Any]) -> None:
        super().__init__(str(diagnosis["text"]))
        self.diagnosis = dict(diagnosis)
