"""The worker of environments with verifiers from 0.4 on: tasksets, tools and simulated users of the real package.

Its packages and those of the verifiers that test_environments.py plays exclude each other: it has an interpreter of its own,
in .venv-verifiers at the root of the repository (`python3 -m venv .venv-verifiers && .venv-verifiers/bin/pip install
verifiers==0.4.0`) or named by VERIFIERS_PYTHON. Without one these tests are skipped with a message.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

from test_environments import PACKAGE, Worker

PYTHON = os.environ.get("VERIFIERS_PYTHON", str(PACKAGE.parent / ".venv-verifiers/bin/python"))
HAS_TASKSETS = pathlib.Path(PYTHON).exists() and not subprocess.run([PYTHON, "-c", "import verifiers.v1.taskset"]).returncode
if not HAS_TASKSETS:
    print(f"\nSKIPPED: {PYTHON} has no verifiers from 0.4 on: see {__file__}\n", file=sys.stderr)

SUMS = """
    import verifiers.v1 as vf

    class SumData(vf.TaskData):
        answer: str

    class SumTask(vf.Task[SumData]):
        @vf.reward(weight=0.5)
        async def right(self, trace: vf.Trace) -> float:
            return float(trace.last_reply == self.data.answer)

        @vf.metric
        async def length(self, trace: vf.Trace) -> float:
            if trace.last_reply == "raise":
                raise RuntimeError("out of patience")
            return float(len(trace.last_reply))

    class Sums(vf.Taskset[SumTask]):
        def load(self):
            for number in range(25):
                # The second opens as the last of those that are held out.
                prompt = f"1+{20 if number == 1 else number}"
                yield SumTask(SumData(prompt=prompt, system_prompt="Add.", answer=str(eval(prompt))), self.config.task)

    __all__ = ["Sums"]
"""
# Sends one more message, as a user would.
TALK = """
    import verifiers.v1 as vf
    from sums import Sums

    class Talk(vf.SingleAgentEnv):
        async def run(self, task, agents):
            async with agents.agent.interaction(task) as talk:
                segment = await talk.turn()
                while not segment.terminated and talk.trace.num_turns < 3:
                    segment = await talk.turn("Sure?")

    class Talked(Sums):
        pass

    __all__ = ["Talked", "Talk"]
"""
TOOLS = """
    import verifiers.v1 as vf
    from sums import SumTask, Sums

    class Numbers(vf.Toolset[vf.ToolsetConfig]):
        @vf.tool
        def add(self, a: int, b: int) -> int:
            '''Adds two numbers.'''
            return a + b

    class CalledTask(SumTask):
        @classmethod
        def toolsets(cls, config):
            return [Numbers(vf.ToolsetConfig())]

    class Called(vf.Taskset[CalledTask]):
        def load(self):
            return [CalledTask(task.data) for task in Sums(vf.TasksetConfig(id="sums"))]

    __all__ = ["Called"]

    if __name__ == "__main__":
        Numbers.run()
"""


@unittest.skipUnless(HAS_TASKSETS, f"{PYTHON} has no verifiers from 0.4 on")
class TasksetTests(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        for name, text in {"sums": SUMS, "talk": TALK, "calls": TOOLS}.items():
            pathlib.Path(self.folder, f"{name}.py").write_text(textwrap.dedent(text))
        self.worker = Worker(self.folder, PYTHON)
        self.addCleanup(self.worker.end)

    def begin(self, name, number=2, **args):
        """Takes an environment, and begins its episode `e` on a task."""
        hello = self.worker.hello(kind="verifiers", id=name, args=args)
        self.assertEqual(self.reset("e", number), {"messages": None})
        return hello

    def reset(self, episode, number):
        return self.worker.ask("reset", episode=episode, level={"task": number}, luck="0")

    def step(self, action, episode="e"):
        return self.worker.ask("step", episode=episode, action=action)

    def test_tasks_are_levels_and_a_reply_is_scored(self):
        hello = self.begin("sums", 11)
        self.assertEqual((hello["name"], hello["max_turns"], hello["tools"]), ("sums", None, []))
        step = self.step("12")
        self.assertEqual((step["reward"], step["terminated"], step["success"]), (0.5, True, True))
        self.assertEqual(step["info"], {"right": 1.0, "length": 2.0})
        self.reset("f", 2)
        step = self.step("17", "f")
        self.assertEqual((step["reward"], step["success"], step["info"]["length"]), (0.0, False, 2.0))
        # An episode that cannot be scored is abandoned, and the next one works.
        self.reset("g", 2)
        self.assertIn("out of patience", self.worker.fails("step", episode="g", action="raise")["message"])
        levels = self.worker.ask("levels", split="train", count=100, seed=1)["levels"]
        texts = [level["prompt"][1]["content"] for level in levels]
        # Every tenth is held out, and a task with the same prompt as one of those is not trained on.
        self.assertEqual(texts, [f"1+{number}" for number in range(2, 25) if number % 10])
        self.assertEqual(levels[0]["prompt"][0], {"role": "system", "content": "Add."})
        self.assertEqual((levels[0]["level"], levels[0]["ground_truth"]), ({"task": 2}, "3"))
        held_out = self.worker.ask("levels", split="held_out", count=2, seed=1)["levels"]
        self.assertEqual([level["prompt"][1]["content"] for level in held_out], ["1+0", "1+10"])
        error = self.worker.fails("reset", episode="h", level={"task": 25}, luck="0")
        self.assertIn("sums has no task 25", error["message"])

    def test_a_simulated_user_goes_on_and_limits_cut_short(self):
        hello = self.begin("talk", agent={"max_turns": 2})
        self.assertEqual(hello["max_turns"], 2)
        step = self.step("7")
        self.assertEqual((step["messages"], step["terminated"]), ([{"role": "user", "content": "Sure?"}], False))
        self.assertIsNone(step["reward"])
        step = self.step("3")
        self.assertEqual((step["reward"], step["truncated"], step["terminated"]), (0.5, True, False))
        # One that is closed while it waits is removed.
        self.reset("f", 2)
        self.worker.ask("close", episode="f")

    def test_tools_are_called(self):
        (tool,) = self.begin("calls")["tools"]
        self.assertEqual((tool["function"]["name"], tool["function"]["description"]), ("numbers_add", "Adds two numbers."))
        call = '<tool_call>{"name": "%s", "arguments": {"a": 12, "b": 30}}</tool_call>'
        step = self.step(call % "numbers_add" + call % "nobody")
        told = [{"role": "tool", "content": "42"}, {"role": "tool", "content": "error: unknown tool 'nobody'"}]
        self.assertEqual(step["messages"], told)
        step = self.step("3")
        self.assertEqual((step["reward"], step["terminated"]), (0.5, True))

    def test_what_cannot_be_played_is_refused(self):
        for settings, expected in [
            ({"id": "no-such-taskset"}, "failed to load the taskset no-such-taskset with verifiers"),
            ({"id": "sums", "args": {"agents": {}}}, "agents"),
        ]:
            self.assertIn(expected, self.worker.refuses(kind="verifiers", **settings)["message"])


if __name__ == "__main__":
    unittest.main()
