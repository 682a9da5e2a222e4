"""Runs of `tamis train` whose figures go to the real packages: Weights & Biases, MLflow, Trackio, TensorBoard and
Prometheus.

They need the program (`cargo build -p tamis-cli`, or its path in TAMIS_PROGRAM) and the packages that
scripts/install-loggers installs. If one is missing, its tests are skipped with a message.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("TAMIS_PROGRAM", ROOT / "target/debug/tamis"))
if not PROGRAM.exists():
    print(f"\nSKIPPED: there is no program {PROGRAM}: cargo build -p tamis-cli\n", file=sys.stderr)

# A small policy of characters with arbitrary answers.
SMALL = """
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 256}
data: {task: arithmetic, train_batch_size: 4, max_prompt_length: 64}
sft: {steps: 0}
rollout: {n: 4, max_response_length: 2}
objective: {advantage: {kind: grpo}}
train: {total_steps: 3, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 0, before_train: false}
checkpoint: {save_freq: 0}
"""
# Steps that take a while, as those of a real run do: a queue of figures does not fill while a package is loaded.
SLOW = ["data.train_batch_size=64", "rollout.n=8", "rollout.max_response_length=32", "train.total_steps=100000"]
# The longest wait for anything, because a slow machine is no failure.
PATIENCE = 300


def needs(package):
    """Skips a test, with a message, if a package is not installed."""
    if not PROGRAM.exists():
        return unittest.skip("there is no program")
    if importlib.util.find_spec(package) is None:
        print(f"SKIPPED: tests that need {package}, which {sys.executable} does not have", file=sys.stderr)
        return unittest.skip(f"{package} is not installed")
    return lambda test: test


def environment(**more):
    """The variables of a run without any of Weights & Biases, MLflow, Trackio or a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    return {**kept, "NETRC": os.devnull, "no_proxy": "*", **more}


def launch(arguments, **more):
    """Starts the program and keeps its errors and progress."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([PROGRAM, *arguments], env=environment(**more), **quiet)


def start(folder, loggers, *settings, **more):
    """Starts a run in a folder."""
    config = pathlib.Path(folder) / "run.yaml"
    config.write_text(SMALL)
    return launch(["train", config, f"run.dir={folder}/runs", f"run.loggers={json.dumps(loggers)}", *settings], **more)


def finish(process):
    """Waits for the run's end; returns its exit code and output."""
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def resume(folder, *settings, **more):
    """Resumes the run of a folder."""
    return finish(launch(["train", "--resume", f"{folder}/runs/tiny", *settings], **more))


def rows(folder):
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (pathlib.Path(folder) / "runs/tiny/metrics.jsonl").read_text().splitlines()]


def parents():
    """The parent and the state of every process."""
    found = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = status.read_text().rsplit(")", 1)[1].split()[:2]
            found[int(status.parent.name)] = (int(parent), state)
    return found


def descendants(number):
    """Processes that a process started, and those that they started, by their command lines."""
    table, found = parents(), [number]
    for one in found:
        found += [child for child, (parent, _) in table.items() if parent == one]
    lines = {}
    for one in found[1:]:
        with contextlib.suppress(OSError):
            lines[one] = pathlib.Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return lines


def side_process(process):
    """The process of the only logger of a run."""
    (found,) = [number for number, line in descendants(process.pid).items() if "tamis.loggers" in line]
    return found


def leave_nothing(test, process):
    """Kills a run, and checks that everything it started ends."""
    started = descendants(process.pid)
    test.assertTrue(any("tamis.loggers" in line for line in started.values()), started)
    process.kill()
    process.communicate(timeout=PATIENCE)

    def is_over():
        table = parents()
        left = {number: line for number, line in started.items() if table.get(number, (0, "Z"))[1] != "Z"}
        return not left

    until(is_over, f"the end of {started}")


