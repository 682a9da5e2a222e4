"""Plays an episode with OpenAI's own Python client: adds two numbers with a tool. Ends with an exception where an answer is not as it should be."""

import asyncio
import json
import os
import sys

import openai

task = json.loads(sys.stdin.readline())
client = openai.OpenAI(timeout=60)
assert [model.id for model in client.models.list()] == [os.environ["TAMIS_MODEL"]]
parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]
question = {"role": "user", "content": f"What is {task['a']}+{task['b']}?"}


def called(message):
    """The conversation after the tools that a message calls."""
    results = []
    for call in message.tool_calls:
        assert call.type == "function" and call.function.name == "add", call
        content = str(sum(json.loads(call.function.arguments).values()))
        results.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return [question, message, *results]


# In one piece.
done = client.chat.completions.create(model="gpt-4o", messages=[question], tools=tools, parallel_tool_calls=False)
assert done.choices[0].finish_reason == "tool_calls" and done.choices[0].message.content is None, done
assert done.usage.total_tokens == 5 and done.object == "chat.completion" and done.id.startswith("chatcmpl-"), done
done = client.chat.completions.create(model="gpt-4o", messages=called(done.choices[0].message), tools=tools)
assert done.choices[0].finish_reason == "stop", done
answers = [done.choices[0].message.content]

# As a stream, put together by the client and by hand.
with client.chat.completions.stream(model="gpt-4o", messages=[question], tools=tools) as stream:
    stream.until_done()
    whole = stream.get_final_completion()
assert whole.choices[0].finish_reason == "tool_calls", whole
text, usage, reasons = "", None, []
options = {"include_usage": True}
for chunk in client.chat.completions.create(
    model="gpt-4o", messages=called(whole.choices[0].message), tools=tools, stream=True, stream_options=options
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
assert reasons == ["stop"] and usage.total_tokens == 0, (reasons, usage)
answers.append(text)


# By the newer interface, with the items of an answer sent back, and as a stream.
flat = [{"type": "function", "name": "add", "description": "Adds.", "parameters": parameters, "strict": False}]
done = client.responses.create(model="gpt-4o", input=[question], tools=flat, max_output_tokens=50)
assert done.status == "completed" and done.usage.total_tokens == 5 and done.output_text == "", done
(called_now,) = done.output
assert called_now.type == "function_call" and called_now.name == "add", done
output = str(sum(json.loads(called_now.arguments).values()))
result = {"type": "function_call_output", "call_id": called_now.call_id, "output": output}
conversation = [question, called_now, result]
answers.append(client.responses.create(model="gpt-4o", input=conversation, tools=flat).output_text)
with client.responses.stream(model="gpt-4o", input=conversation, tools=flat) as stream:
    deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    whole = stream.get_final_response()
assert whole.output_text == deltas and whole.status == "completed", whole
answers.append(deltas)

# The log-probabilities of an answer.
done = client.chat.completions.create(model="gpt-4o", messages=[question], tools=tools, logprobs=True)
assert [(token.token, token.logprob) for token in done.choices[0].logprobs.content] == [("a", -0.5)], done


async def play():
    """The same with the asynchronous client."""
    client = openai.AsyncOpenAI(timeout=60)
    done = await client.chat.completions.create(model="gpt-4o", messages=[question], tools=tools)
    messages = called(done.choices[0].message)
    done = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
    answers.append(done.choices[0].message.content)


asyncio.run(play())


# Refusals are the client's own exceptions, and are not tried again.
def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model="x", messages=[question], n=2))
assert error.param == "n", error
image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
picture = [{"role": "user", "content": [image]}]
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model="x", messages=picture))
assert error.param == "messages.0.content.0", error
error = refused(openai.PermissionDeniedError, lambda: client.chat.completions.create(model="x", messages=[question]))
assert error.code == "call_limit", error
other = openai.OpenAI(base_url=os.environ["OPENAI_BASE_URL"].replace("/e/", "/e/0"), timeout=60)
refused(openai.AuthenticationError, other.models.list)

right = str(task["a"] + task["b"])
print(json.dumps({"reward": sum(answer == right for answer in answers) / len(answers), "success": set(answers) == {right}}))
