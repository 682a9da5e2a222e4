"""Runs of `tamis train` in environments that live elsewhere: Gymnasium's, verifiers', behind HTTP, with tools, by agents.

They need the program (`cargo build -p tamis-cli`, or its path in TAMIS_PROGRAM) and the packages that
scripts/install-environments installs. If one is missing, its tests are skipped with a message.
"""

import contextlib
import http.server
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from test_environments import needs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from guess import Guess  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("TAMIS_PROGRAM", ROOT / "target/debug/tamis"))
if not PROGRAM.exists():
    print(f"\nSKIPPED: there is no program {PROGRAM}: cargo build -p tamis-cli\n", file=sys.stderr)

# A small policy of characters with arbitrary answers.
SMALL = """
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 1024}
data: {train_batch_size: 4, max_prompt_length: 128}
sft: {steps: 0}
rollout: {n: 4, max_response_length: 2}
objective: {advantage: {kind: grpo}}
train: {total_steps: 2, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 0, before_train: false}
checkpoint: {save_freq: 0}
"""

# Tokens from here on are characters; those below end and fill up.
FIRST_CHARACTER = 2

CHAT = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

# Environments of verifiers: one of turns with a rubric of two functions, and one with a tool.
TOY = '''
import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"say {number}", "answer": str(number)} for number in range(8)]


def is_long(completion):
    return float(sum(len(message["content"] or "") for message in completion if message["role"] == "assistant") > 3)


def has_answer(completion, answer):
    return float(any(answer in (message["content"] or "") for message in completion if message["role"] == "assistant"))


class Echo(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"you said {messages[-1]['content']}"}]


def echo():
    rubric = vf.Rubric(funcs=[is_long, has_answer], weights=[0.25, 0.5])
    return Echo(dataset=Dataset.from_list(ROWS), rubric=rubric, max_turns=3)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 41}}</tool_call>'


def is_called(completion):
    return float(any("42" in (message["content"] or "") for message in completion if message["role"] == "tool"))


def adds():
    rows = [{"question": f"sum {number}", "answer": CALL} for number in range(8)]
    rubric = vf.Rubric(funcs=[is_called])
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[add], rubric=rubric, max_turns=2)
'''


