"""An environment that calls the policy itself, turned inside out, so that `reset` and `step` play it like any
other.

Its rollout runs as a task on the event loop. Whenever it calls the policy, `begin` or `step` returns the
conversation, and the next `step` brings the answer.
"""

import asyncio
import json
from abc import ABC, abstractmethod

from .protocol import Outcome, Refused, as_messages, as_reply

# How long an abandoned rollout may take to free what it holds.
PATIENCE = 30.0


class Rollout(ABC):
    """One rollout, at the point where it waits for the policy or is over."""

    def __init__(self):
        # Conversations that wait for an answer; None once the rollout has ended.
        self._events, self._answer = asyncio.Queue(), None
        self._seen = []
        self._rollout = asyncio.ensure_future(self._play())
        self._rollout.add_done_callback(lambda _: self._events.put_nowait(None))

    @abstractmethod
    async def _play(self):
        """Plays to the end. The outcome is made from its result."""

    @abstractmethod
    def _outcome(self, played):
        """The result of the last answer."""

    async def ask(self, messages):
        """Called by the rollout: waits for the policy's answer to a conversation."""
        if self._answer is not None and not self._answer.done():
            raise Refused("the environment asks the policy for two answers at once", "take one that asks in turns")
        self._answer = asyncio.get_running_loop().create_future()
        self._events.put_nowait(messages)
        return await self._answer

    async def begin(self):
        """The conversation for the first answer."""
        messages = await self._events.get()
        if messages is None:
            self._rollout.result()
            raise Refused("the rollout ended before it asked for an answer", "look at the environment's `is_completed`")
        self._seen = messages
        return messages

    async def step(self, text):
        """Passes the policy's answer on, and plays until the next one is needed."""
        if not self._answer.done():  # otherwise its time was over
            self._answer.set_result(text)
        messages = await self._events.get()
        if messages is None:
            return self._outcome(self._rollout.result())
        num_seen = len(self._seen)
        is_continued = messages[:num_seen] == self._seen and len(messages) > num_seen
        if not (is_continued and messages[num_seen]["role"] == "assistant"):
            hint = "tamis trains on conversations that grow; this environment changes earlier messages"
            raise Refused("the environment rewrites the conversation", hint)
        self._seen, reply = messages, messages[num_seen + 1 :]
        reply = [{"role": message["role"], "content": message["content"]} for message in reply]
        # It is judged at its end.
        return Outcome(as_reply(reply, "the environment's response"), None)

    async def close(self):
        """Ends the rollout, which frees what it holds."""
        self._rollout.cancel()
        await asyncio.wait([self._rollout], timeout=PATIENCE)
        if self._rollout.done() and not self._rollout.cancelled():
            # It was reported, or need not be.
            self._rollout.exception()


# Fields of a message that templates read, beside its role, content and tool calls.
_KEPT = ("name", "tool_call_id", "reasoning_content", "thinking", "reasoning")


def conversation(messages):
    """Messages of verifiers, dicts or objects, as the wire has them."""
    found = []
    for message in [messages] if isinstance(messages, str) else messages:
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        values = message if isinstance(message, dict) else message.model_dump()
        one = {"role": values.get("role"), "content": _text(values.get("content"))}
        one.update({name: values[name] for name in _KEPT if isinstance(values.get(name), str)})
        if values.get("tool_calls"):
            one["tool_calls"] = [_call(call) for call in values["tool_calls"]]
        found.append(one)
    return as_messages(found, "the conversation")


def _text(content):
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    if not all(part.get("type") == "text" for part in parts):
        raise Refused("a message has parts that are no text", "images in environments are not supported")
    return "".join(part["text"] for part in parts)


def _call(call):
    if isinstance(call, str):  # as some data sets hold it
        call = json.loads(call)
    function = call.get("function") or {"name": call["name"], "arguments": call["arguments"]}
    function = {name: function[name] for name in ("name", "arguments")}
    return {"id": call.get("id"), "type": "function", "function": function}
