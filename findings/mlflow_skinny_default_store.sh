#!/usr/bin/env bash
# mlflow-skinny 3.17.2 (PyPI), the package for programs that only log.
#
# Expected: without a tracking URI it logs into a local folder, as `mlflow` does into its local database, or says that a
# server must be named.
# Seen: its default is a database that it cannot open, as SQLAlchemy is left out of the package. The first call that
# logs raises an exception that speaks of the model registry, so a trainer that guards its logger loses every figure.
# What helps: `mlflow.set_tracking_uri("http://...")` before the first call (in tamis `tracking_uri` of the logger).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mlflow-skinny==3.17.2
cd "$folder"
env -u MLFLOW_TRACKING_URI venv/bin/python - <<'PYTHON'
import importlib.util
import os

import mlflow

print("tracking URI:", mlflow.get_tracking_uri().replace(os.getcwd(), "FOLDER"), "| sqlalchemy:", importlib.util.find_spec("sqlalchemy"))
try:
    with mlflow.start_run():
        mlflow.log_metric("reward", 0.5, step=1)
except Exception as error:
    print(type(error).__name__ + ":", str(error).splitlines()[0][:160])
    seen = type(error).__name__
else:
    seen = "logged"
print("left in the folder:", sorted(name for name in os.listdir() if name != "venv"))
assert seen == "UnsupportedModelRegistryStoreURIException", seen
PYTHON
# Output on 2026-11-29, Python 3.11.7:
#   tracking URI: sqlite:///FOLDER/mlflow.db | sqlalchemy: None
#   UnsupportedModelRegistryStoreURIException:  Model registry functionality is unavailable; got unsupported URI ...
#   left in the folder: []