def read_until(process, text):
    """The output of a run up to a line with a text in it."""
    said = ""
    for line in iter(process.stderr.readline, ""):
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text} was not said:\n{said}")


def files_with(folder, secret):
    """The files of a folder that have a text in them."""
    files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    return [str(path) for path in files if secret.encode() in path.read_bytes()]


def until(look, what):
    """The result of `look`, once it has one."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come")


def wandb_records(path):
    """The records of a `.wandb` file: blocks of 32 KiB as LevelDB's log has them, after a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, b""
    while at < len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def wandb_history(path):
    """The rows of the history in a `.wandb` file."""
    found = []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


@needs("wandb")
class WandbTests(unittest.TestCase):
    """Runs that log to Weights & Biases, offline."""

    LOGGER = {"kind": "wandb", "num_samples": 2, "python": sys.executable, "project": "sieve", "finish_timeout": "300s"}

    def files(self, folder):
        """The files of the sessions, in their order."""
        return sorted(pathlib.Path(folder).glob("runs/tiny/wandb/offline-run-*/*.wandb"))

    def test_a_resumed_run_goes_on_in_the_same_run(self):
        with tempfile.TemporaryDirectory() as folder:
            status, said = finish(start(folder, ["jsonl", self.LOGGER]))
            self.assertEqual(status, 0, said)
            self.assertNotIn("loses metrics", said)
            self.assertIn("offline, for `wandb sync", said)
            status, said = resume(folder, "train.total_steps=5")
            self.assertEqual(status, 0, said)
            first, second = self.files(folder)
            self.assertEqual(first.name, second.name, "both are of one run")
            runs = [record.run for record in wandb_records(first) if record.WhichOneof("record_type") == "run"]
            self.assertEqual((runs[0].project, runs[0].display_name), ("sieve", "tiny"))
            config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
            self.assertEqual(config["rollout"]["n"], 4)
            history = wandb_history(first) + wandb_history(second)
            logged = [row for row in history if "critic/rewards/mean" in row]
            self.assertEqual([row["training/global_step"] for row in logged], [1, 2, 3, 4, 5])
            for row, expected in zip(logged, rows(folder), strict=True):
                self.assertEqual(row["critic/rewards/mean"], expected["critic/rewards/mean"])
                self.assertEqual(row["actor/lr"], expected["actor/lr"])
            shown = [row for row in history if any(name.startswith("distribution/") for name in row)]
            self.assertEqual(len(shown), 5)
            row = shown[0]
            self.assertEqual(row["distribution/response_length._type"], "histogram")
            self.assertEqual(sum(row["distribution/response_length.values"]), 16)
            self.assertEqual((row["samples._type"], row["samples.nrows"]), ("table-file", 2))

    def test_a_process_that_is_killed_stops_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            process = start(folder, ["jsonl", self.LOGGER], *SLOW)
            until(lambda: self.files(folder), "a file of wandb")
            os.kill(side_process(process), signal.SIGKILL)
            said = read_until(process, "the logger `wandb` loses metrics; the run continues without it: its process ")
            before = len(rows(folder))
            until(lambda: len(rows(folder)) > before + 1, "a further step")
            process.send_signal(signal.SIGINT)
            status, more = finish(process)
            self.assertEqual(status, 130, said + more)
            self.assertNotIn("loses metrics", more, "it is told once")
            self.assertRegex(more, r"the logger `wandb` lost \d+ of \d+ records")

    def test_an_interruption_reaches_the_run_and_ends_the_logger_in_order(self):
        with tempfile.TemporaryDirectory() as folder:
            process = start(folder, ["jsonl", self.LOGGER], *SLOW)
            until(lambda: self.files(folder), "a file of wandb")
            process.send_signal(signal.SIGINT)
            status, said = finish(process)
            self.assertEqual(status, 130, said)
            self.assertNotIn("loses metrics", said)
            exits = [record for record in wandb_records(self.files(folder)[0]) if record.WhichOneof("record_type") == "exit"]
            self.assertEqual([record.exit.exit_code for record in exits], [1])

    def test_a_run_that_is_killed_leaves_no_process(self):
        with tempfile.TemporaryDirectory() as folder:
            process = start(folder, ["jsonl", self.LOGGER], *SLOW)
            until(lambda: self.files(folder), "a file of wandb")
            leave_nothing(self, process)

    def test_a_key_is_in_no_file_of_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            key = "f00d" * 10
            status, said = finish(start(folder, ["jsonl", {**self.LOGGER, "mode": "offline"}], WANDB_API_KEY=key))
            self.assertEqual(status, 0, said)
            self.assertEqual(len(self.files(folder)), 1)
            self.assertEqual(files_with(folder, key), [])

    def test_a_server_that_is_not_there_is_waited_for_no_longer_than_said(self):
        with tempfile.TemporaryDirectory() as folder:
            logger = {**self.LOGGER, "mode": "online", "finish_timeout": "1s"}
            away = {"WANDB_API_KEY": "f00d" * 10, "WANDB_BASE_URL": "http://127.0.0.1:1"}
            status, said = finish(start(folder, ["jsonl", logger], **away))
            self.assertEqual(status, 0, said)
            self.assertIn("the logger `wandb` did not deliver its last metrics within 1 s (its `finish_timeout`)", said)
            self.assertEqual(len(rows(folder)), 3)