def merge(into, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


@unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
class RunTest(unittest.TestCase):
    """A folder, runs in it and what they left."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "config.yaml").write_text(SMALL)
        (self.folder / "chat.jinja").write_text(CHAT)
        (self.folder / "toy.py").write_text(TOY)

    def tamis(self, *arguments, code=0, folder=None):
        """The output of a command."""
        variables = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hub")}
        done = subprocess.run(
            [str(PROGRAM), *arguments], cwd=folder or self.folder, capture_output=True, text=True, timeout=400, env=variables
        )  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout[-2000:] + done.stderr[-4000:])
        return done.stdout + done.stderr

    def train(self, name, environment, *more, code=0):
        """Trains in an environment, whose keys are given as JSON."""
        given = [f"environment={json.dumps(environment)}", f"run.name={name}"]
        return self.tamis("train", "config.yaml", *given, *more, code=code)

    def metrics(self, name):
        lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def rows(self, name, step):
        """The trajectories of a step."""
        import pyarrow.parquet

        path = self.folder / "runs" / name / f"rollouts/step_{step}.parquet"
        return pyarrow.parquet.read_table(path).to_pylist()

    def all_rows(self, name, num_steps=2):
        rows = [row for step in range(1, num_steps + 1) for row in self.rows(name, step)]
        self.assertTrue(rows)
        return rows

    def values(self, name, key):
        """A metric of each step that has it."""
        found = [row[key] for row in self.metrics(name) if key in row]
        self.assertTrue(found, f"no {key} in {sorted(self.metrics(name)[-1])}")
        return found

    def assert_on_policy(self, name, num_steps=2):
        """Generation and training compute the same numbers."""
        self.assertEqual(self.values(name, "actor/ppo_kl"), [0.0] * num_steps)

    def assert_turns_are_sound(self, row):
        """Answers are in the loss, and the text between them is not. Rewards of turns sum to the trajectory's."""
        ends, mask = row["turn_ends"], row["loss_mask"]
        self.assertEqual(ends[-1], len(mask))
        self.assertEqual(len(row["turn_rewards"]), len(ends))
        self.assertAlmostEqual(sum(row["turn_rewards"]), row["reward"], places=5)
        self.assertTrue(all(mask[end - 1] for end in ends), row)
        self.assertEqual(any(not is_written for is_written in mask), len(ends) > 1, row)


class GymnasiumRunTest(RunTest):
    @needs("gymnasium")
    @needs("pyarrow")
    def test_frozen_lake_is_walked_over(self):
        told = self.tamis(
            "train", str(ROOT / "configs/gymnasium.yaml"), f"environment.python={sys.executable}", "run.name=lake",
            "run.threads=1", "train.total_steps=3", "environment.train_size=8", "environment.val_size=8",
            "environment.num_processes=1",
        )  # fmt: skip
        self.assertIn("FrozenLake-v1 (gymnasium): 8 training and 8 held-out levels", told)
        self.assert_on_policy("lake", 3)
        rows = self.all_rows("lake", 3)
        self.assertEqual(len(rows), 3 * 8 * 8)
        for row in rows:
            self.assert_turns_are_sound(row)
            self.assertEqual(row["success"], row["reward"] > 0.5)
            self.assertLessEqual(len(row["turn_ends"]), 12)
        self.assertTrue(any(len(row["turn_ends"]) > 2 for row in rows))
        # A random walk arrives within 12 turns in 1 of 100 cases; this one is not even always understood.
        found = self.values("lake", "train/FrozenLake-v1/success")
        self.assertLessEqual(sum(found) / 3, 0.1)
        self.assertAlmostEqual(sum(found) / 3, sum(row["success"] for row in rows) / len(rows), places=6)
        valid = self.values("lake", "train/FrozenLake-v1/action_is_valid")
        self.assertTrue(all(0 < share < 1 for share in valid), valid)

    @needs("gymnasium")
    def test_what_is_not_there_is_told_before_anything_is_generated(self):
        environment = {"kind": "gymnasium", "id": "FrozenSea-v1", "python": sys.executable, "style": "plain"}
        told = self.train("sea", environment, "data.task=environment", code=2)
        self.assertIn("the environment `gymnasium` does not start", told)
        self.assertIn("failed to make the environment FrozenSea-v1", told)


class VerifiersRunTest(RunTest):
    @needs("verifiers")
    @needs("pyarrow")
    def test_turns_are_rewarded_by_the_rubric(self):
        environment = {
            "kind": "verifiers", "id": "toy.py:echo", "python": sys.executable, "num_processes": 1, "style": "plain",
            "prompting": {"max_turns": 5}, "val_size": 1,
        }  # fmt: skip
        self.train("echo", environment, "data.task=environment")
        self.assert_on_policy("echo")
        rows = self.all_rows("echo")
        for row in rows:
            self.assert_turns_are_sound(row)
            self.assertEqual(len(row["turn_ends"]), 3)
            texts = answers(row)
            wanted = row["prompt"].strip().rpartition(" ")[2]
            expected = 0.25 * (sum(map(len, texts)) > 3) + 0.5 * any(wanted in text for text in texts)
            self.assertAlmostEqual(row["reward"], expected, places=6, msg=str(row))
        self.assertTrue(any(row["reward"] > 0 for row in rows))
        shares = self.values("echo", "train/echo/info/is_long")
        self.assertTrue(all(0 <= share <= 1 for share in shares), shares)

    @needs("verifiers")
    @needs("pyarrow")
    def test_tools_are_called_through_the_chat_template(self):
        environment = {
            "kind": "verifiers", "id": "toy.py:adds", "python": sys.executable, "num_processes": 1, "val_size": 1,
            "prompting": {"max_turns": 3},
        }  # fmt: skip
        told = self.train(
            "adds", environment, "data.task=environment", "model.chat_template=chat.jinja", "rollout.max_response_length=80",
            "sft.steps=150", "sft.batch_size=8", "sft.learning_rate=1e-2",
        )  # fmt: skip
        self.assertIn("add", told)
        self.assert_on_policy("adds")
        rows = self.all_rows("adds")
        for row in rows:
            self.assert_turns_are_sound(row)
            # Its rubric looks for the tool's result.
            self.assertEqual(row["reward"], float("tool: 42" in row["completion"]), row)
        self.assertTrue(any(row["reward"] == 1 for row in rows), rows[0])


def answers(row):
    """The text that the policy wrote in each turn: tokens are characters."""
    characters = iter(row["completion"])
    texts = ["" if token < FIRST_CHARACTER else next(characters) for token in row["token_ids"]]
    found, begin = [], 0
    for end in row["turn_ends"]:
        written = zip(texts[begin:end], row["loss_mask"][begin:end], strict=True)
        found.append("".join(text for text, is_written in written if is_written))
        begin = end
    return found


class GuessHandler(http.server.BaseHTTPRequestHandler):
    """examples/guess.py behind `tamis-environment/1` over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: N802
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = getattr(self, self.path.strip("/"))(**asked)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def hello(self, protocol, settings):
        self.server.settings = settings
        return {
            "protocol": protocol, "name": Guess.name, "max_turns": Guess.max_turns, "tools": [], "system": Guess.system,
            "is_deterministic": True,
        }  # fmt: skip

    def levels(self, split, count, seed):
        from tamis.environments.protocol import level_seed

        return {"levels": [{"level": level_seed(seed, split, i), "prompt": "guess"} for i in range(count)]}

    def reset(self, episode, level, luck):
        self.server.episodes[episode] = guess = Guess()
        return {"messages": [{"role": "user", "content": guess.reset(level, int(luck))}]}

    def step(self, episode, action):
        told = self.server.episodes[episode].step(action)
        return {
            "messages": [{"role": "user", "content": told["observation"]}], "reward": told["reward"],
            "terminated": told["done"], "truncated": told["truncated"] and not told["done"],
            "success": told["success"] if told["done"] or told["truncated"] else None, "info": told["info"],
        }  # fmt: skip

    def close(self, episode):
        self.server.episodes.pop(episode, None)
        return {}


@contextlib.contextmanager
def served():
    """A server of guesses on a port of its own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), GuessHandler)
    server.daemon_threads, server.episodes = True, {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def without_clock(row):
    """A row of metrics without those that a clock or the machine determines."""
    timed = ("timing", "perf/")
    return {name: value for name, value in row.items() if not name.startswith(timed) and "time" not in name}


class HttpRunTest(RunTest):
    def test_a_server_is_as_good_as_workers(self):
        shared = {"style": "plain", "prompting": {"max_turns": 4}, "train_size": 16, "val_size": 4}
        path = f"{ROOT / 'examples/guess.py'}:Guess"
        more = ("data.task=environment", "validate.before_train=true", "validate.temperature=1.0")
        workers = {"kind": "python", "path": path, "python": sys.executable, "num_processes": 1, **shared}
        self.train("workers", workers, *more)
        with served() as server:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            self.train("server", {"kind": "http", "url": url, "settings": {"secret": 3}, **shared}, *more)
            self.assertEqual(server.settings, {"secret": 3})
            # Every episode is closed, without a wait for that.
            until = time.monotonic() + 60
            while server.episodes and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(server.episodes, {})
        self.assert_on_policy("server")
        found, expected = self.metrics("server"), self.metrics("workers")
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected, strict=True):
            self.assertEqual(without_clock(one), without_clock(other))
        self.assertTrue(all(math.isfinite(x) for x in self.values("server", "train/guess/info/distance")))

    def test_a_server_that_is_not_there_is_told(self):
        with served() as server:
            port = server.server_address[1]
        told = self.train("gone", {"kind": "http", "url": f"http://127.0.0.1:{port}"}, "data.task=environment", code=2)
        self.assertIn("the environment `http` does not start", told)
        self.assertIn("does the server of `environment.url` run?", told)


