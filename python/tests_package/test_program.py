"""The program of the wheel: it runs as itself, ends on a signal, and starts children with the environment's Python."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tamis

PROGRAM = pathlib.Path(sys.executable).parent / "tamis"
SUMS = [
    "model.init={architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, "
    "max_position_embeddings: 32}",
    "data.task=arithmetic",
    "data.max_prompt_length=16",
    "data.train_batch_size=4",
    "rollout.n=2",
    "rollout.max_response_length=4",
    "run.name=sums",
]


def environment():
    """Without the environment's own folder on PATH, as if it were not activated."""
    return {**os.environ, "PATH": "/usr/bin:/bin"}


def run(*arguments, folder):
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, env=environment(), check=False, timeout=300
    )


def test_it_is_the_package_in_version(tmp_path):
    assert run("--version", folder=tmp_path).stdout == f"tamis {tamis.__version__}\n"


def test_a_run_is_interrupted_and_resumed(tmp_path):
    command = [PROGRAM, "train", *SUMS, "train.total_steps=100000"]
    started = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment())
    metrics = tmp_path / "runs/sums/metrics.jsonl"
    for _ in range(3000):
        if metrics.exists() and metrics.read_text().count("\n") > 1:
            break
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=300)
    assert started.returncode == 130, told[-2000:]
    steps = metrics.read_text().count("\n")
    resumed = run("train", "--resume", "runs/sums", f"train.total_steps={steps + 2}", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr[-2000:]


def test_the_learner_is_started_with_the_python_beside_it(tmp_path):
    # A Python that ends at once prints its caller.
    beside = tmp_path / "bin"
    beside.mkdir()
    program = beside / "tamis"
    program.write_bytes(PROGRAM.read_bytes())
    program.chmod(0o755)
    python = beside / "python3"
    python.write_text('#!/bin/sh\necho "started as $0" >&2\nexit 1\n')
    python.chmod(0o755)
    command = [program, "train", *SUMS, "train.total_steps=1", "learner.backend=torch"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment(), check=False, timeout=300)
    assert done.returncode != 0
    assert f"started as {python}" in done.stderr, done.stderr[-2000:]


def test_it_needs_no_python(tmp_path):
    # A binary, and no script that starts an interpreter.
    assert PROGRAM.read_bytes()[:2] != b"#!"
    with pytest.raises(ImportError):
        import tamis_native  # noqa: F401
