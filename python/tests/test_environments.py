"""The worker of environments: its protocol, and environments of Gymnasium, verifiers and a user's own in it.

Every test speaks to a process as tamis does. Those of Gymnasium and verifiers need the packages, which
scripts/install-environments installs; without them the tests are skipped with a message.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

from tamis.environments.board import plain_board  # noqa: E402
from tamis.environments.tool_calls import split_calls  # noqa: E402

PATIENCE = 120.0
LUCK = "18446744073709551615"


def needs(package):
    """Skips a test if a package is not installed."""
    is_there = importlib.util.find_spec(package) is not None
    if not is_there:
        hint = "scripts/install-environments makes .venv-environments"
        print(f"\nSKIPPED: {package} is not installed; {hint}\n", file=sys.stderr)
    return unittest.skipUnless(is_there, f"{package} is not installed")


class Worker:
    """A process, asked by requests whose answers may come in any order."""

    def __init__(self, folder, python=sys.executable):
        # Programs that an environment starts find its files, too.
        path = os.pathsep.join([str(PACKAGE), str(folder)])
        environment = {**os.environ, "PYTHONPATH": path, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
        self.process = subprocess.Popen(
            [python, "-m", "tamis.environments"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=environment,
        )  # fmt: skip
        self._answers, self._changed, self._is_over, self._num_asked = {}, threading.Condition(), False, 0
        self.errors = b""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            with self._changed:
                self._answers[answer.pop("id")] = answer
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _read_errors(self):
        self.errors = self.process.stderr.read()

    def send(self, op, **values):
        """Sends a request without waiting; returns the number to wait for."""
        self._num_asked += 1
        self.write(json.dumps({"id": self._num_asked, "op": op, **values}))
        return self._num_asked

    def write(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, number):
        """The answer of a request."""
        with self._changed:
            is_there = self._changed.wait_for(lambda: number in self._answers or self._is_over, PATIENCE)
            if number not in self._answers:
                raise AssertionError(f"no answer to {number}: " + ("the process ended" if is_there else "time is over"))
            return self._answers.pop(number)

    def is_answered(self, number):
        with self._changed:
            return number in self._answers

    def ask(self, op, **values):
        """The answer of a request, which must be no error."""
        answer = self.wait(self.send(op, **values))
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer

    def fails(self, op, **values):
        """The error of a request."""
        return self.wait(self.send(op, **values))["error"]

    def hello(self, **settings):
        return self.ask("hello", protocol="tamis-environment/1", settings=settings)

    def refuses(self, **settings):
        return self.fails("hello", protocol="tamis-environment/1", settings=settings)

    def end(self):
        """Closes its input; returns what it wrote to standard error, and its status."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            for reader in self._readers:
                reader.join()
            self.process.stdout.close()
            self.process.stderr.close()
        return self.errors.decode(), self.process.returncode


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.worker = self.start()

    def start(self):
        worker = Worker(self.folder)
        self.addCleanup(worker.end)
        return worker

    def file(self, name, text):
        """A file in the worker's working directory."""
        pathlib.Path(self.folder, name).write_text(textwrap.dedent(text))
        return name


GUESS = """
    import os, sys, threading, time

    class Guess:
        system = "Guess a number from 0 to 9."
        is_deterministic = True

        def __init__(self, noisy=False, **more):
            self.noisy = noisy

        def reset(self, level, luck):
            if self.noisy:
                print("this is no answer")
                os.system("echo neither is this")
                os.write(1, b"nor this")
            self.secret, self.luck, self.turns = level % 10, luck, 0
            return "Your guess?"

        def close(self):
            if self.noisy:
                print(f"closed {self.secret}")

        def step(self, text):
            self.turns += 1
            if text == "raise":
                raise ValueError("an answer that it does not like")
            if text == "exit":
                sys.exit(3)
            if text == "nan":
                return "Again?", float("nan"), False
            if text == "hang":
                time.sleep(1000)
            if text == "silence":
                return None, 0, False
            if text == "tool":
                return [{"role": "tool", "content": "12\\ud800"}], 0, False
            if text == "system":
                return [{"role": "system", "content": "no"}], 0, False
            if text == "luck":
                return str(self.luck), 0, False
            if text == "read":
                return repr(sys.stdin.read()), 0, False
            right = text == str(self.secret)
            return {"observation": "Wrong. Again?", "reward": float(right), "done": right,
                    "truncated": self.turns == 3, "success": right, "info": {"turns": self.turns}}
"""


STUCK = """
    import time

    class Closes:
        def reset(self, level, luck):
            return "start"

        def step(self, text):
            if text == "hang":
                time.sleep(1000)
            return "on", 0.0, False

        def close(self):
            time.sleep(1000)
"""

RESULTS = """
    class Results:
        def __init__(self, results):
            self.results = results

        def reset(self, level, luck):
            return "start"

        def step(self, text):
            result = self.results[int(text)]
            if result == "numpy":
                import numpy
                return {"observation": "x", "reward": 0, "done": numpy.bool_(True), "success": numpy.bool_(False)}
            return tuple(result) if isinstance(result, list) else result
"""

