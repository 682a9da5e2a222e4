"""Answers tamis's reward requests with a user's own Python function, unchanged.

    python3 tamis_reward.py --path FILE --name FUNCTION --kind verl|trl|easyr1|easyr1_sequential [--kwargs JSON]

verl:   FUNCTION(data_source, solution_str, ground_truth, extra_info, **kwargs) -> number | {"score": number, ...} | None
trl:    FUNCTION(prompts=, completions=, completion_ids=, <columns>=, trainer_state=, log_extra=, log_metric=, **kwargs) -> [number | None]
easyr1: FUNCTION([{"response": str, "response_length": int, "ground_truth": str}], **kwargs) -> [{"overall": number, ...}], and where the
        file says REWARD_TYPE = "sequential", or the kind is easyr1_sequential, one of each

Each may be `async def`. Requests and answers are JSON lines on standard input and output; whatever the function prints goes to
standard error. An exception is the answer "error" of that completion.
"""

import argparse
import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback
import types

MODULE = "tamis_user_reward"


def number(value):
    """A float, or None for None and NaN; infinities are passed on for tamis to refuse. Takes what has __float__ (NumPy, PyTorch)."""
    if value is None:
        return None
    value = float(value)
    return None if math.isnan(value) else value


def named_numbers(result):
    """The named numbers of one verl result. A plain number is `acc` too, as in verl; values that are no numbers (`pred`) are left out."""
    if isinstance(result, (tuple, list)):  # verl's prime_math style: the first entry is the score
        result = result[0] if result else None
    if not isinstance(result, dict):
        value = number(result)
        return {"score": value, "acc": value}
    if "score" not in result:
        raise KeyError(f"the function returned a dictionary without `score`: its keys are {sorted(map(str, result))}")
    scores = {}
    for name, value in result.items():
        if isinstance(value, str) or value is None and name != "score":
            continue
        try:
            scores[str(name)] = number(value)
        except (TypeError, ValueError):
            if name == "score":
                raise
    return scores


async def finished(value):
    return await value if inspect.isawaitable(value) else value


async def call_verl(function, item, kwargs):
    columns = item["columns"]
    truth = item["ground_truth"]
    reward_model = columns.get("reward_model")
    if isinstance(reward_model, dict) and "ground_truth" in reward_model:
        truth = reward_model["ground_truth"]  # as the dataset holds it: tamis compares text, a function may want a number or list
    extra_info = columns.get("extra_info")
    result = function(
        data_source=item["data_source"],
        solution_str=item["completion"],
        ground_truth=truth,
        extra_info=dict(extra_info) if isinstance(extra_info, dict) else {},
        **kwargs,
    )
    return named_numbers(await finished(result))


async def answer_verl(function, items, kwargs):
    async def one(item):
        try:
            return {"scores": await call_verl(function, item, kwargs)}
        except Exception:
            return {"error": traceback.format_exc()}

    if inspect.iscoroutinefunction(function):
        return await asyncio.gather(*map(one, items))
    return [await one(item) for item in items]


async def call_trl(function, items, kwargs):
    names = []
    for item in items:
        names += [name for name in item["columns"] if name not in names]
    columns = {
        name: [item["columns"].get(name) for item in items]
        for name in names
        if name not in ("prompt", "completion", "completion_ids")
    }
    result = function(
        prompts=[item["prompt"] for item in items],
        completions=[item["completion"] if item["messages"] is None else item["messages"] for item in items],
        completion_ids=[item["completion_ids"] for item in items],
        trainer_state=types.SimpleNamespace(global_step=items[0]["step"], epoch=float(items[0]["epoch"])),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: None,
        **{**columns, **kwargs},
    )
    rewards = list(await finished(result))
    if len(rewards) != len(items):
        message = f"the function returned {len(rewards)} rewards for {len(items)} completions"
        return [{"error": message}] * len(items)
    return [{"score": number(reward)} for reward in rewards]


def easyr1_numbers(result):
    """The named numbers of one EasyR1 result: `overall` is the score, `accuracy` the raw outcome (right above 0) where there is one."""
    if not isinstance(result, dict) or "overall" not in result:
        found = sorted(map(str, result)) if isinstance(result, dict) else type(result).__name__
        raise ValueError(f"an EasyR1 function returns dictionaries with `overall`, this one has {found}")
    scores = named_numbers({"score": result["overall"], **{name: value for name, value in result.items() if name not in ("overall", "score")}})
    accuracy = scores.get("accuracy")
    if accuracy is not None and "acc" not in scores:
        scores["acc"] = max(accuracy, 0.0)
    return scores


async def call_easyr1(function, items, kwargs, sequential):
    requests = [
        {
            "response": item["completion"],
            "response_length": len(item["completion_ids"]),
            "ground_truth": item["ground_truth"],
        }
        for item in items
    ]
    if sequential:
        results = [await finished(function(request, **kwargs)) for request in requests]
    else:
        results = list(await finished(function(requests, **kwargs)))
    if len(results) != len(items):
        message = f"the function returned {len(results)} rewards for {len(items)} completions"
        return [{"error": message}] * len(items)
    return [{"scores": easyr1_numbers(result)} for result in results]


async def answer_easyr1(function, items, kwargs, default="batch"):
    kind = getattr(sys.modules[MODULE], "REWARD_TYPE", default)
    if kind not in ("batch", "sequential"):
        return [{"error": f"REWARD_TYPE must be \"batch\" or \"sequential\", not {kind!r}"}] * len(items)
    try:
        return await call_easyr1(function, items, kwargs, kind == "sequential")
    except Exception:
        if len(items) == 1:
            return [{"error": traceback.format_exc()}]
    # As for TRL: one completion must not cost the others their reward.
    return [answer for item in items for answer in await answer_easyr1(function, [item], kwargs, default)]


async def answer_easyr1_sequential(function, items, kwargs):
    return await answer_easyr1(function, items, kwargs, "sequential")


async def answer_trl(function, items, kwargs):
    try:
        return await call_trl(function, items, kwargs)
    except Exception:
        if len(items) == 1:
            return [{"error": traceback.format_exc()}]
    # One completion must not cost the others their reward: each is asked again alone.
    return [answer for item in items for answer in await answer_trl(function, [item], kwargs)]


KINDS = {
    "verl": answer_verl,
    "trl": answer_trl,
    "easyr1": answer_easyr1,
    "easyr1_sequential": answer_easyr1_sequential,
}


def load(path, name):
    # Imported like a script beside its own modules.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise AttributeError(f"{path} has no function `{name}`; it has {', '.join(functions) or 'none'}")
    return getattr(module, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True)
    parser.add_argument("--name", default="compute_score")
    parser.add_argument("--kind", choices=tuple(KINDS), default="verl")
    parser.add_argument("--kwargs", type=json.loads, default={})
    arguments = parser.parse_args()

    # The answers keep the real standard output; file descriptor 1, which the user's code (or a library in C) prints to, becomes standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    function = load(arguments.path, arguments.name)
    answer = KINDS[arguments.kind]
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    items = []
    for line in requests:
        items.append(json.loads(line))
        if items[-1]["remaining"]:
            continue
        for item, reply in zip(items, loop.run_until_complete(answer(function, items, arguments.kwargs))):
            answers.write(json.dumps({"id": item["id"], **reply}) + "\n")
        answers.flush()
        items = []


if __name__ == "__main__":
    main()
