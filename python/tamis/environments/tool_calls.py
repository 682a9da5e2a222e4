"""Calls of tools in a policy's text, as Qwen and Hermes models write them."""

import json
import re

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def split_calls(text):
    """A text without its calls, and the calls as `(name, arguments as JSON)`.

    A call is `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. One that is no such JSON stays in the text, as
    vLLM's parser leaves it.
    """
    calls = []

    def take(match):
        try:
            call = json.loads(match.group(1))
        except ValueError:
            return match.group(0)
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if not isinstance(arguments, dict) or not isinstance(call.get("name"), str):
            return match.group(0)
        calls.append((call["name"], json.dumps(arguments, ensure_ascii=False)))
        return ""

    rest = _CALL.sub(take, text)
    return (rest.strip() if calls else text), calls
