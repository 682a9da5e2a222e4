#!/usr/bin/env bash
# trackio 0.43.0 (PyPI) and a training run that is killed and resumed.
#
# Expected: `trackio.init(project, name=..., resume="allow")` goes on in the run of that name. A trainer that resumes from
# a checkpoint logs the steps after it again, and each step is there once: the repeated row replaces the first or is
# dropped.
# Seen: three things.
# 1. The repeated row is kept beside the first: a step has two rows, and the plot goes back.
# 2. If two runs have the name, the newest is resumed, whoever began it: the resumed rows of the first are in the second.
# 3. In a folder on a network file system (here by TRACKIO_STORAGE_MODE=jsonl, which is what Trackio chooses there), rows
#    wait in files until a dashboard moves them into the database, and `resume` looks in the database only: "allow" begins
#    another run without a word, "must" says that the run does not exist.
# What helps: keep `run.id`, read the last step from the store, and log only what comes after it (tamis does).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check trackio==0.43.0
cd "$folder"
cat >session.py <<'PYTHON'
"""A session of a run: session.py RESUME FIRST LAST VALUE."""
import sys

import trackio

resume, first, last, value = sys.argv[1], *map(int, sys.argv[2:])
run = trackio.init(project="p", name="run", resume=resume)
for step in range(first, last + 1):
    run.log({"reward": value + step}, step=step)
run.finish()
PYTHON
session() { HF_HUB_OFFLINE=1 TRACKIO_DIR="$folder/$store" TRACKIO_STORAGE_MODE=$mode venv/bin/python session.py "$@" >log 2>&1; }
rows() {
    venv/bin/python - "$folder/$store/p.db" <<'PYTHON'
import json
import sqlite3
import sys

runs = {}
for run, step, row in sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True).execute("SELECT run_id, step, metrics FROM metrics ORDER BY id"):
    runs.setdefault(run, []).append(f"{step}:{json.loads(row)['reward']}")
print(" | ".join(" ".join(rows) for rows in runs.values()))
PYTHON
}
mode=sqlite store=first
session never 1 4 0 # killed after step 4, the checkpoint is of step 2
session allow 3 6 0
one=$(rows)
echo "1. steps 1-4, then 3-6 again:  $one"
store=second
session never 1 2 0
session never 1 2 100 # somebody else's, of the same name
session allow 3 4 0
two=$(rows)
echo "2. the first of two resumed:   $two"
mode=jsonl store=third
session never 1 4 0
session allow 3 6 0
three=$(cat third/inbox/*/*.jsonl | venv/bin/python -c 'import json, sys; print(len({json.loads(line)["run_id"] for line in sys.stdin}))')
echo "3. runs after a resume:        $three"
! session must 7 8 0
error=$(tail -1 log)
echo "   with resume=\"must\":         $error"
[ "$one" = "1:1 2:2 3:3 4:4 3:3 4:4 5:5 6:6" ]
[ "$two" = "1:1 2:2 | 1:101 2:102 3:3 4:4" ]
[ "$three" = 2 ]
[ "$error" = "ValueError: Run 'run' does not exist in project 'p'" ]
# Output on 2026-11-29, Python 3.11.7:
#   1. steps 1-4, then 3-6 again:  1:1 2:2 3:3 4:4 3:3 4:4 5:5 6:6
#   2. the first of two resumed:   1:1 2:2 | 1:101 2:102 3:3 4:4
#   3. runs after a resume:        2
#      with resume="must":         ValueError: Run 'run' does not exist in project 'p'