TOOLS = """
    import asyncio, sys

    async def waits(x: int) -> str:
        "Waits."

    def yields(x: int) -> str:
        "Yields."
        yield "a"

    def ends(x: int) -> str:
        "Ends."
        sys.exit(x)

    def stops(x: int) -> str:
        "Stops."
        raise KeyboardInterrupt

    def talks(x: int) -> str:
        "Talks."
        return "x" * x
"""


class StuckTests(Case):
    def test_environments_that_do_not_close_take_no_thread_for_ever(self):
        self.file("stuck.py", STUCK)
        self.worker.hello(kind="python", path="stuck.py:Closes", num_threads=2)
        for name in "abcd":
            self.worker.ask("reset", episode=name, level=1, luck=LUCK)
        for name in "abcd":
            self.worker.ask("close", episode=name)
        # Both threads close; the others wait for them.
        self.worker.ask("reset", episode="e", level=1, luck=LUCK)
        errors, _ = self.worker.end()
        self.assertIn("closing the environment of the episode a takes more than 10 s: abandoned", errors)

    def test_a_process_ends_where_too_many_calls_were_given_up(self):
        self.file("stuck.py", STUCK)
        self.worker.hello(kind="python", path="stuck.py:Closes", num_threads=1)
        for number in range(4):
            self.worker.ask("reset", episode=f"e{number}", level=1, luck=LUCK)
            self.worker.send("step", episode=f"e{number}", action="hang")
            time.sleep(0.5)
            with contextlib.suppress(OSError):
                self.worker.send("close", episode=f"e{number}")
        self.assertEqual(self.worker.process.wait(PATIENCE), 1)
        self.assertIn("4 abandoned calls still run: this process ends", self.worker.end()[0])


class ToolTests(Case):
    def setUp(self):
        super().setUp()
        self.file("tools.py", TOOLS)

    def test_what_is_no_plain_function_is_refused(self):
        for name in ("waits", "yields"):
            error = self.start().refuses(kind="tools", functions=[f"tools.py:{name}"])
            self.assertEqual(error["message"], f"the tool {name} is asynchronous or a generator")
            self.assertIn("plain function", error["hint"])

    def test_whatever_a_tool_raises_is_its_message_and_long_answers_are_cut(self):
        self.worker.hello(kind="tools", functions=[f"tools.py:{name}" for name in ("ends", "stops", "talks")])
        self.worker.ask("reset", episode="e", level={}, luck=LUCK)

        def call(name, x):
            action = json.dumps({"name": name, "arguments": {"x": x}})
            answer = self.worker.ask("step", episode="e", action=action)
            return answer["messages"][0]["content"], answer["info"]["tool_failed"]

        self.assertEqual(call("ends", 3), ("SystemExit: 3", 1.0))
        self.assertEqual(call("stops", 3), ("KeyboardInterrupt: ", 1.0))
        self.assertEqual(call("talks", 65536), ("x" * 65536, 0.0))
        self.assertEqual(call("talks", 65538), ("x" * 65536 + "\n[2 characters were left out]", 0.0))


class ResultTests(Case):
    def step(self, result):
        self.file("results.py", RESULTS)
        worker = self.start()
        worker.hello(kind="python", path="results.py:Results", args={"results": [result]})
        worker.ask("reset", episode="e", level=1, luck=LUCK)
        return worker.wait(worker.send("step", episode="e", action="0"))

    def test_a_fourth_that_is_a_dict_is_info(self):
        answer = self.step(["x", 0.0, False, {"n": 2}])
        self.assertEqual((answer["truncated"], answer["info"]), (False, {"n": 2.0}))
        self.assertTrue(self.step(["x", 0.0, False, True])["truncated"])

    def test_what_is_true_or_false_is_no_other_value(self):
        for name in ("done", "terminated", "truncated", "success"):
            error = self.step({"observation": "x", "reward": 0, name: "no"})["error"]["message"]
            self.assertEqual(error, f"`{name}` of what `step` returned must be true or false, and is 'no'")
        self.assertIn("`terminated`", self.step(["x", 0.0, 1])["error"]["message"])

    @needs("numpy")
    def test_those_of_numpy_are_taken(self):
        answer = self.step("numpy")
        self.assertEqual((answer["terminated"], answer["success"]), (True, False))


