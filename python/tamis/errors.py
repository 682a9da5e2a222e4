"""Exceptions of the package. `RunError` is about a run that failed. The others are `ValueError`s: a value that was
passed is wrong, and the message names it."""

from __future__ import annotations

__all__ = ["ColumnError", "ConfigError", "EventError", "RunError"]


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


class RunError(RuntimeError):
    """A run that the program ended with an error. The message is the program's, with its hint.

    `code` is the exit code: 1 the run failed, 3 a backend cannot be reached, 4 a resumed run does not match.
    """

    code: int

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RunError], tuple[str, int]]:
        return type(self), (str(self), self.code)
