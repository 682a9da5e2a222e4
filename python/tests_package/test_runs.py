"""Runs from Python: started, read, and refused as the program refuses them."""

import io
import pathlib
import pickle
import signal
import sys
import threading
import types

import pytest
import tamis
import tamis.runs

try:
    tamis.runs._program()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SUMS = {
    "model": {
        "init": {
            "architecture": "qwen3",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_layers": 1,
            "num_heads": 2,
            "num_kv_heads": 1,
            "max_position_embeddings": 32,
        }
    },
    "data.task": "arithmetic",
    "data": {"max_prompt_length": 16, "train_batch_size": 4},
    "rollout": {"n": 2, "max_response_length": 4},
    "run.name": "sums",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "stderr", io.StringIO())
        run = tamis.train(SUMS, {"train.total_steps": 2, "checkpoint.save_freq": 1})
        printed = sys.stderr.getvalue()
    assert run.path == folder / "runs/sums" and "done: 2 steps" in printed
    return run


def test_tables_of_a_run(run):
    run = tamis.Run(run.path, frames="list")
    metrics = run.metrics()
    assert [row["step"] for row in metrics][-2:] == [1, 2] and "actor/lr" in metrics[-1]
    assert [row["step"] for row in run.checkpoints()] == [1, 2]
    last = run.checkpoints()[-1]
    assert last["bytes"] > (pathlib.Path(last["path"]) / "model.safetensors").stat().st_size > 0
    rollouts = run.rollouts()
    assert len(rollouts) == 8 and {row["step"] for row in rollouts} == {2}
    assert [row["group_id"] for row in run.rollouts(step=1, verdict="trained")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert run.config()["rollout.n"] == 2
    # A line that is being written is not read.
    with open(run.path / "metrics.jsonl", "a+") as file:
        end = file.tell()
        file.write('{"step": 3, "act')
        file.flush()
        assert run.metrics() == metrics
        file.truncate(end)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_a_run(run, library):
    module = pytest.importorskip(library)
    frames = tamis.Run(run.path, frames=library)
    rows = tamis.Run(run.path, frames="list")
    for table, expected in ((frames.metrics(), rows.metrics()), (frames.rollouts(), rows.rollouts())):
        assert isinstance(table, module.DataFrame) and len(table) == len(expected)
        assert set(table.columns) == {key for row in expected for key in row}
        assert list(table["step"]) == [row["step"] for row in expected]
    assert list(frames.checkpoints()["step"]) == [1, 2]
    # A filter reads such a frame.
    rollouts = frames.rollouts()
    verdicts = tamis.Filter().judge(rollouts, groups="group_id")
    flags = tamis.Filter().keep(rollouts, "group_id")
    assert list(flags) == [verdicts[group].kept for group in rollouts["group_id"]] and len(verdicts) == 4


def test_a_run_is_resumed_and_its_model_exported(run, tmp_path):
    again = tamis.train(overrides=["train.total_steps=3"], resume=run, quiet=True)
    assert tamis.Run(again.path, frames="list").checkpoints()[-1]["step"] == 3
    folder = again.export(tmp_path / "model", dtype="bf16")
    assert (folder / "config.json").exists() and (folder / "model.safetensors").exists()
    with pytest.raises(tamis.ConfigError, match="model"):
        again.export(folder)
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 9; it has those of the steps: "):
        again.export(tmp_path / "other", step=9)


def test_errors_are_those_of_the_program(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tamis.ConfigError) as caught:
        tamis.train("grpo", {"model.paht": "x"})
    message, hint = caught.value.problems[0]
    # With its place.
    assert message.startswith("unknown key `model.paht`\n --> command line") and hint == "did you mean `model.path`?"
    with pytest.raises(tamis.ConfigError, match="there is no model") as caught:
        tamis.train("grpo")
    assert len(caught.value.problems) > 2 and all(hint for _, hint in caught.value.problems)
    with pytest.raises(tamis.ConfigError, match="did you mean `dapo`"):
        tamis.train("dapoo")
    with pytest.raises((tamis.ConfigError, tamis.RunError), match="nosuch.yaml"):
        tamis.train("nosuch.yaml")
    with pytest.raises(tamis.ConfigError, match="`rollout.n` cannot be nan"):
        tamis.train({"rollout.n": float("nan")})
    with pytest.raises(TypeError, match="a list of `key=value`"):
        tamis.train("grpo", "rollout.n=8")
    with pytest.raises((tamis.RunError, tamis.ConfigError), match="step 7"):
        run.rollouts(step=7)
    error = pickle.loads(pickle.dumps(tamis.RunError("error: it failed\n  hint: mend it", 3)))
    assert (str(error), error.code) == ("error: it failed\n  hint: mend it", 3)


def test_what_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run directory: it has no config.yaml"):
        tamis.Run(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run directory: it is not there"):
        tamis.Run(tmp_path / "missing")


def test_the_frames_that_there_are(run):
    with pytest.raises(ValueError, match="cannot be 'arrow': expected one of pandas, polars, list"):
        tamis.Run(run.path, frames="arrow")


def test_an_interrupt_saves_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = tmp_path / "runs/sums/metrics.jsonl"
    main = threading.main_thread().ident
    ended = threading.Event()

    def interrupt():
        while not ended.wait(0.05):
            if metrics.exists() and metrics.read_text().count("\n") > 1:
                signal.pthread_kill(main, signal.SIGINT)
                return

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tamis.train(SUMS, {"train.total_steps": 100000}, quiet=True)
    finally:
        ended.set()
        watcher.join()
    checkpoints = tamis.Run(tmp_path / "runs/sums", frames="list").checkpoints()
    rows = tamis.Run(tmp_path / "runs/sums", frames="list").metrics()
    assert checkpoints[-1]["step"] == rows[-1]["step"]


def test_a_model_is_pushed_to_a_hub(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        run.push_to_hub("me/sums")
    calls = []

    class HfApi:
        def __init__(self, token):
            calls.append(token)

        def create_repo(self, repo_id, private, exist_ok):
            calls.append((repo_id, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, revision, commit_message):
            calls.append((repo_id, sorted(file.name for file in folder_path.iterdir()), revision, commit_message))
            return types.SimpleNamespace(commit_url="https://hub/me/sums/commit/1")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=HfApi))
    assert run.push_to_hub("me/sums", private=True, token="secret") == "https://hub/me/sums/commit/1"
    assert calls[:2] == ["secret", ("me/sums", True, True)]
    repo, files, revision, message = calls[2]
    assert (repo, revision, message) == ("me/sums", None, "Trained with tamis: run sums")
    assert "config.json" in files and "model.safetensors" in files and "optimizer.safetensors" not in files
