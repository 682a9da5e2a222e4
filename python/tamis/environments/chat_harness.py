"""The program of the policy in verifiers from 0.4 on: a chat with the tools of the task, as the harness `null` of the package.

`null` is started once an episode, with its packages from PyPI; this one is a task on the event loop. It
reaches the model and the tools by the same addresses, so that limits, stops and records are those of the
package.
"""

import contextlib
import json
import sys

import httpx
from verifiers.v1 import Harness, HarnessConfig, ProgramResult
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatHarness"]

# The name by which verifiers finds it.
ID = "tamis_chat_harness"


class ChatHarness(Harness[HarnessConfig]):
    """Asks the model, carries its calls out, and asks again until it calls nothing."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        """One segment: from the prompt, or the conversation so far, to an answer without calls."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            urls = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, dispatch, servers = await connect_mcp({"mcpServers": urls}, stack)
            body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while True:
                headers = {"Authorization": f"Bearer {secret}"}
                response = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if response.is_error:
                    return ProgramResult(exit_code=1, stdout="", stderr=response.text)
                answer = response.json()["choices"][0]["message"]
                messages.append({name: value for name, value in answer.items() if value is not None})
                calls = answer.get("tool_calls")
                if not calls:
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in calls:
                    name = call["function"]["name"]
                    content = await _carry_out(servers, dispatch, name, call["function"]["arguments"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})


async def _carry_out(servers, dispatch, name, arguments):
    """The result of a call, in the words of the package if it cannot be carried out."""
    try:
        values = json.loads(arguments or "{}")
    except ValueError as error:
        return f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    if not isinstance(values, dict):
        return f"error: tool arguments must be a JSON object, got {type(values).__name__}; resend as an object"
    if name not in dispatch:
        return f"error: unknown tool {name!r}"
    return await call_mcp(servers, dispatch, name, values)


sys.modules[ID] = sys.modules[__name__]
