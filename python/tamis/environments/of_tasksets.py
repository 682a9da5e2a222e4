"""`kind: verifiers` with the package verifiers from 0.4 on: a taskset, the agents that play its tasks, and their scores.

    id     the taskset's id: the name of its package
    args   the environment's configuration, as `[env]` has it in a file of verifiers: `taskset` (its own keys), `agent`
           (`max_turns`, `harness`, `runtime`, ...), `id` of another environment around the taskset

Tasks there are played by programs that call a model's URL. Here that URL is this process. It passes the
conversation of each call to the policy, and returns the policy's answer as a chat completion. The
environment's own `run_episode` plays, with its stops, limits, hooks, tools, simulated users and scores.
Defaults that tamis sets: `agent.harness` is a chat with the task's tools on the event loop (chat_harness; the
package's own is `bash`, which would give the policy this machine), unless the taskset brings one, and
`agent.runtime` a process of this machine (the package's own is a rented one). What is used of it:

    iteration of the taskset   tasks are levels, in their order: `prompt` and `system_prompt`, and `answer`, where the data
                               has a text of that name, the ground truth. Every tenth task, from the first on, is held out;
                               where the taskset has an end, training tasks whose prompt is among those are left out
    tools of the first call    the tools of hello: the first task is begun once, and ended at its first call
    trace.reward               the reward, that of the last answer; rewards by name and metrics are its `info`
    trace.is_truncated,        whether an episode was cut short
    trace.is_timeout
    agent.max_turns            as in hello, if one agent plays

An episode that the package calls failed is dropped. Refused are tools that differ from task to task, images, streamed
answers, and environments that rewrite the conversation, ask for two answers at once, or have the policy play two agents of
one episode. A reward from 0.5 on is a success. `luck` is not used: verifiers has no seed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import threading

import verifiers
from aiohttp import web
from verifiers import v1

from . import chat_harness
from .protocol import HELD_OUT, Outcome, Refused, Settings, told
from .rollout import Rollout, conversation
from .tool_calls import split_calls

MODEL = "policy"
# One of so many tasks is held out.
HELD_OUT_EVERY = 10
# From here on an episode is a success.
PASSED = 0.5


class Kind:
    """One environment of verifiers, in which all episodes are rollouts."""

    def __init__(self, settings):
        self._id, args = settings.text("id"), settings.object("args")
        settings.finish()
        try:
            self.environment = v1.load_environment(_configuration(self._id, args))
        except Exception as error:
            hint = "is its package installed, and are `args` an `[env]` of verifiers without `taskset.id`?"
            said = f"failed to load the taskset {self._id} with verifiers {verifiers.__version__}: {told(error)}"
            raise Refused(said, hint) from error
        self._tasks, self._rest, self._lock = [], iter(self.environment.taskset), threading.Lock()
        self.tools, self._host = None, None
        self.tools = asyncio.run(self._probe())
        self._host = Host(self)

    async def _probe(self):
        """The tools of the first call of the first task, which is not answered."""
        self._host = Host(self)
        try:
            episode, _ = await self.start({"task": 0}, 0)
            await episode.close()
            return episode.tools
        finally:
            await self._host.close()

    def describe(self):
        """Its part of the answer to `hello`."""
        agents = list(_agents(self.environment.config).values())
        return {
            "name": self._id.rpartition("/")[2].partition("@")[0],
            "max_turns": agents[0].max_turns if len(agents) == 1 else None,
            "tools": self.tools,
            "system": None,
            "is_deterministic": False,
        }

    def _task(self, number):
        """A task of the taskset; None behind its last."""
        with self._lock:
            missing = number + 1 - len(self._tasks)
            self._tasks += itertools.islice(self._rest, max(0, missing))
            return self._tasks[number] if number < len(self._tasks) else None

    def levels(self, split, count, _seed):
        """Tasks in their order."""
        if split != HELD_OUT and self.environment.taskset.bounded:
            with self._lock:
                self._tasks += self._rest
        held_out = {_key(task) for task in self._tasks[::HELD_OUT_EVERY]}
        levels = []
        for number in itertools.count():
            if len(levels) == count or (task := self._task(number)) is None:
                return levels
            is_held_out = number % HELD_OUT_EVERY == 0
            if is_held_out == (split == HELD_OUT) and (is_held_out or _key(task) not in held_out):
                answer = getattr(task.data, "answer", None)
                truth = answer if isinstance(answer, str) and answer else None
                levels.append({"level": {"task": number}, "prompt": _opening(task), "ground_truth": truth})

    async def start(self, level, _luck):
        """An episode on a task, and its beginning if that is not the task's prompt."""
        settings = Settings(level, "the level")
        number = settings.count("task", least=0)
        settings.finish()
        task = self._task(number)
        if task is None:
            raise Refused(f"{self._id} has no task {number}", "its data has changed since the levels were listed")
        await self._host.open()
        episode = Episode(self, self._host, task)
        try:
            messages = await episode.begin()
        except BaseException:
            await episode.close()
            raise
        return episode, None if messages == _opening(task) else messages


