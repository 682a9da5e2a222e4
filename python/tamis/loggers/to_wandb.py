"""Weights & Biases: each record is a row of the run's history, over `training/global_step`."""

import netrc
import os
import urllib.parse

from . import find_package, note, numbers, recall, shown

STEP = "training/global_step"


def open_run(given, say):
    """Begins the run there, or continues the one that an earlier session of this run began."""
    wandb = find_package("wandb", "wandb")
    settings = given["settings"]
    noted = recall(given, "wandb")
    run = wandb.init(
        project=settings["project"] or os.environ.get("WANDB_PROJECT") or "tamis",
        entity=settings["entity"],
        group=settings["group"],
        name=given["run"],
        id=noted.get("id"),
        resume="allow" if noted.get("id") else None,
        dir=given["folder"],
        config=given["config"],
        mode=mode(settings["mode"]),
        settings=wandb.Settings(console="off", silent=True),
    )
    note(given, "wandb", {"id": run.id})
    say(said=f"run {run.id} " + (f"offline, for `wandb sync {offline_folder(run)}`" if run.offline else f"at {run.url}"))
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    return Run(wandb, run)


def offline_folder(run):
    """The folder that `wandb sync` takes; files of the run are in a folder inside it."""
    return os.path.dirname(run.dir)


def mode(chosen):
    """How the server is reached: `auto` is online only if there is a key."""
    if chosen != "auto":
        return chosen
    named = os.environ.get("WANDB_MODE")
    return named or ("online" if has_key() else "offline")


def has_key():
    """Whether there is a key in `WANDB_API_KEY`, or one that `wandb login` wrote."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    try:
        path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
        return netrc.netrc(path).authenticators(urllib.parse.urlsplit(server).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


class Run:
    """A run of Weights & Biases."""

    def __init__(self, wandb, run):
        self.wandb, self.run = wandb, run

    def log(self, step, metrics):
        """A row of figures. Those of a step that a resume repeats are the same once more."""
        self.run.log({**numbers(metrics), STEP: step})

    def show(self, step, histograms, samples):
        """A row of distributions, and the completions as a table."""
        self.run.log({**shown(self.wandb, histograms, samples), STEP: step})

    def close(self, ending):
        """Ends the run; one that was interrupted counts as one that did not end well."""
        self.run.finish(exit_code=0 if ending == "finished" else 1)
