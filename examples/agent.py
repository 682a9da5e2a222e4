"""An agent with one tool, for any server that speaks OpenAI's API: the model has to call `add` with the task's numbers.

tamis runs it for each episode of configs/agent.yaml; its URL, key and model come by environment variables. Against another
server: `OPENAI_BASE_URL=... OPENAI_API_KEY=... TAMIS_MODEL=gpt-5-mini python examples/agent.py <<< '{"messages": [{"role":
"user", "content": "3+4"}], "sum": 7}'`.
"""

import json
import os
import sys
from contextlib import suppress
from functools import partial

from openai import OpenAI, pydantic_function_tool
from pydantic import create_model

Add = create_model("add", a=int, b=int)
ask = partial(OpenAI().chat.completions.create, model=os.environ["TAMIS_MODEL"], tools=[pydantic_function_tool(Add)])
task, sums = json.loads(sys.stdin.readline()), []
while not sums and len(task["messages"]) < 4:
    answer = ask(messages=task["messages"]).choices[0].message
    task["messages"] += [answer, {"role": "user", "content": "Call add."}]
    for call in answer.tool_calls or []:
        with suppress(ValueError):  # arguments that are invalid
            sums.append(sum(dict(Add.model_validate_json(call.function.arguments)).values()))
print(json.dumps({"reward": float(sums == [task["sum"]]), "info": {"num_tool_calls": len(sums)}}))
