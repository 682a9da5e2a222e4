"""The run folder of a trainer with a sieve."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger("tamis.trl")


class Record:
    """A run folder that `monitor`, `report`, `advise`, `filter` and `rollouts` read, written by the main
    process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due: dict[str, Any] | None = None
        self._logged: dict[str, list[float]] = {}

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def begin(self, run: str, steps: int, pending: Mapping[str, Any] | None = None) -> str | None:
        """Makes the folder, or raises with the reason. Steps that a run resumed after `steps` will write again are
        taken out."""
        try:
            return self._begin(run, steps, pending)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"`record`: {self.folder} cannot be continued: {type(error).__name__}: {error}"

    def _begin(self, run: str, steps: int, pending: Mapping[str, Any] | None) -> str | None:
        mark = self.folder / "run_id"
        is_own = mark.exists() and mark.read_text() == run
        if not is_own and any(any(self.folder.glob(name)) for name in ("config.yaml", "metrics.jsonl", "rollouts/*")):
            if steps == 0:
                return f"`record`: {self.folder} has a run already, and this one starts anew: name another folder"
            return f"`record`: {self.folder} has another run than the checkpoint's: name its folder, or a new one"
        (self.folder / "rollouts").mkdir(parents=True, exist_ok=True)
        mark.write_text(run)
        text = self._metrics.read_text() if self._metrics.exists() else ""
        # A line that the end of a run cut short does not count.
        lines = text[: text.rfind("\n") + 1].splitlines()
        if pending is not None:
            self._due, self._logged = pending["due"], pending["logged"]
        elif self._due is None:
            # Figures that `train()` logged at its end belong to no step.
            self._logged = {}
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
        try:
            with (self.folder / "run.log").open("a") as log:
                log.write(f"{stamp} {text}\n")
        except OSError as error:
            _log.warning("`record`: %s", error)

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
        # JSON has no infinities.
        self._due = {"step": step} | {name: value for name, value in metrics.items() if math.isfinite(value)}
        rewards = [row["reward"] for row in rows if math.isfinite(row["reward"])]
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
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        try:
            with self._metrics.open("a") as file:
                file.write(json.dumps(means | self._due) + "\n")
        except OSError:
            # Half a line would spoil the one that is written once there is room.
            with contextlib.suppress(OSError):
                os.truncate(self._metrics, size)
            raise
        self._due = None
        self._logged = {}


def _or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
