"""Runs from Python: `tamis.train` starts the program that the package brings along, `tamis.Run` reads what it wrote.

    run = tamis.train("run.yaml", {"train.total_steps": 20})
    run.metrics()                   # a frame with one row per step
    run.rollouts(verdict="all_wrong")
    run.push_to_hub("me/my-model")

Tables are frames of pandas if it is installed, otherwise of polars, otherwise lists of dicts. `Run(path,
frames="polars")` chooses one.
"""

from __future__ import annotations

import codecs
import importlib
import importlib.util
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from .errors import ConfigError, RunError

if TYPE_CHECKING:
    from ._native import Config

__all__ = ["Run", "train"]

_Path = Union[str, "os.PathLike[str]"]
_FRAMES = ("pandas", "polars", "list")


def _program() -> str:
    """The program: TAMIS_PROGRAM, the one that was installed with this package, or the one on PATH."""
    beside = pathlib.Path(sysconfig.get_path("scripts")) / "tamis"
    found = os.environ.get("TAMIS_PROGRAM") or (str(beside) if beside.exists() else shutil.which("tamis"))
    if found is None:
        raise FileNotFoundError(
            f"the program `tamis` is neither in {beside.parent} nor on PATH: install the package with pip, "
            "or name the program in the variable TAMIS_PROGRAM"
        )
    return found


def _problems(text: str) -> list[tuple[str, str | None]]:
    """The messages of a text that the program printed, each with its hint."""
    problems: list[tuple[str, str | None]] = []
    blocks = re.split(r"^error: ", text, flags=re.MULTILINE)[1:]
    for block in blocks:
        # Blank lines end a message; what follows is about all of them.
        message, _, hint = block.split("\n\n")[0].partition("\n  hint: ")
        problems.append((message.strip(), hint.strip() or None))
    return problems


def _failed(code: int, text: str) -> Exception:
    """The error for an exit code, with what the program printed about it."""
    problems = _problems(text)
    if code == 2 and problems:
        return ConfigError(problems)
    start = text.find("error: ")
    told = text[start:] if start >= 0 else "\n".join(text.splitlines()[-10:])
    return RunError(told.strip() or f"tamis ended with exit code {code}", code)


def _ask(*arguments: str) -> str:
    """The output of a command that only prints."""
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _failed(done.returncode, done.stderr)
    return done.stdout


def _override(key: str, value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    try:
        # JSON is YAML, too.
        return f"{key}={json.dumps(value, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [(f"`{key}` cannot be {value!r}: {error}", "pass numbers, texts, lists and mappings")]
        ) from None


def _overrides(keys: Mapping[str, Any] | Iterable[str]) -> list[str]:
    """Keys as the command line takes them; a section is taken key by key, so that it changes nothing else of it."""
    if isinstance(keys, str):
        raise TypeError(f"`overrides` is the text {keys!r}: pass a mapping, or a list of `key=value`")
    if not isinstance(keys, Mapping):
        return [str(key) for key in keys]
    arguments = []
    for key, value in keys.items():
        if isinstance(value, Mapping) and "." not in key:
            arguments += [_override(f"{key}.{inner}", part) for inner, part in value.items()]
        else:
            arguments.append(_override(key, value))
    return arguments


def _configuration(config: _Path | Mapping[str, Any] | None) -> list[str]:
    if config is None:
        return []
    if isinstance(config, Mapping):
        return _overrides(config)
    return [os.fspath(config)]


