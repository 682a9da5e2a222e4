"""`kind: verifiers` with the package verifiers 0.1.14 to 0.3: environments of `load_environment` (of_tasksets has 0.4).

    id     its id, as `verifiers.load_environment` takes it; or FILE.py:NAME, MODULE:NAME of a function that makes one
    args   keyword arguments for it

The environment's own `rollout` plays, with a client (`verifiers.clients.Client`) whose model is the policy: whenever
it asks for a response, `reset` or `step` is answered, and the next `step` brings it. So whatever an environment
overrides (`setup_state`, `env_response`, `is_completed` and stop conditions, tools with state, groups of
environments) is carried out as in verifiers itself. What is used of it:

    build_dataset(),         rows are levels: `prompt`, with system message and few-shot examples, and `answer`, the
    build_eval_dataset()     ground truth, in their order. Training rows whose prompt is in the evaluation set too are
                             left out; without an evaluation set, the last tenth of the rows is held out
    tool_defs                the tools of hello. Where there are some, calls in an answer (see tool_calls) become the
                             `tool_calls` of the assistant's message
    rollout(),               the reward is that of the last answer, the metrics are its `info`
    rubric.score_rollout(),
    rubric.cleanup()
    is_truncated,            whether an episode was cut short: by its limit of turns (of more than one), by time,
    stop_condition           by length
    pass_threshold           the reward from which on an episode is a success: 0.5
    max_turns                as in hello
    requires_group_rollouts  refused

A judge works if the environment has a client for it (`JudgeRubric(judge_client=..)`, or a key in its
variables). Refused are rubrics that score whole groups, tools that differ from row to row, images, and
environments that rewrite the conversation or ask for two responses at once: tamis trains on what follows what
was sampled. `luck` is not used: verifiers has no seed. All episodes are on one event loop, as in verifiers: a
function that does not wait with `await` holds up the others of its process. A reward function that raises
scores 0, as there, with a message on standard error.
"""

import json
import threading

import verifiers
from verifiers.clients import Client
from verifiers.errors import OverlongPromptError
from verifiers.types import Response, ResponseMessage, ToolCall

from .protocol import HELD_OUT, Outcome, Refused, Settings, load_named, shown, told
from .rollout import Rollout, conversation
from .tool_calls import split_calls

MODEL = "policy"