class Host:
    """Shared by all episodes on one event loop: the URL of the policy, and the services of the environment."""

    def __init__(self, kind):
        self._environment, self._opening = kind.environment, asyncio.Lock()
        self._stack, self.url = contextlib.AsyncExitStack(), None
        # Episodes by the ids of the traces in them.
        self.episodes = {}

    async def open(self):
        """Begins to serve, unless it serves already."""
        async with self._opening:
            if self.url is not None:
                return
            # Clients would send calls to a proxy, which does not know this machine by that name.
            for name in ("no_proxy", "NO_PROXY"):
                os.environ[name] = ",".join(filter(None, ["127.0.0.1", "localhost", os.environ.get(name)]))
            await self._stack.enter_async_context(self._environment.serving())
            application = web.Application(client_max_size=1 << 30)
            application.router.add_post("/v1/chat/completions", self._complete)
            runner = web.AppRunner(application)
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def close(self):
        """Ends all that it serves with."""
        await self._stack.aclose()

    async def _complete(self, request):
        episode = self.episodes.get(request.headers.get("X-Session-ID"))
        if episode is None:
            return web.json_response({"error": {"message": "the episode is over"}}, status=404)
        try:
            return web.json_response(await episode.complete(await request.json(), request.headers["X-Session-ID"]))
        except Refused as refused:
            episode.error = refused
            return web.json_response({"error": {"message": refused.message}}, status=400)


class Episode(Rollout):
    """One episode of the environment."""

    def __init__(self, kind, host, task):
        self._kind, self._host, self._task = kind, host, task
        self._traces, self._num_calls = [], 0
        # The trace in which the policy plays, what was wrong with a call, and the tools that calls offer.
        self._player = self.error = self.tools = None
        super().__init__()

    async def _play(self):
        client = v1.EvalClientConfig(base_url=self._host.url, api_key_var="TAMIS_POLICY")
        context = v1.ModelContext(model=MODEL, client=client)
        try:
            episode = await self._kind.environment.run_episode(self._task, context, on_trace=self._watch)
        finally:
            for trace in self._traces:
                self._host.episodes.pop(trace.id, None)
        if self.error is not None:
            raise self.error
        failures = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if failures:
            raise Refused(f"the episode failed: {failures[0].type}: {failures[0].message}")
        return episode

    def _watch(self, trace):
        self._traces.append(trace)
        self._host.episodes[trace.id] = self

    async def complete(self, body, player):
        """The policy's answer to a call of a trace, as a chat completion."""
        if self._player not in (None, player):
            hint = "give the others a `client` and a `model` of their own in `args`"
            raise Refused("the environment has the policy play more than one agent", hint)
        self._player = player
        if body.get("stream"):
            hint = "take a harness that does not, or leave `agent.harness` out"
            raise Refused("the harness asks for a streamed answer", hint)
        self.tools = [_tool(tool) for tool in body.get("tools") or []]
        if self._kind.tools is not None and self.tools != self._kind.tools:
            raise Refused("the environment offers other tools than it did at the beginning")
        text = await self.ask(conversation(body["messages"]))
        content, found = split_calls(text) if self.tools else (text, [])
        calls = []
        for name, arguments in found:
            self._num_calls += 1
            function = {"name": name, "arguments": arguments}
            calls.append({"id": f"call_{self._num_calls}", "type": "function", "function": function})
        message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return {"id": MODEL, "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}

    def _outcome(self, played):
        trace = next(trace for trace in played.traces if trace.id == self._player)
        is_truncated = trace.is_truncated or trace.is_timeout
        rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Outcome(
            [],
            trace.reward,
            terminated=not is_truncated,
            truncated=is_truncated,
            success=trace.reward >= PASSED,
            info=metrics | rewards,
        )


def _agents(config):
    """The agents of a configuration by name."""
    return {name: value for name, value in config if isinstance(value, v1.AgentConfig)}


def _configuration(ident, args):
    """The environment's configuration, with what tamis chooses."""
    taskset = args.get("taskset") or {}
    config = v1.resolve_env_config({**args, "taskset": {**taskset, "id": ident}})
    chosen = {}
    for name, agent in _agents(config).items():
        own = {}
        if agent.harness is None and v1.default_harness_id(ident) == "bash":
            own["harness"] = v1.HarnessConfig(id=chat_harness.ID)
        if "runtime" not in agent.model_fields_set:
            own["runtime"] = v1.SubprocessConfig()
        chosen[name] = agent.model_copy(update=own)
    return config.model_copy(update=chosen)


def _opening(task):
    """The first message of a task; its name if a simulated user speaks first."""
    data = task.data
    messages = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    prompt = conversation(data.prompt) if data.prompt else []
    if not prompt:
        prompt = [{"role": "user", "content": data.name or f"task {data.idx}"}]
    return messages + prompt


def _key(task):
    return json.dumps(_opening(task), sort_keys=True)


def _tool(tool):
    function = {name: tool["function"].get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}