class ToolRunTest(RunTest):
    @needs("pyarrow")
    def test_functions_and_the_interpreter_are_tools(self):
        calls = {
            "add": {"name": "add", "arguments": {"a": 1, "b": 41}},
            "python": {"name": "python", "arguments": {"code": "print(6*7)"}},
        }
        lines = [
            {"prompt": name, "ground_truth": f"<tool_call>{json.dumps(call)}</tool_call>"} for name, call in calls.items()
        ]
        (self.folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines * 8))
        environment = {
            "kind": "tools", "functions": [f"{ROOT / 'examples/tools.py'}:add"], "interpreter": True,
            "python": sys.executable, "num_processes": 1, "prompting": {"max_turns": 2},
        }  # fmt: skip
        told = self.train(
            "tools", environment, "data.train=prompts.jsonl", "data.prompt_format=chat", "reward=[{kind: exact}]",
            "model.chat_template=chat.jinja", "rollout.max_response_length=80", "sft.steps=200",
            "sft.batch_size=8", "sft.learning_rate=1e-2",
        )  # fmt: skip
        self.assertRegex(told, "tools: python, add|tools: add, python")
        # The protection of the place in which the policy's code runs, whatever this machine has.
        self.assertRegex(told, r"sandbox \(Python .*\): .*limits")
        self.assert_on_policy("tools")
        rows = self.all_rows("tools")
        for row in rows:
            self.assert_turns_are_sound(row)
        for name in calls:
            of_name = [row for row in rows if len(row["turn_ends"]) == 2 and f"{name}\n" in row["prompt"]]
            self.assertTrue(any("tool: 42" in row["completion"] for row in of_name), (name, rows[:2]))
        self.assertTrue(all(calls >= 0 for calls in self.values("tools", "train/tools/num_tool_calls")))


