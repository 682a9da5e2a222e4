"""Calls a reward function by the names of its parameters: the completion, and columns of the row (verl has them in extra_info)."""

import asyncio
import concurrent.futures
import importlib.util
import inspect
import pathlib
import sys

spec = importlib.util.spec_from_file_location("own_reward", pathlib.Path(__file__).with_name(OWN_FILE))
module = sys.modules["own_reward"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
function = getattr(module, OWN_FUNCTION)
parameters = inspect.signature(function).parameters
takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    given = {
        **{"answer": ground_truth, "prompt": (extra_info or {}).get("question")},
        **(extra_info or {}),
        **{"completion": solution_str, "ground_truth": ground_truth, "data_source": data_source},
        **kwargs,
    }
    result = function(**{name: value for name, value in given.items() if takes_all or name in parameters})
    if inspect.iscoroutine(result):
        # In a thread of its own, because the caller may run an event loop.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            result = pool.submit(asyncio.run, result).result()
    if isinstance(result, dict) and "score" not in result:
        parts = {name: value for name, value in result.items() if name != "acc" and value is not None} or result
        result = {**result, "score": parts["reward"] if "reward" in parts else sum(parts.values())}
    return 0.0 if result is None else result
