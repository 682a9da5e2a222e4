"""Checkpoints between the native engine and the torch learner, both ways.

Needs the program `tamis`: TAMIS_PROGRAM, or what cargo has built under target/.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, ROOT, Case, call, opened

from safetensors import safe_open
from test_checkpoint import save, state, train

PROGRAM = next(
    (
        path
        for path in (os.environ.get("TAMIS_PROGRAM"), ROOT / "target/release/tamis", ROOT / "target/debug/tamis")
        if path and pathlib.Path(path).exists()
    ),
    None,
)
if PROGRAM is None:
    print("\nSKIPPED: there is no program tamis; build it, or name it in TAMIS_PROGRAM\n", file=sys.stderr)
    raise unittest.SkipTest("there is no program tamis")

SHORT = [
    "sft.steps=5", "sft.target_accuracy=null", "~train.lr_schedule", "data.train_batch_size=8", "train.ppo_mini_batch_size=4",
    "validate.before_train=false", "validate.max_prompts=16", "checkpoint.save_freq=1", "preset=ppo", "~filter", "~data.gen_batch_size", "~schedule",
    "model.save_dtype=bf16",
]  # fmt: skip


def tensors(folder):
    """Every tensor of every weights' and optimizer's file in a folder, by file and name, and the files' notes."""
    found, notes = {}, {}
    for path in sorted(folder.rglob("*.safetensors")):
        name = str(path.relative_to(folder))
        with safe_open(path, "pt") as file:
            notes[name] = file.metadata()
            found |= {(name, key): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return found, notes


class Native(Case):
    def tamis(self, *arguments):
        done = subprocess.run([PROGRAM, "train", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_there_and_back(self):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tamis("configs/quickstart.yaml", *SHORT, "train.total_steps=2", f"run.dir={root}", "run.name=run")
        theirs = root / "run/checkpoints/step_2"
        learner = opened(theirs, critic={"optimizer": OPTIMIZER})
        answer, _ = call(learner, "load", {"folder": str(theirs), "content": "checkpoint"})
        self.assertGreater(answer["num_steps"], 0)
        self.assertGreater(state(learner, "critic")[1], 0)
        ours = root / "ours"
        ours.mkdir()
        files = save(learner, ours, dtype="bf16")["files"]
        (found, notes), (expected, expected_notes) = tensors(ours), tensors(theirs)
        self.assertEqual(notes, expected_notes)
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assert_same(found[name], tensor, str(name))
        # After more training in torch, the native engine continues with it.
        for path in ours.rglob("*.*"):
            path.unlink()
        for folder in ("master", "critic"):
            (ours / folder).rmdir()
        train(learner, 1)
        train(learner, 1, "critic")
        steps = state(learner)[1]
        files = save(learner, ours, dtype="bf16")["files"]
        checksums = json.loads((theirs / "checksums.json").read_text())
        for one in files:
            self.assertIn(one["name"], checksums["crc32"])
            checksums["crc32"][one["name"]] = one["crc32"]
            (theirs / one["name"]).write_bytes((ours / one["name"]).read_bytes())
        (theirs / "checksums.json").write_text(json.dumps(checksums))
        self.tamis("--resume", str(root / "run"), "train.total_steps=3")
        with safe_open(root / "run/checkpoints/step_3/optimizer.safetensors", "pt") as file:
            self.assertGreater(int(file.metadata()["step"]), steps)


if __name__ == "__main__":
    unittest.main()