class AgentRunTest(RunTest):
    @needs("openai")
    @needs("pyarrow")
    def test_an_agent_of_openais_client_is_trained(self):
        # A few steps of the example, which trains for longer: every episode imports the client.
        told = self.tamis(
            "train", str(ROOT / "configs/agent.yaml"), "run.name=agent", f"environment.argv[0]={sys.executable}",
            f"environment.argv[1]={ROOT / 'examples/agent.py'}", "train.total_steps=2", "data.train_batch_size=2",
            "rollout.n=4", "validate.before_train=false", "validate.test_freq=0",
        )  # fmt: skip
        self.assertIn("programs ask the policy at http://127.0.0.1:", told)
        self.assert_on_policy("agent")
        rows = self.all_rows("agent")
        self.assertEqual(len(rows), 2 * 2 * 4)
        for row in rows:
            self.assert_turns_are_sound(row)
            self.assertEqual(row["success"], row["reward"] == 1, row)
            # After an answer without a call, another answer is requested as a part of the same text.
            self.assertEqual(len(row["turn_ends"]), 2 if "\nu: Call add.\na: " in row["completion"] else 1, row)
            self.assertEqual(row["text_starts"], [], row)
            self.assertTrue(row["reward"] == 0 or "</tool_call>" in row["completion"], row)
        self.assertTrue(any(row["reward"] == 1 for row in rows), [row["completion"] for row in rows])
        self.assertTrue(any(len(row["turn_ends"]) == 2 for row in rows))
        self.assertEqual(self.values("agent", "train/program/num_calls_refused")[-1], 0.0)


if __name__ == "__main__":
    unittest.main()
