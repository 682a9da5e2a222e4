"""An agent with one tool, for any server that speaks OpenAI's API: the model has to call `add` with the task's numbers.

tamis runs it for each episode of configs/agent.yaml; its URL, key and model come by environment variables. Against another
server: `OPENAI_BASE_URL=... OPENAI_API_KEY=... python examples/agent.py <<< '{"messages": [{"role": "user", "content":
"3+4"}], "sum": 7}'`.
"""

import json
import os
import sys

from openai import OpenAI

NUMBER = {"type": "integer"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
    },
}


def add(a, b):
    return a + b


task = json.loads(sys.stdin.readline())
client, model, messages = OpenAI(), os.environ.get("TAMIS_MODEL", "gpt-5-mini"), task["messages"]
results = []
while not results and len(messages) < 4:
    answer = client.chat.completions.create(model=model, messages=messages, tools=[ADD]).choices[0].message
    messages += [answer, {"role": "user", "content": "Call add."}]
    for call in answer.tool_calls or []:
        try:
            results.append(add(**json.loads(call.function.arguments)))
        except TypeError as error:  # arguments that are none
            results.append(str(error))
print(json.dumps({"reward": float(results == [task["sum"]]), "info": {"num_tool_calls": len(results)}}))
