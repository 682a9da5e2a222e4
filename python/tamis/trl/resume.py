"""The sieve in TRL's checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .errors import AttachError
from .record import Record
from .sieve import Sieve

_log = logging.getLogger("tamis.trl")


def refuse(reasons: list[str]) -> None:
    """Raises on every process if one of them has a reason."""
    if told := list(dict.fromkeys(gather_object(reasons))):
        raise AttachError("\n".join(told))


def restored(restore: Callable[[], None]) -> list[str]:
    """Restores a state, or raises with the reason."""
    try:
        restore()
    except AttachError as error:
        return [str(error)]
    except Exception as error:
        return [
            f"the checkpoint's state of the sieve cannot be read ({type(error).__name__}: {error}): it is damaged, "
            "or of another version of tamis"
        ]
    return []


def saved_in(state: Any) -> dict[str, Any]:
    """The sieve's part of the checkpoint that a run is resumed from; empty if it has none."""
    kept = (state.stateful_callbacks or {}).get("TamisSieve") if state.global_step > 0 else None
    saved: dict[str, Any] = kept["attributes"]["saved"] if kept is not None else {}
    # A run without a sieve passes on what it found in its own checkpoint.
    return saved if saved.get("global_step") == state.global_step else {}


def have_saved(callback: Any, state: Any) -> None:
    """Callbacks whose state a checkpoint lacks are not saved by later ones, unless they are registered here."""
    state.stateful_callbacks = (state.stateful_callbacks or {}) | {"TamisSieve": callback.state()}


def make_callback(trainer: Any, record: Record | None) -> TrainerCallback:
    """Keeps the state in checkpoints, and the record's figures."""
    sieve: Sieve = trainer.sieve
    writes = record if trainer.accelerator.is_main_process else None

    def file_in(folder: str | os.PathLike[str]) -> Path:
        return Path(folder) / f"tamis_sieve_{trainer.accelerator.process_index}.pt"

    def place_in_batch() -> int:
        return int(trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations))

    def layout() -> dict[str, int]:
        """The settings by which the rest of a generation batch is cut."""
        return {
            "number of processes": trainer.accelerator.num_processes,
            "`per_device_train_batch_size`": trainer.args.per_device_train_batch_size,
            "`steps_per_generation`": trainer.args.steps_per_generation,
            "`num_iterations`": trainer.num_iterations,
        }

    def restore(saved: Mapping[str, Any], folder: Path) -> list[str]:
        """Continues from a checkpoint, or raises with the reason."""
        then: dict[str, int] = {}

        def place() -> None:
            trainer._step = saved["place_in_batch"]
            then.update(saved["layout"])
            sieve.restore(saved)

        if reasons := restored(place):
            return reasons
        trainer._buffered_inputs = None
        if not saved["place_in_batch"]:
            return []
        now = layout()
        if reasons := [f"{name} is {now[name]} and was {then[name]}" for name in now if now[name] != then[name]]:
            return [
                f"the checkpoint is from inside a generation batch, whose rest is cut otherwise: {', '.join(reasons)}; "
                "resume with the same, or from a checkpoint between batches"
            ]
        device = trainer.accelerator.device
        try:
            # Without an index: several processes on a CPU have `cpu:0`, which PyTorch does not load to.
            location = "cpu" if device.type == "cpu" else device
            rest = torch.load(file_in(folder), map_location=location, weights_only=True)
        except Exception as error:
            return [
                f"the rest of the checkpoint's generation batch cannot be loaded ({file_in(folder)}: {error}): if the "
                "run ended while it was saved, resume from an earlier checkpoint"
            ]
        trainer._buffered_inputs = rest["inputs"]
        return []

    class TamisSieve(TrainerCallback, ExportableState):
        def state(self) -> dict[str, Any]:
            saved = sieve.state() | {"place_in_batch": place_in_batch(), "layout": layout()}
            saved |= {"run": sieve._run, "global_step": trainer.state.global_step}
            if writes is not None:
                saved["record"] = writes.pending
            return {"args": {}, "attributes": {"saved": saved}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saved = saved_in(state)
            if trainer.train_dataset is not sieve._dataset:
                refuse(["`train_dataset` was replaced after the sieve was attached: attach after that"])
            sieve._run = saved.get("run") or sieve._run or uuid.uuid4().hex
            if saved:
                folder = sieve._resumed_from or Path(args.output_dir) / f"checkpoint-{state.global_step}"
                refuse(restore(saved, Path(folder)))
            elif state.global_step > 0:
                _log.warning(
                    "the checkpoint was saved without a sieve: the data start with their first prompts again, also "
                    "with those that were trained on before"
                )
                have_saved(self, state)
            reason = writes.begin(sieve._run, sieve._steps, saved.get("record")) if writes is not None else None
            refuse([] if reason is None else [reason])

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if place_in_batch() and trainer._buffered_inputs is not None:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                folder.mkdir(parents=True, exist_ok=True)
                torch.save({"inputs": trainer._buffered_inputs}, file_in(folder))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if writes is not None and logs and trainer.model.training:
                writes.logged(logs)
                if not place_in_batch():
                    # If that fails, it is tried again with the next batch, or at the end.
                    with contextlib.suppress(OSError):
                        writes.flush()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if record is None:
                return
            failed = []
            if writes is not None:
                try:
                    writes.flush()
                except OSError as error:
                    failed.append(f"`record`: the figures of the last step cannot be written: {error}")
            if failed := gather_object(failed):
                raise OSError(failed[0])

    return TamisSieve()
