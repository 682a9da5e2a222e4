"""Loggers of a run that live in Python: `python -m tamis.loggers KIND SETTINGS`, started by the run itself.

A record a line comes on standard input: `{"step": 3, "metrics": {...}}`, `{"step": 3, "histograms": {...}, "samples":
[...]}`, and `{"close": "finished"}` at the end of the run (`finished`, `interrupted` or `failed`). The end of the
input without `close` is a run that was killed. `SETTINGS` is a file: the name of the run (`run`), its folder
(`folder`), the keys of the logger (`settings`) and the run's configuration (`config`).

On standard output goes a line for the user, `{"said": "..."}`, the number of further records that arrived,
`{"arrived": 1}`, or the reason why one did not, `{"failed": "..."}`. Whatever packages print goes to standard error,
which is a file of the run folder.

    to_wandb    Weights & Biases
    to_mlflow   MLflow
    to_trackio  Trackio

Each has `open_run(given)`, which gives an object with `log(step, metrics)`, `show(step, histograms, samples)`
and `close(ending)`. The name of the run there is kept in the run folder (`loggers/KIND.json`), so that a
resumed run continues the same one.
"""

import importlib
import json
import math
import re
import sys
from pathlib import Path


class Unusable(Exception):
    """No record can be delivered, whatever is tried."""


def find_package(name, installed_as):
    """A package, or the way to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        fix = f"`{sys.executable} -m pip install {installed_as}`, or the logger's `python` names another interpreter"
        raise Unusable(f"the package `{name}` is not there: {fix}") from None


def without_passwords(text):
    """A text whose addresses name no user and no password: it goes into files of the run."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def recall(given, kind):
    """The notes of an earlier session of the run, or an empty mapping."""
    try:
        noted = json.loads((Path(given["folder"]) / "loggers" / f"{kind}.json").read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def note(given, kind, noted):
    """Notes for a later session what the run is called here."""
    path = Path(given["folder"]) / "loggers" / f"{kind}.json"
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(noted) + "\n")
    beside.replace(path)


def numbers(metrics):
    """Metrics as floats: texts are infinities, null is no value and left out."""
    named = {name: float(value) for name, value in metrics.items() if value is not None}
    return {name: value for name, value in named.items() if not math.isnan(value)}


def shown(package, histograms, samples):
    """Distributions and completions as a row for the package `wandb` or `trackio`, which take them alike."""
    row = {}
    for name, found in histograms.items():
        row[name] = package.Histogram(np_histogram=(found["counts"], found["edges"]))
    if samples:
        columns = ["prompt", "completion", "reward", "verdict"]
        rows = [[sample[column] for column in columns] for sample in samples]
        row["samples"] = package.Table(columns=columns, data=rows)
    return row
