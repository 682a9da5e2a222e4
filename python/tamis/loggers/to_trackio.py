"""Trackio: each record is a row of the run, in Trackio's store on this machine."""

import contextlib
import json
import os
import shlex
import sqlite3
import tempfile
import warnings
from pathlib import Path

from . import Unusable, find_package, note, numbers, recall, shown

# Variables that send figures to a Space or a server.
ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


def open_run(given, say):
    """Begins the run there, or continues the one that an earlier session of this run began."""
    ignored = [name for name in ELSEWHERE if os.environ.pop(name, None)]
    # If there is a token, the package asks the Hub for its user.
    os.environ["HF_HUB_OFFLINE"] = "1"
    trackio = find_package("trackio", "trackio")
    project, group = given["settings"]["project"], given["settings"]["group"]
    store = Path(trackio.SQLiteStorage.get_project_db_path(project)).absolute()
    folder = store.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        fix = "set TRACKIO_DIR to a folder that can be written to"
        raise Unusable(f"{folder} cannot be written to ({error.strerror}): {fix}") from error
    report_warnings(Path(trackio.__file__).parent, say)
    noted = recall(given, "trackio")
    name, last = last_steps(store, noted["id"]) if noted.get("id") else (None, {})
    run = trackio.init(project, name=name or given["run"], group=group, config=given["config"], resume="never")
    # `resume` would take the newest run of that name, whosever it is, and find none that is not in the database yet.
    run.id = noted.get("id", run.id)
    note(given, "trackio", {"id": run.id})
    say(said=f"run {run.name} in {folder}, for `trackio show --project {shlex.quote(project)}`")
    for variable in ignored:
        say(said=f"{variable} is not used: figures stay on this machine, and `trackio sync` uploads them")
    return Run(trackio, run, last)


def report_warnings(package, say):
    """Reports the warnings of the package as failures: it drops rows that it cannot write, only with a warning."""
    show = warnings.showwarning

    def report(message, category, filename, *rest, **more):
        show(message, category, filename, *rest, **more)
        if package in Path(filename).parents:
            say(failed=" ".join(str(message).split()))

    warnings.showwarning = report
    warnings.filterwarnings("always", module="trackio")


def last_steps(store, run_id):
    """The name that a run has in the store, `None` without rows, and the last step of each figure there."""
    name, last = None, {}
    for name, step, figures in rows(store, run_id):
        last.update({figure: max(step, last.get(figure, step)) for figure in figures})
    return name, last


def rows(store, run_id):
    """Rows of a run. On a network file system they are in files until a dashboard moves them into the database."""
    for path in sorted(store.parent.glob("inbox/*/*.jsonl")):
        # Rows that are moved at this moment are found in the database.
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                record = json.loads(line)
                if (record["kind"], record["run_id"]) == ("metric", run_id):
                    yield record["run"], record["step"], record["metrics"]
    if store.exists():
        with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as database:
            query = "SELECT run_name, step, metrics FROM metrics WHERE run_id = ? ORDER BY id"
            for name, step, figures in database.execute(query, [run_id]):
                yield name, step, json.loads(figures)


class Run:
    """A run of Trackio. `last` is the last step of each figure that an earlier session logged."""

    def __init__(self, trackio, run, last):
        self.trackio, self.run, self.last = trackio, run, last

    def log(self, step, metrics):
        """A row of figures."""
        self.add(step, numbers(metrics))

    def show(self, step, histograms, samples):
        """A row of distributions, and the completions as a table."""
        self.add(step, shown(self.trackio, histograms, samples))

    def add(self, step, row):
        """A row without what the store has already: a resumed run repeats the steps after its checkpoint."""
        new = {name: value for name, value in row.items() if step > self.last.get(name, -1)}
        if new:
            self.run.log(new, step=step)

    def close(self, ending):
        """Writes what is not written yet; Trackio has no place for how a run ended."""
        self.run.finish()