class Kind:
    """One environment of verifiers, in which all episodes are rollouts."""

    def __init__(self, settings):
        self._id, args = settings.text("id"), settings.object("args")
        settings.finish()
        try:
            if ":" in self._id:
                self.environment = load_named(self._id, "id")(**args)
            else:
                self.environment = verifiers.load_environment(self._id, **args)
        except Refused:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            hint = "is its package installed, and are `args` what its `load_environment` takes?"
            raise Refused(f"failed to load the environment {self._id}: {told(cause)}", hint) from error
        if not callable(getattr(self.environment, "rollout", None)):
            raise Refused(f"{self._id} made {shown(self.environment)}, which is no environment of verifiers")
        if self.environment.requires_group_rollouts:
            hint = "make its rewards functions of one completion; tamis compares the members of a group itself"
            raise Refused(f"the rubric of {self._id} scores the rollouts of a group together", hint)
        self.tools = [_tool(tool) for tool in self.environment.tool_defs or []]
        self._tables, self._lock = None, threading.Lock()

    def describe(self):
        """Its part of the answer to `hello`."""
        max_turns = getattr(self.environment, "max_turns", -1)
        return {
            "name": self._name(),
            "max_turns": max_turns if max_turns > 0 else None,
            "tools": self.tools,
            "system": None,
            "is_deterministic": False,
            "scores_cut": True,
        }

    def _name(self):
        place, _, function = self._id.rpartition(":")
        name = place if place and function == "load_environment" else function
        return name.rpartition("/")[2].removesuffix(".py")

    def _dataset(self, name):
        """The rows of `train` or `eval`; None if there are none."""
        with self._lock:
            if self._tables is None:
                environment = self.environment
                self._tables = {"train": environment.build_dataset(), "eval": environment.build_eval_dataset()}
            return self._tables[name]

    def levels(self, split, count, _seed):
        """Rows of the environment's data, in their order."""
        train, held_out = self._dataset("train"), self._dataset("eval")
        num_held_out = 0 if train is None or held_out is not None else max(1, len(train) // 10)
        if split == HELD_OUT and held_out is not None:
            name, numbers, excluded = "eval", range(len(held_out)), set()
        elif split == HELD_OUT:
            name, numbers, excluded = "train", range(len(train) - num_held_out, len(train)), set()
        elif train is None:
            hint = "take another environment to train in, or this one for validation only"
            raise Refused(f"{self._id} has only data for evaluation", hint)
        else:
            name, numbers = "train", range(len(train) - num_held_out)
            rest = held_out if held_out is not None else train.select(range(len(numbers), len(train)))
            excluded = {_opening(row) for row in rest.select_columns(["prompt"])}
        levels = []
        for number in numbers:
            if len(levels) == count:
                break
            row = self._dataset(name)[number]
            if excluded and _opening(row) in excluded:
                continue
            answer = row.get("answer")
            if not (answer is None or isinstance(answer, str)):
                answer = json.dumps(answer, default=str)
            level = {"dataset": name, "row": number}
            levels.append({"level": level, "prompt": conversation(row["prompt"]), "ground_truth": answer or None})
        return levels

    async def start(self, level, _luck):
        """An episode on a row, and its beginning if that is not the row's prompt."""
        settings = Settings(level, "the level")
        name, number = settings.choice("dataset", ("train", "eval")), settings.count("row", least=0)
        settings.finish()
        rows = self._dataset(name)
        if rows is None or number >= len(rows):
            hint = "its data has changed since the levels were listed"
            raise Refused(f"{self._id} has no row {number} of {name}", hint)
        row = rows[number]
        episode = Episode(self, row)
        try:
            messages = await episode.begin()
        except BaseException:
            await episode.close()
            raise
        return episode, None if messages == conversation(row["prompt"]) else messages


class Policy(Client):
    """The model of one rollout: a request to it becomes the rollout's next event, its response is the next answer."""

    def __init__(self, episode, tools):
        super().__init__(None)
        self._episode, self._tools, self._num_calls = episode, tools, 0

    def setup_client(self, config):
        """There is nothing behind it to be set up."""
        return config

    async def to_native_tool(self, tool):
        """A tool's JSON schema."""
        return _tool(tool)

    async def to_native_prompt(self, messages):
        """A conversation as the wire has it."""
        return conversation(messages), {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **_):
        """The text of the policy's next answer."""
        if (tools or []) != self._tools:
            hint = "tools belong to the environment as a whole (`tool_defs`), and not to rows of its data"
            raise Refused("the environment offers other tools than it did at the beginning", hint)
        return await self._episode.ask(prompt)

    async def raise_from_native_response(self, response):
        """A text is always a response."""

    async def from_native_response(self, response):
        """The assistant's message, with calls of tools if there are tools."""
        content, found = split_calls(response) if self._tools else (response, [])
        calls = []
        for name, arguments in found:
            self._num_calls += 1
            calls.append(ToolCall(id=f"call_{self._num_calls}", name=name, arguments=arguments))
        reason = "tool_calls" if calls else "stop"
        message = ResponseMessage(content=content, tool_calls=calls or None, finish_reason=reason, is_truncated=False)
        return Response(id=MODEL, created=0, model=MODEL, usage=None, message=message)

    async def close(self):
        """There is nothing to be closed."""


class Episode(Rollout):
    """One rollout of the environment."""

    def __init__(self, kind, row):
        self._kind, self._row = kind, row
        super().__init__()

    async def _play(self):
        environment = self._kind.environment
        state = await environment.rollout(self._row, Policy(self, self._kind.tools), MODEL, {})
        error = state.get("error")
        if error is not None:
            # What a client raises is wrapped.
            raise error.__cause__ if isinstance(error.__cause__, Exception) else error
        await environment.rubric.score_rollout(state)
        await environment.rubric.cleanup(state)
        return state

    async def cut(self):
        """Ends the rollout while it waits for an answer, as if its prompt were too long: its score so far."""
        if not self._answer.done():
            self._answer.set_exception(OverlongPromptError("there is no room for another answer"))
        if await self._events.get() is not None:
            raise Refused("the environment asks for another answer, and there is no room for one")
        return self._outcome(self._rollout.result())

    def _outcome(self, state):
        environment = self._kind.environment
        stop = state.get("stop_condition")
        is_truncated = bool(state.get("is_truncated")) or stop in ("timeout_reached", "prompt_too_long")
        is_truncated |= stop == "max_turns_reached" and len(state["trajectory"]) > 1
        reward = state["reward"]
        return Outcome(
            [],
            reward,
            terminated=not is_truncated,
            truncated=is_truncated,
            success=reward >= getattr(environment, "pass_threshold", 0.5),
            info={name: value for name, value in (state.get("metrics") or {}).items() if value is not None},
        )


def _tool(tool):
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _opening(row):
    return json.dumps(conversation(row["prompt"]), sort_keys=True)