def train(
    config: _Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    resume: Run | _Path | None = None,
    quiet: bool = False,
) -> Run:
    """Trains, and returns the run when it has ended.

    `config` is the path of a YAML file, the name of a preset (`"dapo"`) or of a configuration that the program brings along
    (`"quickstart"`), or a mapping of keys (`{"preset": "dapo",
    "rollout.n": 8, "train": {"total_steps": 20}}`). `overrides` come after it: a mapping, or `key=value` as on the
    command line. `resume` continues a run from its last checkpoint instead.

    What the program prints goes to `sys.stderr` line by line, so that a notebook shows it; with `quiet` only warnings
    and the result do. `run.log` has everything. A keyboard interrupt ends the run as Ctrl-C does: it saves the last
    finished step, and then `KeyboardInterrupt` is raised again.

    Raises `ConfigError` with the program's messages and hints for a configuration that it refuses, and `RunError`
    with its text and exit code for a run that fails.
    """
    arguments = ["train", *(["--quiet"] if quiet else []), *_configuration(config), *_overrides(overrides)]
    if resume is not None:
        arguments += ["--resume", os.fspath(resume.path if isinstance(resume, Run) else resume)]
    folder = pathlib.Path.cwd()
    # A group of its own, so that a terminal's Ctrl-C reaches the program once: a second one ends it without saving.
    started = subprocess.Popen(
        [_program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    text, interrupts = "", 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    assert started.stdout is not None
    with started.stdout as output, selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            try:
                # Not for ever: an interrupt that comes just before the wait is seen after it.
                if not selector.select(0.5):
                    continue
                chunk = os.read(output.fileno(), 1 << 16)
                if not chunk:
                    break
                printed = decoder.decode(chunk)
                text += printed
                sys.stderr.write(printed)
                sys.stderr.flush()
            except KeyboardInterrupt:
                interrupts += 1
                started.send_signal(signal.SIGINT)
            except BaseException:
                started.kill()
                started.wait()
                raise
    code = started.wait()
    if interrupts:
        raise KeyboardInterrupt
    if code != 0:
        raise _failed(code, text)
    if resume is not None:
        return Run(resume.path if isinstance(resume, Run) else resume)
    found = re.findall(r"run directory (.+)$", text, re.MULTILINE)
    if not found:
        raise RunError(f"the program named no run directory; it printed:\n{text[-2000:]}", code)
    return Run(folder / found[-1])


class Run:
    """A run directory: metrics, rollouts and checkpoints as tables.

    Works on a run that is still running, with the steps that it has finished.
    """

    path: pathlib.Path
    """The run directory."""

    def __init__(self, path: _Path, *, frames: str | None = None) -> None:
        """`frames` is `pandas`, `polars` or `list` (of dicts); None takes the first of these that is installed."""
        self.path = pathlib.Path(path)
        if not (self.path / "config.yaml").is_file():
            what = "has no config.yaml" if self.path.is_dir() else "is not there"
            raise FileNotFoundError(
                f"{self.path} is no run directory: it {what}; pass the folder that `tamis train` made"
            )
        if frames is None:
            frames = next(name for name in _FRAMES if name == "list" or importlib.util.find_spec(name))
        if frames not in _FRAMES:
            raise ValueError(f"`frames` cannot be {frames!r}: expected one of {', '.join(_FRAMES)}")
        self._frames = frames

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _table(self, rows: list[dict[str, Any]]) -> Any:
        if self._frames == "list":
            return rows
        library = importlib.import_module(self._frames)
        if self._frames == "polars":
            # Columns that only later rows have are columns too.
            return library.DataFrame(rows, infer_schema_length=None)
        return library.DataFrame(rows)

    def metrics(self) -> Any:
        """One row per line of `metrics.jsonl`: `step`, and a column per metric, empty where a step has none of it."""
        file = self.path / "metrics.jsonl"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        # A line without its end is being written.
        return self._table([json.loads(line) for line in text.split("\n")[:-1]])

    def rollouts(self, step: int | None = None, *, verdict: str | None = None) -> Any:
        """One row per trajectory that a step generated, the last saved step unless you name one; the columns are those
        of `tamis rollouts --json`, which refuses a step that has none.

        `verdict` takes only those that ended so: `trained`, `all_wrong`, `dropped` for every reason of the filter.
        """
        arguments = ["rollouts", str(self.path), "--json", "--limit", str(2**32 - 1)]
        if step is not None:
            arguments += ["--step", str(step)]
        if verdict is not None:
            arguments += ["--verdict", verdict]
        return self._table(json.loads(_ask(*arguments))["rows"])

    def checkpoints(self) -> Any:
        """One row per checkpoint, the first step first: `step`, `path`, and `bytes` on the disk."""
        return self._table(self._checkpoints())

    def _checkpoints(self) -> list[dict[str, Any]]:
        rows = []
        for folder in (self.path / "checkpoints").glob("step_*"):
            step = re.fullmatch(r"step_(\d+)", folder.name)
            if step and (folder / "state.json").is_file():
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                rows.append({"step": int(step[1]), "path": str(folder), "bytes": size})
        return sorted(rows, key=lambda row: row["step"])

    def config(self) -> Config:
        """The configuration that the run had."""
        from ._native import Config

        return Config.load(self.path / "config.yaml")

    def export(self, folder: _Path, *, step: int | None = None, dtype: str = "f32") -> pathlib.Path:
        """Writes the model as a Hugging Face folder, as `tamis export` does: that of the last checkpoint, unless you
        name a step. `folder` must not exist. `dtype` is `f32`, `bf16` or `f16`."""
        rows = [row for row in self._checkpoints() if step is None or row["step"] == step]
        if not rows:
            steps = ", ".join(str(row["step"]) for row in self._checkpoints())
            if not steps:
                raise FileNotFoundError(
                    f"{self.path} has no checkpoint yet: one is written every `checkpoint.save_freq` steps, and when a run "
                    f"ends; `tamis train --resume {self.path}` continues a run that was interrupted"
                )
            raise FileNotFoundError(f"{self.path} has no checkpoint of step {step}; it has those of the steps: {steps}")
        _ask("export", rows[-1]["path"], os.fspath(folder), "--dtype", dtype)
        return pathlib.Path(folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        step: int | None = None,
        dtype: str = "f32",
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
    ) -> str:
        """Uploads the model, as `export` writes it, to a repository of the Hugging Face Hub, which is made if it is not
        there; the address of the commit. `revision` is a branch, which is made too. Needs `huggingface_hub`, which
        also finds the token (`hf auth login`, or the variable HF_TOKEN).

        Raises `ImportError` without that package, `ValueError` without a token, `FileNotFoundError` without a
        checkpoint (of that step), and what `huggingface_hub` raises if the hub refuses the upload."""
        try:
            hub = importlib.import_module("huggingface_hub")
        except ModuleNotFoundError as missing:
            if missing.name != "huggingface_hub":
                raise
            raise ImportError(
                "push_to_hub needs huggingface_hub, which is not installed: pip install huggingface_hub"
            ) from None
        if token is False or token in (None, True) and not hub.get_token():
            raise ValueError(
                "there is no token of the hub: `hf auth login`, the variable HF_TOKEN, or `token=` with one that may "
                f"write to {repo_id}"
            )
        with tempfile.TemporaryDirectory() as scratch:
            # First: what cannot be exported makes no repository.
            folder = self.export(pathlib.Path(scratch) / "model", step=step, dtype=dtype)
            api = hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message or f"Trained with tamis: run {self.path.resolve().name}",
            )
        return str(commit.commit_url)
