"""MLflow: figures by step, the configuration as parameters."""

import os
import re
import time
import urllib.parse

from . import Unusable, find_package, note, numbers, recall, without_passwords

# Limits of MLflow's REST interface.
MOST_METRICS, MOST_PARAMETERS, LONGEST_PARAMETER = 1000, 100, 6000
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def open_run(given, say):
    """Begins the run there, or continues the one that an earlier session of this run began."""
    # MLflow itself asks a server that is away for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    settings = given["settings"]
    uri = settings["tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        # Before the package reads its variables.
        os.environ["MLFLOW_TRACKING_URI"] = uri = plain_address(uri)
    mlflow = find_package("mlflow", "mlflow-skinny")
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        place = without_passwords(uri or mlflow.get_tracking_uri())
        raise Unusable(f"{place} is no place for this package ({type(error).__name__}): set `tracking_uri` to a server") from error
    noted = recall(given, "mlflow")
    if noted.get("run_id"):
        client.update_run(noted["run_id"], status="RUNNING")
        run_id = noted["run_id"]
    else:
        experiment = settings["experiment"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tamis"
        found = client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else client.create_experiment(experiment)
        run_id = client.create_run(experiment_id, run_name=given["run"]).info.run_id
        note(given, "mlflow", {"run_id": run_id})
        try:
            log_parameters(client, run_id, given["config"], Param)
        except Exception as error:
            # A server that accepts only shorter ones still accepts figures.
            say(said=f"the configuration did not arrive: {without_passwords(str(error))[:300]}")
    say(said=f"run {run_id} at {without_passwords(uri or mlflow.get_tracking_uri())}")
    return Run(client, run_id, Metric)


def plain_address(uri):
    """An address of HTTP without its user and password, which the package takes from variables instead."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.username is None:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = urllib.parse.unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = urllib.parse.unquote(parts.password or "")
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def log_parameters(client, run_id, config, parameter):
    """The configuration as parameters of the run."""
    parameters = [parameter(name, text[:LONGEST_PARAMETER]) for name, text in flat(config)]
    for start in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(run_id, params=parameters[start : start + MOST_PARAMETERS])


def flat(value, path=""):
    """The leaves of a configuration, by dotted path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    else:
        yield allowed(path), "null" if value is None else str(value)


def allowed(name):
    """A name as MLflow takes it: letters, digits, `_`, `-`, `.`, spaces and `/`."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)


class Run:
    """A run of MLflow."""

    def __init__(self, client, run_id, metric):
        self.client, self.run_id, self.metric = client, run_id, metric

    def log(self, step, metrics):
        """Figures of a step."""
        now = int(1000 * time.time())
        rows = [self.metric(allowed(name), value, now, step) for name, value in numbers(metrics).items()]
        for start in range(0, len(rows), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics=rows[start : start + MOST_METRICS])

    def show(self, step, histograms, samples):
        """MLflow has no place for distributions."""

    def close(self, ending):
        """Ends the run."""
        self.client.set_terminated(self.run_id, status=STATUS.get(ending, "FAILED"))
