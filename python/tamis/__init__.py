"""tamis: reinforcement learning with verifiable rewards, built around the rollout group.

The parts of the program `tamis` for use from Python, computed by the same code:

    Filter       which groups carry signal
    Advantage    how much better than expected a trajectory or a token did
    Shaping      a change to finished advantages
    Objective    policy loss, divergence and entropy: value and derivatives
    Correction   weights and masks for a sampler that is not the policy
    ValueLoss    a critic's loss
    Scheduler    what is generated next and what is trained on: events in, commands out
    Config       a configuration, from which all of these can be made

and the whole of it:

    train        starts a run and returns it as a Run
    Run          metrics, rollouts and checkpoints of a run as tables

`tamis.torch` has the losses as functions of PyTorch. Importing this package imports nothing heavy: names are looked up
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import (
        Advantage,
        Config,
        Corrected,
        Correction,
        Estimate,
        Evaluation,
        Filter,
        Normalisers,
        Objective,
        Shaped,
        Shaping,
        ValueEvaluation,
        ValueLoss,
        Verdict,
        __version__,
    )
    from .errors import ColumnError, ConfigError, EventError, RunError
    from .runs import Run, train
    from .schedule import Scheduler

__all__ = [
    "Advantage",
    "ColumnError",
    "Config",
    "ConfigError",
    "Corrected",
    "Correction",
    "Estimate",
    "Evaluation",
    "EventError",
    "Filter",
    "Normalisers",
    "Objective",
    "Run",
    "RunError",
    "Scheduler",
    "Shaped",
    "Shaping",
    "ValueEvaluation",
    "ValueLoss",
    "Verdict",
    "__version__",
    "train",
]

_HOMES = {
    **dict.fromkeys(["ColumnError", "ConfigError", "EventError", "RunError"], "errors"),
    **dict.fromkeys(["Run", "train"], "runs"),
    "Scheduler": "schedule",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tamis' has no attribute '{name}'")
    import importlib

    home = _HOMES.get(name, "_native")
    try:
        module = importlib.import_module(f"tamis.{home}")
    except ModuleNotFoundError as missing:
        if missing.name != "tamis._native":
            raise
        # Only the sources, as `tamis train` hands them to the learner in PyTorch.
        raise ImportError(
            f"tamis.{name} needs the native module, which is not in {__file__.rpartition('/')[0]}: "
            "install the package (`pip install tamis`, or `pip install .` in the repository)"
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
