"""Asks `tamis serve` with OpenAI's own Python client: openai_client.py URL KEY. Ends with an exception where an answer is not as it should be."""

import asyncio
import sys

import openai

url, key = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)

models = client.models.list().data
assert [model.id for model in models] == ["checkpoint"], models
model = models[0].id
conversation = [{"role": "user", "content": "What is 1+1?"}]

# Completions: text and token ids, n, log-probabilities, stop, and what only vLLM has.
done = client.completions.create(model=model, prompt="What is 1+1?", max_tokens=8, n=3, logprobs=2, seed=1, extra_body={"ignore_eos": True})
assert len(done.choices) == 3 and done.usage.completion_tokens == 24, done
assert all(choice.finish_reason == "length" and len(choice.logprobs.token_logprobs) == 8 for choice in done.choices)
extra = {"return_token_ids": True, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True}
one = client.completions.create(model=model, prompt=[10, 20, 30], max_tokens=8, seed=1, extra_body=extra)
two = client.completions.create(model=model, prompt=[10, 20, 30], max_tokens=8, seed=1, extra_body=extra)
assert one.choices[0].token_ids == two.choices[0].token_ids and len(one.choices[0].token_ids) == 8
assert one.choices[0].prompt_token_ids == [10, 20, 30]

# Chat, whole and streamed.
whole = client.chat.completions.create(model=model, messages=conversation, max_tokens=12, seed=3, logprobs=True, top_logprobs=2)
assert whole.choices[0].message.role == "assistant"
assert all(len(token.top_logprobs) == 2 for token in whole.choices[0].logprobs.content)
stream = client.chat.completions.create(
    model=model, messages=conversation, max_completion_tokens=12, seed=3, stream=True, stream_options={"include_usage": True}
)
text, usage, reasons = "", None, []
for chunk in stream:
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
assert text == whole.choices[0].message.content, (text, whole)
assert usage.total_tokens == whole.usage.total_tokens and reasons == [whole.choices[0].finish_reason]

# A stream that is left early gives its request up; the next is answered.
with client.completions.create(model=model, prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}) as stream:
    next(iter(stream))


# Refusals are the client's own exceptions.
def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


refused(openai.AuthenticationError, lambda: openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list())
error = refused(openai.NotFoundError, lambda: client.completions.create(model="nope", prompt="x"))
assert error.param == "model", error
error = refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", temperature=-1))
assert error.param == "temperature" and "non-negative" in error.message, error
error = refused(openai.BadRequestError, lambda: client.completions.create(model=model, prompt=[5] * 600))
assert "maximum context length is 512" in error.message, error
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=conversation, presence_penalty=1))
assert error.param == "presence_penalty", error
error = refused(openai.APIStatusError, lambda: client.completions.create(model=model, prompt="x" * 200_000))
assert error.status_code == 413, error


async def many():
    """Thirty-two at once, each with the answer that it gets alone."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)

    async def ask(seed):
        done = await client.completions.create(model=model, prompt=[10, 20, 30], max_tokens=16, seed=seed)
        return done.choices[0].text

    alone = [await ask(seed) for seed in range(32)]
    assert alone == await asyncio.gather(*(ask(seed) for seed in range(32)))


asyncio.run(many())
print(f"openai {openai.__version__}: all of it works")