class NamedTests(unittest.TestCase):
    """Loggers given only by name: every key has its default."""

    def start(self, name):
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
            status, said = finish(start(folder, ["jsonl", name], PATH=path, TRACKIO_DIR=f"{folder}/store"))
            self.assertEqual(status, 0, said)
            self.assertNotIn("loses metrics", said)
            return said

    @needs("wandb")
    def test_wandb(self):
        self.assertIn("offline, for `wandb sync", self.start("wandb"))

    @needs("trackio")
    def test_trackio(self):
        self.assertIn("for `trackio show --project tamis`", self.start("trackio"))


@unittest.skipUnless(PROGRAM.exists(), "there is no program")
class HangingTests(unittest.TestCase):
    """A process that reads nothing and prints nothing."""

    def start(self, folder, *settings):
        python = pathlib.Path(folder) / "python"
        python.write_text("#!/bin/sh\nsleep 1000 & wait # $*\n")
        python.chmod(0o755)
        return start(folder, ["jsonl", {"kind": "wandb", "python": str(python), "finish_timeout": "1s"}], *settings)

    def test_one_that_hangs_is_stopped_at_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            status, said = finish(self.start(folder))
            self.assertEqual(status, 0, said)
            self.assertIn("the logger `wandb` did not deliver its last metrics within 1 s", said)
            self.assertEqual(len(rows(folder)), 3)

    def test_one_that_hangs_is_not_left_by_a_run_that_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start(folder, *SLOW)
            until(lambda: any("tamis.loggers" in line for line in descendants(process.pid).values()), "the logger")
            leave_nothing(self, process)


