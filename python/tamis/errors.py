"""Exceptions of the package. Each is a `ValueError`: a value that was passed is wrong, and the message says which."""

from __future__ import annotations

__all__ = ["ColumnError", "ConfigError", "EventError"]


class ConfigError(ValueError):
    """Settings that cannot be used: unknown keys, values out of range, contradictions.

    `problems` holds every message with its hint (or None), as `tamis train` prints them.
    """

    problems: list[tuple[str, str | None]]

    def __init__(self, problems: list[tuple[str, str | None]]) -> None:
        self.problems = list(problems)
        lines = []
        for message, hint in self.problems:
            lines.append(message)
            if hint is not None:
                lines.append(f"hint: {hint}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[tuple[str, str | None]]]]:
        return type(self), (self.problems,)


class ColumnError(ValueError):
    """Columns of a batch that are missing, do not fit together, or hold what cannot be read."""


class EventError(ValueError):
    """An event that does not fit the state of the scheduling machine, which is then as it was before."""
