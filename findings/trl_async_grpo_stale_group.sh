#!/usr/bin/env bash
# TRL 1.16.0 (PyPI): AsyncGRPOTrainer, a checkpoint after a group that was too old to train on.
#
# Expected: a run that is resumed starts with the prompts after those that the checkpoint's run was done with.
# Seen: the checkpoint notes the first group that was not trained on. A group whose rows were all dropped as stale
# (max_staleness) never will be, so the number stays there for the rest of the run, and a resume draws all prompts since
# then again. The epoch count restarts from the same number. The same goes for rows above `token_budget`.
# What helps: take `prompt_index` in rollout_state.json for too small after `sample/dropped_stale_total` was above 0,
# and write the number of prompts drawn there by hand before resuming.
#
# TRL's own queue reader, batcher, collator and `_save_checkpoint` run here; the trainer around them is not begun, for it
# wants a GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check trl==1.16.0 aiohttp==3.14.5 requests==2.34.2 torch==2.15.0 transformers==5.23.0
cat >"$folder/stale.py" <<'PYTHON'
import itertools
import json
import pathlib
import queue
import sys
from collections import defaultdict
from types import SimpleNamespace
from unittest import mock

import numpy as np
from accelerate import PartialState
from transformers import Trainer
from trl.experimental.async_grpo.async_grpo_trainer import (
    AsyncGRPOTrainer,
    DataCollatorForRollout,
    FixedCountBatcher,
    RolloutQueueDataset,
)
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, RolloutSample

PartialState()
GROUPS, STALE = 100, 3
rows = queue.Queue()
for group, member in itertools.product(range(GROUPS), range(4)):
    # Group 3 was begun five updates before the weights of now; `max_staleness` is 4 unless said.
    ids = np.array([1, 2, 3 + member])
    mask, logprobs = np.array([0, 1, 1]), np.array([0.0, -1.0, -1.0], dtype=np.float32)
    version = 0 if group == STALE else 5
    rows.put(RolloutSample([], [], ids, mask, logprobs, 1.0, version, group, {"reward": 1.0}))

trainer = AsyncGRPOTrainer.__new__(AsyncGRPOTrainer)
trainer.accelerator = SimpleNamespace(is_main_process=True)
trainer.rollout_worker = AsyncRolloutWorker.__new__(AsyncRolloutWorker)
trainer.rollout_worker._loop_kwargs = {"dataset_start_index": 0}
trainer.model_version, trainer._trained_groups = 5, set()
metrics = defaultdict(list)
reader = RolloutQueueDataset(rows, lambda: 5, lambda _: None, 300.0, metrics, max_staleness=4)
collate = DataCollatorForRollout(0, groups_trained=trainer._trained_groups, metrics=metrics)
out = pathlib.Path(sys.argv[1])
noted = []
for step, batch in enumerate(itertools.islice(FixedCountBatcher(reader, 1, 8), 49), 1):
    collate.torch_call([batch])
    if step % 12 == 0:
        trainer.state = SimpleNamespace(global_step=step)
        with mock.patch.object(Trainer, "_save_checkpoint"), mock.patch.object(
            AsyncGRPOTrainer, "_get_output_dir", lambda *_, **__: str(out)
        ):
            trainer._save_checkpoint(None, None)
        state = json.loads((out / f"checkpoint-{step}" / "rollout_state.json").read_text())
        noted.append((len(trainer._trained_groups), state["prompt_index"]))
print("rows dropped as stale:", int(sum(metrics["sample/dropped_stale_total"])))
print("groups trained on, prompt_index:", noted)
assert [trained for trained, _ in noted] == [24, 48, 72, 96], noted
assert {index for _, index in noted} == {STALE}, noted
PYTHON
cd "$folder"
TRL_EXPERIMENTAL_SILENCE=1 venv/bin/python stale.py "$folder/out"
# Output on 2026-11-29, Python 3.11.7:
#   rows dropped as stale: 4
#   groups trained on, prompt_index: [(24, 3), (48, 3), (72, 3), (96, 3)]