class WithoutPackageTests(unittest.TestCase):
    """The process beside a run whose interpreter has no package for the logger."""

    def test_a_package_that_is_not_there_is_told_with_what_to_install(self):
        for kind, package in [("wandb", "wandb"), ("mlflow", "mlflow-skinny"), ("trackio", "trackio")]:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                absent = f"raise ModuleNotFoundError('there is none', name='{kind}')\n"
                (pathlib.Path(folder) / f"{kind}.py").write_text(absent)
                settings = pathlib.Path(folder) / "settings.json"
                given = {"run": "tiny", "folder": folder, "settings": {"tracking_uri": None}, "config": {}}
                settings.write_text(json.dumps(given))
                path = os.pathsep.join([folder, str(ROOT / "python")])
                ended = subprocess.run(
                    [sys.executable, "-m", "tamis.loggers", kind, settings],
                    env=environment(PYTHONPATH=path, PYTHONSAFEPATH="1"),
                    input='{"step": 1, "metrics": {}}\n{"close": "finished"}\n',
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                )
                self.assertEqual(ended.returncode, 0, ended.stderr)
                said = [json.loads(line) for line in ended.stdout.splitlines()]
                fix = f"`{os.path.abspath(sys.executable)} -m pip install {package}`, or the logger's `python` names another interpreter"
                reason = f"the package `{kind}` is not there: {fix}"
                self.assertEqual(said, [{"failed": reason}])


    def test_a_place_that_the_package_cannot_write_to_is_told_with_the_key(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "mlflow"
            package.mkdir()
            (package / "exceptions.py").write_text("class MlflowException(Exception):\n    pass\n")
            (package / "entities.py").write_text("Metric = Param = None\n")
            (package / "__init__.py").write_text(
                "from .exceptions import MlflowException\n"
                "def MlflowClient(tracking_uri):\n    raise MlflowException(f'no such scheme: {tracking_uri}')\n"
                "def get_tracking_uri():\n    return 'sqlite:///mlflow.db'\n"
            )
            settings = pathlib.Path(folder) / "settings.json"
            given = {"run": "tiny", "folder": folder, "settings": {"tracking_uri": None}, "config": {}}
            settings.write_text(json.dumps(given))
            path = os.pathsep.join([folder, str(ROOT / "python")])
            more = environment(PYTHONPATH=path, PYTHONSAFEPATH="1")
            more.pop("MLFLOW_TRACKING_URI", None)
            ended = subprocess.run(
                [sys.executable, "-m", "tamis.loggers", "mlflow", settings],
                env=more,
                input='{"close": "finished"}\n',
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            self.assertEqual(ended.returncode, 0, ended.stderr)
            (said,) = [json.loads(line) for line in ended.stdout.splitlines()]
            reason = "sqlite:///mlflow.db is no place for this package (MlflowException): set `tracking_uri` to a server"
            self.assertEqual(said, {"failed": reason})


@needs("mlflow")
class MlflowTests(unittest.TestCase):
    """Runs that log to a server of MLflow."""

    LOGGER = {"kind": "mlflow", "python": sys.executable, "finish_timeout": "300s"}

    def free_port(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            return holder.getsockname()[1]

    @contextlib.contextmanager
    def server(self, folder):
        """A server of MLflow, as its own command starts it."""
        port = self.free_port()
        store = pathlib.Path(folder) / "mlflow"
        store.mkdir()
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{store}/runs.db", "--default-artifact-root", str(store)]
        with open(store / "log", "w") as log:
            # Its jobs need packages that figures do not.
            more = environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
            process = subprocess.Popen(command, env=more, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"

            def is_up():
                self.assertIsNone(process.poll(), (store / "log").read_text())
                with contextlib.suppress(OSError):
                    return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200

            until(is_up, "the server of MLflow")
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)

    def test_a_resumed_run_goes_on_in_the_same_run(self):
        import mlflow

        with tempfile.TemporaryDirectory() as folder, self.server(folder) as address:
            logger = {**self.LOGGER, "tracking_uri": address, "experiment": "sieve"}
            validated = "validate={test_freq: 1, before_train: true}"
            status, said = finish(start(folder, ["jsonl", logger], validated))
            self.assertEqual(status, 0, said)
            self.assertNotIn("loses metrics", said)
            status, said = resume(folder, "train.total_steps=5")
            self.assertEqual(status, 0, said)
            client = mlflow.MlflowClient(tracking_uri=address)
            experiment = client.get_experiment_by_name("sieve")
            (run,) = client.search_runs([experiment.experiment_id])
            self.assertEqual((run.info.run_name, run.info.status), ("tiny", "FINISHED"))
            self.assertEqual(run.data.params["rollout.n"], "4")
            found = client.get_metric_history(run.info.run_id, "critic/rewards/mean")
            expected = [(row["step"], row["critic/rewards/mean"]) for row in rows(folder) if row["step"] > 0]
            self.assertEqual([(one.step, one.value) for one in found], expected)
            self.assertEqual([step for step, _ in expected], [1, 2, 3, 4, 5])
            validated = [name for name in run.data.metrics if name.startswith("val-core/")]
            self.assertTrue(any("mean_1" in name for name in validated), "`@` is no letter of MLflow's names")

    def test_a_password_is_in_no_file_of_the_run(self):
        with tempfile.TemporaryDirectory() as folder, self.server(folder) as address:
            logger = {**self.LOGGER, "experiment": "sieve"}
            secret = address.replace("://", "://me:s3cret@")
            status, said = finish(start(folder, ["jsonl", logger], MLFLOW_TRACKING_URI=secret))
            self.assertEqual(status, 0, said)
            self.assertNotIn("loses metrics", said)
            self.assertIn(f" at {address}\n", said)
            self.assertNotIn("s3cret", said)
            self.assertEqual(files_with(f"{folder}/runs", "s3cret"), [])

    def test_a_server_that_says_nothing_is_waited_for_no_longer_than_said(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            logger = {**self.LOGGER, "tracking_uri": address, "finish_timeout": "1s"}
            status, said = finish(start(folder, ["jsonl", logger]))
            self.assertEqual(status, 0, said)
            self.assertIn("the logger `mlflow` did not deliver its last metrics within 1 s", said)
            self.assertIn("the logger `mlflow` lost 3 of 3 records", said)
            self.assertEqual(len(rows(folder)), 3)

    def test_a_server_that_is_not_there_stops_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            address = f"http://127.0.0.1:{self.free_port()}"
            logger = {**self.LOGGER, "tracking_uri": address}
            status, said = finish(start(folder, ["jsonl", logger]))
            self.assertEqual(status, 0, said)
            self.assertEqual(said.count("the logger `mlflow` loses metrics"), 1, said)
            self.assertIn("the logger `mlflow` lost 3 of 3 records", said)
            self.assertEqual(len(rows(folder)), 3)


@needs("trackio")
class TrackioTests(unittest.TestCase):
    """Runs that log to Trackio's store, which is read back without the package."""

    LOGGER = {
        "kind": "trackio",
        "num_samples": 2,
        "python": sys.executable,
        "project": "sieve",
        "finish_timeout": "300s",
    }

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.store = self.folder / "store"

    def session(self, records, run="runs/tiny", ending="finished", **more):
        """The output of a session of a run for its starter, from records to its end."""
        folder = self.folder / run
        (folder / "loggers").mkdir(parents=True, exist_ok=True)
        settings = self.folder / "settings.json"
        keys = {"project": "sieve", "group": "small"}
        config = {"rollout": {"n": 4}, "limit": None}
        settings.write_text(json.dumps({"run": folder.name, "folder": str(folder), "settings": keys, "config": config}))
        ended = subprocess.run(
            [sys.executable, "-m", "tamis.loggers", "trackio", settings],
            env=environment(**{"TRACKIO_DIR": str(self.store), "PYTHONPATH": str(ROOT / "python"), **more}),
            input="".join(json.dumps(record) + "\n" for record in [*records, {"close": ending}]),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def read(self, query):
        """The rows that a query finds in the database of the project."""
        with contextlib.closing(sqlite3.connect(f"{(self.store / 'sieve.db').as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()

    def stored(self):
        """The rows of each run, by its id."""
        found = {}
        for run, step, figures in self.read("SELECT run_id, step, metrics FROM metrics ORDER BY id"):
            found.setdefault(run, []).append((step, json.loads(figures)))
        return found

    def test_a_resumed_run_has_each_step_once(self):
        run = self.folder / "runs/tiny"
        settings = ["checkpoint={save_freq: 2, keep_last: 3}", "train.total_steps=5"]
        store = {"TRACKIO_DIR": str(self.store)}
        status, said = finish(start(self.folder, ["jsonl", self.LOGGER], *settings, **store))
        self.assertEqual(status, 0, said)
        self.assertNotIn("loses metrics", said)
        self.assertIn(f": run tiny in {self.store}, for `trackio show --project sieve`", said)
        # As if it had been killed before the later checkpoints: the steps 3 to 5 come again.
        for later in (4, 5):
            shutil.rmtree(run / f"checkpoints/step_{later}")
        status, said = resume(self.folder, "train.total_steps=7", **store)
        self.assertEqual(status, 0, said)
        self.assertNotIn("loses metrics", said)
        self.assertNotIn(" lost ", said)
        ((number, found),) = self.stored().items()
        self.assertEqual(json.loads((run / "loggers/trackio.json").read_text()), {"id": number})
        logged = [(step, row) for step, row in found if "critic/rewards/mean" in row]
        self.assertEqual([step for step, _ in logged], [1, 2, 3, 4, 5, 6, 7])
        for (step, row), expected in zip(logged, rows(self.folder), strict=True):
            self.assertEqual((step, row["critic/rewards/mean"]), (expected["step"], expected["critic/rewards/mean"]))
            self.assertEqual(row["actor/lr"], expected["actor/lr"])
            self.assertFalse([name for name in row if name.startswith("__")], "a name that the package renamed")
        shown = [(step, row) for step, row in found if "distribution/response_length" in row]
        self.assertEqual([step for step, _ in shown], [1, 2, 3, 4, 5, 6, 7])
        histogram = shown[0][1]["distribution/response_length"]
        self.assertEqual((histogram["_type"], sum(histogram["values"])), ("trackio.histogram", 16))
        self.assertEqual(len(histogram["bins"]), len(histogram["values"]) + 1)
        table = shown[0][1]["samples"]
        self.assertEqual((table["_type"], len(table["_value"])), ("trackio.table", 2))
        self.assertEqual(set(table["_value"][0]), {"prompt", "completion", "reward", "verdict"})
        ((name, config),) = self.read("SELECT run_name, config FROM configs")
        self.assertEqual((name, json.loads(config)["rollout"]["n"]), ("tiny", 4))

    def test_figures_that_a_step_lacks_are_added_after_a_resume(self):
        self.session([{"step": 1, "metrics": {"a": 1}}, {"step": 2, "metrics": {"a": 2}}], ending="failed")
        validated = {"step": 2, "metrics": {"val": 0.5}}
        shown = {"step": 2, "histograms": {"lengths": {"edges": [0, 1, 2], "counts": [3, 1]}}, "samples": []}
        again = [{"step": 1, "metrics": {"a": 1}}, {"step": 2, "metrics": {"a": 2}}, shown, validated]
        said = self.session([*again, {"step": 3, "metrics": {"a": 3}}])
        self.assertEqual(said[1:], [{"arrived": 1}] * 5, "what is there has arrived")
        (found,) = self.stored().values()
        lengths = {"_type": "trackio.histogram", "bins": [0, 1, 2], "values": [3, 1]}
        before, after = [(1, {"a": 1}), (2, {"a": 2})], [(2, {"lengths": lengths}), (2, {"val": 0.5}), (3, {"a": 3})]
        self.assertEqual(found, before + after)

    def test_no_value_is_left_out_and_infinities_are_kept(self):
        figures = {"nothing": None, "nan": "NaN", "most": "Infinity", "least": "-Infinity", "zero": 0}
        self.session([{"step": 0, "metrics": figures}, {"step": 1, "metrics": {"nothing": None}}])
        (found,) = self.stored().values()
        self.assertEqual(found, [(0, {"most": "Infinity", "least": "-Infinity", "zero": 0})])
        ((config,),) = self.read("SELECT config FROM configs")
        kept = json.loads(config)
        self.assertEqual((kept["rollout"], kept["limit"], kept["_Group"]), ({"n": 4}, None, "small"))

    def test_another_run_of_the_same_name_is_another_run(self):
        self.session([{"step": 1, "metrics": {"a": 1}}], run="first/tiny")
        self.session([{"step": 1, "metrics": {"a": 10}}], run="second/tiny")
        # The package's own `resume` takes the newest run of that name.
        self.session([{"step": 1, "metrics": {"a": 1}}, {"step": 2, "metrics": {"a": 2}}], run="first/tiny")
        first, second = self.stored().values()
        self.assertEqual(first, [(1, {"a": 1}), (2, {"a": 2})])
        self.assertEqual(second, [(1, {"a": 10})])
        self.assertEqual(self.read("SELECT DISTINCT run_name FROM metrics"), [("tiny",)])

    def test_a_run_that_was_renamed_keeps_its_name(self):
        self.session([{"step": 1, "metrics": {"a": 1}}])
        rename = "import trackio; next(iter(trackio.Api().runs('sieve'))).rename('best')"
        subprocess.run([sys.executable, "-c", rename], env=environment(TRACKIO_DIR=str(self.store)), check=True)
        said = self.session([{"step": 2, "metrics": {"a": 2}}])
        self.assertIn("run best in ", said[0]["said"])
        self.assertEqual(self.read("SELECT DISTINCT run_name FROM metrics"), [("best",)])

    def test_rows_that_are_not_in_the_database_yet_come_once(self):
        # What the package does in a folder on a network file system: a dashboard moves the rows into the
        # database.
        files = {"TRACKIO_STORAGE_MODE": "jsonl"}
        move = "import trackio.fragments; trackio.fragments.import_inbox_dir()"
        for last in (2, 4, 6):
            self.session([{"step": step, "metrics": {"a": step}} for step in range(1, last + 1)], **files)
            self.assertTrue(list(self.store.glob("inbox/*/*.jsonl")))
            if last != 2:
                subprocess.run([sys.executable, "-c", move], env=environment(TRACKIO_DIR=str(self.store)), check=True)
        (found,) = self.stored().values()
        self.assertEqual(sorted(found), [(step, {"a": step}) for step in range(1, 7)])

    def test_figures_stay_on_this_machine(self):
        with socket.socket() as outside:
            outside.bind(("127.0.0.1", 0))
            outside.listen()
            outside.settimeout(0)
            address = f"http://127.0.0.1:{outside.getsockname()[1]}"
            server = {"TRACKIO_SERVER_URL": f"{address}?write_token=s3cret"}
            hub = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_s3cret"}
            said = self.session([{"step": 1, "metrics": {"a": 1}}], **server, **hub)
            with self.assertRaises(BlockingIOError):
                outside.accept()
        stays = "TRACKIO_SERVER_URL is not used: figures stay on this machine, and `trackio sync` uploads them"
        self.assertIn({"said": stays}, said)
        self.assertEqual(list(self.stored().values()), [[(1, {"a": 1})]])
        self.assertEqual(files_with(self.folder, "s3cret"), [])

    def test_a_folder_that_cannot_be_written_to_is_told_with_the_fix(self):
        self.store.write_text("no folder")
        said = self.session([{"step": 1, "metrics": {"a": 1}}])
        reason = f"{self.store} cannot be written to (File exists): set TRACKIO_DIR to a folder that can be written to"
        self.assertEqual(said, [{"failed": reason}])

    def test_a_row_that_the_package_drops_is_a_failure(self):
        # In place of the database; many users set this filter against warnings of other packages.
        (self.store / "sieve.db").mkdir(parents=True)
        said = self.session([{"step": 1, "metrics": {"a": 1}}], PYTHONWARNINGS="ignore")
        failed = [line["failed"] for line in said if "failed" in line]
        self.assertTrue(any("trackio failed to flush metric logs for run 'tiny'" in reason for reason in failed), said)


@needs("prometheus_client")
class PrometheusTests(unittest.TestCase):
    """Runs that Prometheus scrapes, by its own parser."""

    def test_a_scrape_is_read_by_the_parser(self):
        from prometheus_client.parser import text_string_to_metric_families

        with tempfile.TemporaryDirectory() as folder:
            logger = {"kind": "prometheus", "address": "127.0.0.1:0"}
            process = start(folder, ["jsonl", logger], "train.total_steps=100000")
            try:
                # The lines before it are read here, those after it at the end.
                address = re.search(r"(http://\S+/metrics)", read_until(process, "/metrics"))[1]

                def scrape():
                    answer = urllib.request.urlopen(address, timeout=PATIENCE)
                    self.assertEqual(answer.headers.get_content_type(), "text/plain")
                    found = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
                    return found if "tamis_critic_rewards_mean" in found else None

                found = until(scrape, "a step")
            finally:
                process.send_signal(signal.SIGINT)
                finish(process)
            for family in found.values():
                self.assertEqual(family.type, "gauge")
                self.assertTrue(family.documentation, family.name)
                for sample in family.samples:
                    self.assertEqual(sample.labels["run"], "tiny")
            stages = {sample.labels["stage"] for sample in found["tamis_timing_s"].samples}
            self.assertTrue({"adv", "gen", "update_actor"} <= stages, stages)
            self.assertIn("tamis_timing_s_step", found, "the step is none of its stages")
            logged = {name for row in rows(folder) for name, value in row.items() if value is not None} - {"step"}
            shown = sum(len(family.samples) for family in found.values())
            self.assertGreaterEqual(shown, 0.9 * len(logged), "nearly every metric is there after the first steps")


@needs("tensorboard")
class TensorboardTests(unittest.TestCase):
    """Event files of runs, by TensorBoard's own reader."""

    def test_scalars_histograms_and_texts_are_read(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with tempfile.TemporaryDirectory() as folder:
            status, said = finish(start(folder, ["jsonl", "tensorboard"]))
            self.assertEqual(status, 0, said)
            reader = EventAccumulator(f"{folder}/runs/tiny/tensorboard", size_guidance={"histograms": 0, "tensors": 0})
            reader.Reload()
            tags = reader.Tags()
            rewards = [(event.step, event.value) for event in reader.Scalars("critic/rewards/mean")]
            for (step, value), row in zip(rewards, rows(folder), strict=True):
                self.assertEqual(step, row["step"])
                self.assertAlmostEqual(value, row["critic/rewards/mean"], places=6)
            names = {"distribution/group_reward", "distribution/group_pass_rate", "distribution/response_length"}
            names.add("distribution/advantage")
            self.assertEqual(set(tags["histograms"]) | set(tags["tensors"]) & names, names)
            lengths = reader.Histograms("distribution/response_length")
            self.assertEqual([event.step for event in lengths], [1, 2, 3])
            for event, row in zip(lengths, rows(folder), strict=True):
                value = event.histogram_value
                self.assertEqual((value.num, sum(value.bucket)), (16, 16))
                self.assertAlmostEqual(value.sum / value.num, row["response_length/mean"])
                self.assertEqual((value.min, value.max), (row["response_length/min"], row["response_length/max"]))
            texts = reader.Tensors("samples/0")
            self.assertEqual([event.step for event in texts], [1, 2, 3])
            text = texts[0].tensor_proto.string_val[0].decode()
            self.assertIn("Prompt:\n\n    ", text)
            self.assertIn("Completion:\n\n    ", text)
            metadata = reader.SummaryMetadata("samples/0")
            self.assertEqual(metadata.plugin_data.plugin_name, "text")


if __name__ == "__main__":
    unittest.main()