class PythonKindTests(Case):
    def setUp(self):
        super().setUp()
        self.file("guess.py", GUESS)

    def play(self, *answers, level=3, episode="e"):
        self.worker.ask("reset", episode=episode, level=level, luck=LUCK)
        return [self.worker.ask("step", episode=episode, action=answer) for answer in answers]

    def test_an_episode_from_hello_to_close(self):
        hello = self.worker.hello(kind="python", path="guess.py:Guess")
        self.assertEqual(
            hello,
            {"protocol": "tamis-environment/1", "name": "Guess", "max_turns": None, "tools": [],
             "system": "Guess a number from 0 to 9.", "is_deterministic": True},
        )  # fmt: skip
        begun = self.worker.ask("reset", episode="e", level=13, luck=LUCK)
        self.assertEqual(begun, {"messages": [{"role": "user", "content": "Your guess?"}]})
        self.assertEqual(
            self.worker.ask("step", episode="e", action="7"),
            {"messages": [{"role": "user", "content": "Wrong. Again?"}], "reward": 0.0, "terminated": False,
             "truncated": False, "success": False, "info": {"turns": 1.0}},
        )  # fmt: skip
        self.assertEqual(
            self.worker.ask("step", episode="e", action="3"),
            {"messages": [], "reward": 1.0, "terminated": True, "truncated": False, "success": True,
             "info": {"turns": 2.0}},
        )  # fmt: skip
        self.assertIn("is over", self.worker.fails("step", episode="e", action="3")["message"])
        self.assertEqual(self.worker.ask("close", episode="e"), {})
        self.assertEqual(self.worker.ask("close", episode="e"), {})
        self.assertIn("no episode e", self.worker.fails("step", episode="e", action="3")["message"])
        self.assertEqual(self.worker.end(), ("", 0))

    def test_seeds_are_levels_of_a_class_that_lists_none_and_no_level_is_in_both_splits(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        found = {}
        for split in ("train", "held_out"):
            levels = self.worker.ask("levels", split=split, count=300, seed=7)["levels"]
            self.assertEqual(levels, self.worker.ask("levels", split=split, count=301, seed=7)["levels"][:300])
            self.assertEqual({level["prompt"] for level in levels}, {"Your guess?"})
            found[split] = {level["level"] for level in levels}
            self.assertEqual(len(found[split]), 300)
        self.assertFalse(found["train"] & found["held_out"])
        self.assertNotEqual(levels, self.worker.ask("levels", split="held_out", count=300, seed=8)["levels"])

    def test_a_class_lists_its_own_levels(self):
        self.file(
            "listed.py",
            """
            class Listed:
                def levels(self, split, count, seed):
                    if split == "held_out":
                        return [{"lvel": 1}]
                    prompts = [[{"role": "user", "content": str(n)}] for n in range(2)]
                    return [{"level": {"n": n}, "prompt": prompt, "ground_truth": n + seed}
                            for n, prompt in enumerate(prompts)]
                def reset(self, level, luck): return "unused"
                def step(self, text): return None, 1, True
            """,
        )
        self.worker.hello(kind="python", path="listed.py:Listed")
        listed = self.worker.ask("levels", split="train", count=9, seed=5)["levels"]
        self.assertEqual([level["ground_truth"] for level in listed], ["5", "6"])
        prompt = [{"role": "user", "content": "1"}]
        self.assertEqual(listed[1], {"level": {"n": 1}, "prompt": prompt, "ground_truth": "6"})
        self.assertEqual(len(self.worker.ask("levels", split="train", count=1, seed=5)["levels"]), 1)
        self.assertIn("lists {'lvel': 1}", self.worker.fails("levels", split="held_out", count=1, seed=5)["message"])

    def test_what_an_environment_prints_goes_to_standard_error(self):
        self.worker.hello(kind="python", path="guess.py:Guess", args={"noisy": True})
        self.play("3")
        self.play("4", level=14, episode="left")
        errors, status = self.worker.end()
        # Episodes that are left are closed.
        for text in ("this is no answer", "neither is this", "nor this", "closed 3", "closed 4"):
            self.assertIn(text, errors)
        self.assertEqual(status, 0)

    def test_an_environment_that_reads_standard_input_finds_it_empty(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        self.assertEqual(self.play("read")[0]["messages"][0]["content"], "''")

    def test_luck_is_handed_on_as_the_number_that_it_is(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        self.assertEqual(self.play("luck")[0]["messages"], [{"role": "user", "content": LUCK}])

    def test_tools_answer_and_half_a_surrogate_pair_does_not_break_the_line(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        self.assertEqual(self.play("tool")[0]["messages"], [{"role": "tool", "content": "12?"}])

    def test_an_exception_names_its_place_and_costs_its_episode_alone(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        self.play("7", episode="other")
        for answer, expected in {
            "raise": "ValueError: an answer that it does not like (line 26 of ",
            "exit": "SystemExit: 3 (line 28 of ",
            "nan": "the reward is nan, and must be a finite number",
            "silence": "the episode continues, but the environment returned no observation",
            "system": "the observation has a message of the role system",
        }.items():
            with self.subTest(answer):
                self.play("1")
                self.assertIn(expected, self.worker.fails("step", episode="e", action=answer)["message"])
                self.assertIn("no episode e", self.worker.fails("step", episode="e", action="3")["message"])
        self.assertTrue(self.worker.ask("step", episode="other", action="3")["success"])

    def test_a_hanging_episode_holds_up_no_other_and_can_be_closed(self):
        self.worker.hello(kind="python", path="guess.py:Guess", num_threads=2)
        hanging = []
        for number in range(6):
            self.worker.ask("reset", episode=f"h{number}", level=3, luck="0")
            hanging.append(self.worker.send("step", episode=f"h{number}", action="hang"))
            self.assertIn("at work", self.worker.fails("step", episode=f"h{number}", action="3")["message"])
            if number > 0:
                # One thread of the two stays free.
                self.worker.ask("close", episode=f"h{number}")
                self.assertIn("closed while it was at work", self.worker.wait(hanging[-1])["error"]["message"])
            self.assertTrue(self.play("3", episode=f"o{number}")[0]["success"])
        self.assertFalse(self.worker.is_answered(hanging[0]))

    def test_many_episodes_are_played_at_once(self):
        self.worker.hello(kind="python", path="guess.py:Guess")
        resets = [self.worker.send("reset", episode=str(n), level=n, luck=str(n)) for n in range(200)]
        for number in resets:
            self.worker.wait(number)
        steps = [self.worker.send("step", episode=str(n), action=str(n % 10)) for n in range(200)]
        self.assertTrue(all(self.worker.wait(number)["success"] for number in steps))

    def test_requests_that_break_the_protocol_are_refused_by_name(self):
        self.assertIn("send `hello` first", self.worker.fails("reset", episode="e", level=1, luck="0")["hint"])
        self.assertIn("tamis-environment/2", self.worker.fails("hello", protocol="tamis-environment/2")["message"])
        self.worker.hello(kind="python", path="guess.py:Guess")
        self.assertIn("already", self.worker.refuses(kind="python", path="guess.py:Guess")["message"])
        for values, expected in [
            ({"op": "restart"}, "must be one of hello, levels, reset, step, cut, close"),
            ({"op": "reset", "episode": "e", "level": 1}, "has no `luck` (a text)"),
            ({"op": "reset", "episode": "e", "level": 1, "luck": 5}, "`luck` of the request must be a text, and is 5"),
            ({"op": "reset", "episode": "e", "level": 1, "luck": str(1 << 64)}, "a decimal u64"),
            ({"op": "step", "episode": "e", "action": "3"}, "there is no episode e"),
            ({"op": "step", "episode": "e", "acton": "3"}, "has no `action`"),
            ({"op": "close", "episode": "e", "now": 1}, "unknown key `now`"),
            ({"op": "levels", "split": "test", "count": 1}, "must be one of train, held_out, and is 'test'"),
            ({"op": "levels", "split": "train", "count": -1}, "a whole number from 0 on, and is -1"),
        ]:
            with self.subTest(values):
                self.assertIn(expected, self.worker.fails(**values)["message"])
        self.worker.ask("reset", episode="e", level=1, luck="0")
        self.assertIn("there already", self.worker.fails("reset", episode="e", level=1, luck="0")["message"])
        self.assertIn("cannot be cut", self.worker.fails("cut", episode="e")["message"])
        for line in ("{", "[1]", "\x00"):
            self.worker.write(line)
            self.assertIn("a request must be an object on one line", self.worker.wait(None)["error"]["message"])

    def test_settings_that_cannot_work_are_refused_with_what_to_do(self):
        self.file("broken.py", "import no_such_module\n")
        self.file("open.py", "class Guess(:\n")
        self.file("half.py", "class Half:\n    def reset(self, level, luck): return ''\n")
        for settings, expected in [
            ({"kind": "gym"}, "must be one of gymnasium, verifiers, python, tools, and is 'gym'"),
            ({"kind": "python"}, "the environment has no `path`"),
            ({"kind": "python", "path": "guess.py"}, "write FILE.py:NAME or MODULE:NAME"),
            ({"kind": "python", "path": "none.py:Guess"}, "names a file that is not there"),
            ({"kind": "python", "path": "guess.py:Gess"}, "has no function or class `Gess`"),
            ({"kind": "python", "path": "broken.py:Guess"}, "No module named 'no_such_module' (line 1 of "),
            ({"kind": "python", "path": "broken.py:Guess"}, "-m pip install no_such_module`), or name an interpreter"),
            ({"kind": "python", "path": "no_such_module:Guess"}, "among the packages of `python`"),
            ({"kind": "python", "path": "open.py:Guess"}, "SyntaxError: invalid syntax None"),
            ({"kind": "python", "path": "half.py:Half"}, "has no method `step`"),
            ({"kind": "python", "path": "guess.py:Guess", "arg": {}}, "did you mean `args`?"),
            ({"kind": "python", "path": "guess.py:Guess", "args": []}, "must be an object, and is []"),
        ]:
            with self.subTest(settings):
                error = self.worker.refuses(**settings)
                self.assertIn(expected, f"{error['message']} {error['hint']}")
        self.worker.hello(kind="python", path="guess.py:Guess")


@needs("gymnasium")
class GymnasiumTests(Case):
    def prompts(self, split="train", count=20):
        levels = self.worker.ask("levels", split=split, count=count, seed=1)["levels"]
        return [(level["level"], level["prompt"]) for level in levels]

    def test_frozen_lake_is_drawn_and_walked_to_its_goal(self):
        hello = self.worker.hello(
            kind="gymnasium", id="FrozenLake-v1", make_args={"is_slippery": False},
            actions=["Left", "Down", "Right", "Up"],
        )  # fmt: skip
        self.assertEqual((hello["name"], hello["max_turns"], hello["is_deterministic"]), ("FrozenLake-v1", 100, True))
        self.assertIn("Actions: Left, Down, Right, Up.", hello["system"])
        self.assertIn("<answer>Left</answer>", hello["system"])
        level, prompt = self.prompts()[0]
        self.assertEqual(prompt, "[S]FFF\nFHFH\nFFFH\nHFFG")
        self.assertEqual(self.worker.ask("reset", episode="e", level=level, luck="1"), {"messages": None})
        step = self.worker.ask("step", episode="e", action="I go down.\n<answer>DOWN</answer>")
        self.assertEqual(step["messages"], [{"role": "user", "content": "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"}])
        self.assertEqual(step["info"], {"action_is_valid": 1.0, "action_is_effective": 1.0, "num_actions": 1.0})
        self.assertIs(step["success"], False)
        step = self.worker.ask("step", episode="e", action="<answer>north</answer>")
        self.assertIn("names no action, and nothing happened. Actions: Left, Down", step["messages"][0]["content"])
        self.assertIn("[F]HFH", step["messages"][0]["content"])
        self.assertEqual((step["reward"], step["info"]["action_is_valid"]), (-0.1, 0.0))
        step = self.worker.ask("step", episode="e", action="Action: Left.")
        self.assertEqual((step["info"]["action_is_valid"], step["info"]["action_is_effective"]), (1.0, 0.0))
        for action in ("Down", "2", "(right)", "down", "not Left? Right!\n\n**Down**", "right"):
            self.assertEqual(step["terminated"], False)
            step = self.worker.ask("step", episode="e", action=action)
            self.assertEqual(step["info"].get("action_is_valid"), 1.0, action)
        self.assertEqual((step["reward"], step["terminated"], step["success"], step["messages"]), (1.0, True, True, []))

    def test_a_member_has_the_start_of_its_group_and_its_own_luck(self):
        self.worker.hello(kind="gymnasium", id="FrozenLake-v1", make_args={"map_name": "8x8"}, observation="space")
        level, prompt = self.prompts()[0]
        self.assertEqual(prompt, "0")

        def walk(luck, episode):
            self.worker.ask("reset", episode=episode, level=level, luck=luck)
            places = []
            for _ in range(12):
                step = self.worker.ask("step", episode=episode, action="2")
                places.append([message["content"] for message in step["messages"]])
                if step["terminated"]:
                    break
            return places

        walks = [walk(str(luck), f"e{luck}") for luck in range(8)]
        self.assertGreater(len({json.dumps(one) for one in walks}), 3)
        self.assertEqual(walks, [walk(str(luck), f"again{luck}") for luck in range(8)])

    def test_maps_of_the_levels_seed(self):
        self.file(
            "maps.py",
            """
            from gymnasium.envs.toy_text.frozen_lake import generate_random_map

            def lake(seed):
                return {"desc": generate_random_map(size=4, seed=seed)}
            """,
        )
        error = self.worker.refuses(kind="gymnasium", id="FrozenLake-v1", make_args={"map_name": None, "desc": None})
        self.assertIn("open differently", error["message"])
        self.assertIn("`level_args`", error["hint"])
        self.worker.hello(kind="gymnasium", id="FrozenLake-v1", level_args="maps.py:lake", max_turns=2)
        maps = dict((level["seed"], prompt) for level, prompt in self.prompts())
        self.assertGreater(len(set(maps.values())), 10)
        for seed, prompt in maps.items():
            self.worker.ask("reset", episode=str(seed), level={"seed": seed}, luck="0")
            step = self.worker.ask("step", episode=str(seed), action="?")
            self.assertIn(prompt, step["messages"][0]["content"])
        step = self.worker.ask("step", episode=str(seed), action="?")
        self.assertEqual((step["terminated"], step["truncated"], step["success"]), (False, True, False))

    def test_taxis_colours_are_said(self):
        hello = self.worker.hello(
            kind="gymnasium", id="Taxi", max_turns=3, instruction="Drive.",
            actions=["South", "North", "East", "West", "Pickup", "Dropoff"],
        )  # fmt: skip
        self.assertEqual((hello["max_turns"], hello["system"]), (3, "Drive."))
        openings = self.prompts(count=40)
        for _, prompt in openings:
            self.assertRegex(prompt, r"(?s)^\+-+\+\n.*blue")
            self.assertIn("magenta", prompt)
            self.assertNotIn("\x1b", prompt)
        self.assertTrue(any("[ ]" in prompt for _, prompt in openings))
        held_out = {level["seed"] for level, _ in self.prompts("held_out")}
        self.assertFalse({level["seed"] for level, _ in openings} & held_out)
        self.worker.ask("reset", episode="e", level=openings[0][0], luck="0")
        steps = [self.worker.ask("step", episode="e", action=action) for action in ("pickup", "South", "South")]
        self.assertEqual([step["reward"] for step in steps][1:], [-1.0, -1.0])
        self.assertEqual([step["truncated"] for step in steps], [False, False, True])
        self.assertIs(steps[-1]["success"], False)

    def test_blackjack_without_a_drawing_is_numbers(self):
        self.worker.hello(kind="gymnasium", id="Blackjack-v1", actions=["Stick", "Hit"])
        level, prompt = self.prompts()[0]
        self.assertRegex(prompt, r"^\d+, \d+, [01]$")
        results = set()
        for luck in range(12):
            self.worker.ask("reset", episode=str(luck), level=level, luck=str(luck))
            step = self.worker.ask("step", episode=str(luck), action="Stick")
            self.assertTrue(step["terminated"])
            self.assertEqual(step["success"], step["reward"] > 0)
            results.add(step["reward"])
        self.assertGreater(len(results), 1, "the dealer's cards are each member's own")

    def test_cart_pole_is_four_numbers_and_a_function_shows_it_better(self):
        self.worker.hello(kind="gymnasium", id="CartPole-v1", actions=["Left", "Right"])
        self.assertRegex(self.prompts()[0][1], r"^(-?\d\.\d+(e-\d+)?(, |$)){4}")
        self.file("shown.py", "def show(observation, cart):\n    return f'{cart.gravity} {len(observation)}'\n")
        other = self.start()
        other.hello(kind="gymnasium", id="CartPole-v1", observation="shown.py:show")
        levels = other.ask("levels", split="train", count=1, seed=0)["levels"]
        self.assertEqual(levels[0]["prompt"], "9.8 4")

    def test_spaces_of_the_users_own(self):
        self.file(
            "registered.py",
            """
            import gymnasium, numpy
            from gymnasium import spaces

            class Lock(gymnasium.Env):
                observation_space = spaces.Dict({"grid": spaces.MultiBinary((2, 2)), "hint": spaces.Text(9),
                    "more": spaces.Tuple([spaces.Discrete(9), spaces.Box(0, 1, (2,), numpy.float64)])})

                def __init__(self, wide=False, continuous=False):
                    self.action_space = spaces.Box(0, 1, (1,)) if continuous else spaces.MultiDiscrete([3, 4])
                    if wide:
                        self.observation_space = spaces.Dict({"pixels": spaces.Box(0, 255, (8, 8, 3))})

                def observe(self):
                    grid = numpy.array([[0, 1], [1, 0]], numpy.int8)
                    return {"grid": grid, "hint": "two", "more": (4, numpy.array([0.5, 1 / 3]))}

                def reset(self, seed=None, options=None):
                    super().reset(seed=seed)
                    return self.observe(), {}

                def step(self, action):
                    done = list(action) == [2, 3]
                    return self.observe(), -1.0, done, False, {"is_success": done}

            gymnasium.register("Lock-v0", Lock)
            """,
        )
        lock = {"kind": "gymnasium", "id": "Lock-v0", "import": "registered"}
        hello = self.worker.hello(**lock)
        self.assertIn("2 whole numbers (MultiDiscrete([3 4]))", hello["system"])
        # A number that is too large for its type does not become another one.
        from gymnasium import spaces
        from tamis.environments.spaces import Actions

        self.assertIsNone(Actions(spaces.MultiBinary(2)).read("<answer>257 256</answer>"))
        self.assertEqual(Actions(spaces.MultiBinary(2)).read("<answer>1 0</answer>").tolist(), [1, 0])
        level, prompt = self.prompts()[0]
        self.assertEqual(prompt, "grid:\n0, 1\n1, 0\nhint: two\nmore: 4, 0.5, 0.3333")
        self.worker.ask("reset", episode="e", level=level, luck="0")
        for action, is_valid in [("2", 0.0), ("2, 4", 0.0), ("[1, 1]", 1.0)]:
            self.assertEqual(self.worker.ask("step", episode="e", action=action)["info"]["action_is_valid"], is_valid)
        step = self.worker.ask("step", episode="e", action="<answer>2 3</answer>")
        self.assertEqual((step["terminated"], step["success"], step["reward"]), (True, True, -1.0))
        other = self.start()
        for more, message, hint in [
            ({"make_args": {"wide": True}}, "has more than 64 numbers", "`observation: FILE.py:show`"),
            ({"make_args": {"continuous": True}}, "actions of the space Box(0.0, 1.0, (1,), float32)", "kind: python"),
            ({"actions": ["a", "b"]}, "the environment's are MultiDiscrete([3 4])", "leave `actions` out"),
            ({"observation": "ansi"}, 'does not offer `render_mode="ansi"`', "name a function"),
            ({"id": "Lock-v7"}, "failed to make the environment Lock-v7", "is it registered"),
            ({"import": "no_such_module"}, "failed to import no_such_module", "working directory"),
        ]:
            error = other.refuses(**{**lock, **more})
            self.assertIn(message, error["message"])
            self.assertIn(hint, error["hint"])
        error = other.refuses(kind="gymnasium", id="Taxi", actions=["Left", "Right"])
        self.assertIn("has 2 names, and the environment 6 actions", error["message"])


VERIFIERS = """
    import asyncio
    import verifiers as vf
    from datasets import Dataset

    def rows(*questions):
        return Dataset.from_list([{"question": question, "answer": str(eval(question))} for question in questions])

    def right(completion, answer):
        return float(completion[-1]["content"].strip() == answer)

    def single(**more):
        sums = [f"{n} + {n}" for n in range(20)]
        return vf.SingleTurnEnv(dataset=rows(*sums), rubric=vf.Rubric(funcs=[right]), system_prompt="Compute.",
            few_shot=[{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}], **more)

    class Patience(vf.MultiTurnEnv):
        num_begun = num_ended = 0

        async def setup_state(self, state):
            self.num_begun += 1
            state["tries"] = 0
            return state

        @vf.cleanup
        async def count(self, state):
            self.num_ended += 1

        @vf.stop
        async def is_right(self, state):
            last = state["trajectory"][-1]["completion"][-1]["content"] if state["trajectory"] else ""
            return last == state["answer"]

        async def env_response(self, messages, state, **kwargs):
            state["tries"] += 1
            if messages[-1]["content"] == "wait":
                await asyncio.sleep(1000)
            if messages[-1]["content"] == "count":
                return [{"role": "user", "content": str(self.num_begun - self.num_ended)}]
            if messages[-1]["content"] == "hurry":
                self.timeout_seconds = 5
            if messages[-1]["content"] == "raise":
                raise RuntimeError("out of patience")
            print("printed by the environment")
            return [{"role": "user", "content": f"Wrong, {state['tries']}. Again?"}]

    def tries(state):
        return state["tries"]

    def multi(max_turns=3):
        rubric = vf.Rubric(funcs=[right, tries], weights=[1.0, 0.25])
        return Patience(dataset=rows("2 + 2", "3 * 3", "1 + 1", "5 + 5"), eval_dataset=rows("1 + 1", "7 + 7"),
            rubric=rubric, max_turns=max_turns)

    class Rewriting(Patience):
        async def get_prompt_messages(self, state):
            return [{"role": "user", "content": f"turn {len(state['trajectory'])}"}]

    def rewriting():
        return Rewriting(dataset=rows("2 + 2", "1 + 1"), rubric=vf.Rubric(funcs=[right]), max_turns=3)

    def add(a: int, b: int) -> int:
        '''Adds two numbers.'''
        return a + b

    def tools():
        return vf.ToolEnv(dataset=rows("12 + 30", "1 + 2"), rubric=vf.Rubric(funcs=[right]), tools=[add], max_turns=4)

    def group():
        def best(completions):
            return [0.0 for _ in completions]
        return vf.SingleTurnEnv(dataset=rows("1 + 1"), rubric=vf.Rubric(funcs=[best]))
"""


@needs("verifiers")
class VerifiersTests(unittest.TestCase):
    """verifiers takes seconds to import: an environment's process is shared by the tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        pathlib.Path(cls.folder, "toys.py").write_text(textwrap.dedent(VERIFIERS))
        names = ("toys:single", "toys.py:multi", "toys.py:tools", "toys.py:rewriting")
        cls.workers = {name: Worker(cls.folder) for name in names}
        for worker in cls.workers.values():
            cls.addClassCleanup(worker.end)

    def begin(self, name, row=0, **args):
        """Takes the process of an environment, and begins its episode `e`."""
        self.worker = self.workers[name]
        hello = self.worker.hello(kind="verifiers", id=name, args=args)
        self.reset("e", row)
        return hello

    def reset(self, episode, row=0):
        level = {"dataset": "train", "row": row}
        return self.worker.ask("reset", episode=episode, level=level, luck="0")

    def levels(self, split, count=100):
        return self.worker.ask("levels", split=split, count=count, seed=3)["levels"]

    def step(self, action, episode="e"):
        return self.worker.ask("step", episode=episode, action=action)

    def test_one_turn_with_the_rubrics_reward(self):
        hello = self.begin("toys:single")
        self.assertEqual(
            hello,
            {"protocol": "tamis-environment/1", "name": "single", "max_turns": 1, "tools": [], "system": None,
             "is_deterministic": False, "scores_cut": True},
        )  # fmt: skip
        train, held_out = self.levels("train"), self.levels("held_out")
        self.assertEqual([level["level"]["row"] for level in train], list(range(18)))
        self.assertEqual([level["level"]["row"] for level in held_out], [18, 19])
        self.assertEqual(
            train[4]["prompt"],
            [{"role": "system", "content": "Compute."}, {"role": "user", "content": "1 + 1"},
             {"role": "assistant", "content": "2"}, {"role": "user", "content": "4 + 4"}],
        )  # fmt: skip
        self.assertEqual(train[4]["ground_truth"], "8")
        for answer, reward in [("8", 1.0), ("9", 0.0)]:
            self.assertEqual(self.reset(answer, 4), {"messages": None})
            step = self.step(answer, answer)
            self.assertEqual(step.pop("info")["right"], reward)
            expected = {"messages": [], "reward": reward, "terminated": True, "truncated": False}
            self.assertEqual(step, {**expected, "success": reward == 1.0})

    def test_turns_until_it_is_right_or_they_or_its_time_are_used_up(self):
        hello = self.begin("toys.py:multi")
        self.assertEqual(hello["max_turns"], 3)
        # The row of training that is in the evaluation set too is left out.
        self.assertEqual([level["level"]["row"] for level in self.levels("train")], [0, 1, 3])
        self.assertEqual([level["level"]["row"] for level in self.levels("train", 2)], [0, 1])
        held_out = self.levels("held_out")
        self.assertEqual([level["level"] for level in held_out], [{"dataset": "eval", "row": row} for row in (0, 1)])
        self.assertEqual(
            self.step("5"),
            {"messages": [{"role": "user", "content": "Wrong, 1. Again?"}], "reward": None, "terminated": False,
             "truncated": False, "success": None, "info": {}},
        )  # fmt: skip

        def end(step):
            return step["reward"], step["terminated"], step["truncated"], step["success"]

        step = self.step("4")
        self.assertEqual(end(step), (1.25, True, False, True))
        self.assertEqual(step["info"], {"right": 1.0, "tries": 1.0, "num_turns": 2.0})
        self.reset("late")
        self.assertEqual(end([self.step("5", "late") for _ in range(3)][-1]), (0.5, False, True, True))
        # If there is no room for another answer, the rubric scores the conversation so far.
        self.reset("cut")
        self.step("5", "cut")
        self.assertEqual(end(self.worker.ask("cut", episode="cut")), (0.25, False, True, False))
        self.assertIn("is over", self.worker.fails("step", episode="cut", action="4")["message"])

        # A waiting one delays no other.
        for name in ("closed", "raises", "right"):
            self.reset(name)
        closed = self.worker.send("step", episode="closed", action="wait")
        error = self.worker.fails("step", episode="raises", action="raise")
        self.assertIn("RuntimeError: out of patience (line ", error["message"])
        error = self.worker.fails("step", episode="raises", action="4")
        self.assertIn("no episode raises", error["message"])
        self.worker.ask("close", episode="closed")
        self.assertIn("closed while it was at work", self.worker.wait(closed)["error"]["message"])
        # Immediately, perhaps before the event loop has noticed.
        for _ in range(20):
            self.reset("quick")
            step = self.worker.send("step", episode="quick", action="wait")
            self.assertEqual(self.worker.ask("close", episode="quick"), {})
            self.assertIn("closed while it was at work", self.worker.wait(step)["error"]["message"])
            level = {"dataset": "train", "row": 0}
            reset = self.worker.send("reset", episode="quick", level=level, luck="0")
            self.worker.ask("close", episode="quick")
            self.worker.wait(reset)
        self.assertTrue(self.step("4", "right")["success"])
        # Every rollout is removed in the end, except the one that counts them.
        for number in range(int(PATIENCE * 10)):
            self.reset(f"count{number}")
            left = self.step("count", f"count{number}")["messages"][0]["content"]
            self.worker.ask("close", episode=f"count{number}")
            if left == "1":
                break
            time.sleep(0.1)
        self.assertEqual(left, "1")
        # Ended by its time limit, in the environment or before the answer comes.
        self.reset("hurry")
        self.step("hurry", "hurry")
        self.reset("timed")
        reward, *ended = end(self.step("wait", "timed"))
        self.assertEqual(ended, [False, True, False])
        self.assertIn(reward, (0.0, 0.25))

    def test_tools_are_called_by_text(self):
        hello = self.begin("toys.py:tools")
        self.assertEqual([(tool["type"], tool["function"]["name"]) for tool in hello["tools"]], [("function", "add")])
        self.assertEqual(set(hello["tools"][0]["function"]["parameters"]["properties"]), {"a", "b"})
        call = '<tool_call>\n{"name": "add", "arguments": {"a": %s, "b": 30}}\n</tool_call>'
        step = self.step("Let me see.\n" + call % 12 + "\n" + call % 13)
        self.assertEqual(step["messages"], [{"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}])
        self.assertEqual(self.step(call % '"x"')["messages"][0]["role"], "tool")
        step = self.step("42")
        self.assertEqual((step["reward"], step["terminated"], step["info"]["add_calls"]), (1.0, True, 3.0))

    def test_what_cannot_be_trained_in_is_refused(self):
        self.worker = self.workers["toys.py:rewriting"]
        for settings, expected in [
            ({"id": "toys.py:group"}, "scores the rollouts of a group together"),
            ({"id": "no-such-environment"}, "failed to load the environment no-such-environment"),
            ({"id": "toys.py:multi", "args": {"turns": 2}}, "unexpected keyword argument 'turns'"),
            ({"id": "toys.py:add", "args": {"a": 1, "b": 2}}, "made 3, which is no environment of verifiers"),
        ]:
            self.assertIn(expected, self.worker.refuses(kind="verifiers", **settings)["message"])
        self.begin("toys.py:rewriting")
        self.assertEqual(self.reset("f")["messages"], [{"role": "user", "content": "turn 0"}])
        error = self.worker.fails("step", episode="e", action="1")
        self.assertIn("rewrites the conversation", error["message"])
        level = {"dataset": "train", "row": 9}
        self.assertIn("no row 9 of train", self.worker.fails("reset", episode="g", level=level, luck="0")["message"])


class TextTests(unittest.TestCase):
    def test_colours_of_a_board(self):
        board = "|\x1b[34;1mR\x1b[0m:\x1b[43m \x1b[0m|\n|\x1b[35m\x1b[32;1mY\x1b[0m\x1b[0m: |  \n"
        self.assertEqual(plain_board(board), "|R:[ ]|\n|Y: |\nblue: R\ngreen and magenta: Y")

    def test_calls_that_are_no_json_stay_in_the_text(self):
        call = '<tool_call>{"name": "f", "arguments": {"a": "}"}}</tool_call>'
        self.assertEqual(split_calls(f"So {call}"), ("So", [("f", '{"a": "}"}')]))
        for call in ("{", '{"name": 1}', "[1]", '{"name": "f", "arguments": 1}'):
            text = f" <tool_call>{call}</tool_call> "
            self.assertEqual(split_calls(text), (text, []))


class Conversations(unittest.TestCase):
    def test_messages_keep_the_fields_that_templates_read(self):
        from tamis.environments.rollout import conversation

        message = {"role": "assistant", "content": "4", "reasoning_content": "2+2", "name": "bob", "refusal": None}
        result = {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "1", "name": None}
        kept = {"role": "assistant", "content": "4", "reasoning_content": "2+2", "name": "bob"}
        self.assertEqual(
            conversation([message, result]), [kept, {"role": "tool", "content": "4", "tool_call_id": "1"}]
        )


if __name__ == "__main__":
    unittest.main()
