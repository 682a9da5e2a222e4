"""Answers tamis's reward requests with a user's own Python function, unchanged.

    python3 tamis_reward.py --path FILE

The file is imported once. All functions of it that are rewards of a run are called here, so they share what the file keeps in globals.
Each is named by a request {"function": {"id": 0, "name": NAME, "kind": KIND or null, "kwargs": {...}}} before it is called:

simple: FUNCTION(completion, ...) -> number | bool | {name: number, ...} | None; further parameters are `prompt` and columns of the row
verl:   FUNCTION(data_source, solution_str, ground_truth, extra_info, **kwargs) -> number | {"score": number, ...} | None
trl:    FUNCTION(prompts=, completions=, completion_ids=, <columns>=, trainer_state=, log_extra=, log_metric=, **kwargs) -> [number | None]
easyr1: FUNCTION([{"response": str, "response_length": int, "ground_truth": str}], **kwargs) -> [{"overall": number, ...}], and where the
        file says REWARD_TYPE = "sequential", or the kind is easyr1_sequential, one of each

Each may be `async def`. Without a kind it is the one that the function's parameters fit, verl where several do. Requests and answers are
JSON lines on standard input and output; whatever a function prints goes to standard error. Whatever it raises, and a result that is no
number, is the answer "error" of that completion. A request {"introduce": {"columns": [...] | null, "gold": [...]}, "function": 0}, columns
of the rows and those of them that hold the ground truth, is answered with the function's signature, the kinds that it fits, what is wrong
with the one that is used, and whether the function takes the ground truth. The request of a completion has the function's id in
"function". On standard error a line "\x1etamis-reward ID" tells whose the text after it is, if another function's was before it.
"""

import argparse
import ast
import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys
import textwrap
import traceback
import types

MODULE = "tamis_user_reward"
PROGRAMS = [__file__]  # whose own frames no message shows

SIMPLE = ("completion", "prompt", "ground_truth", "data_source")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
TRL_CENTRAL = TRL[:3]
TRL_REPLACED = ("prompt", "completion", "completion_ids")  # columns of which TRL passes its own

# tamis refuses longer lines, which would cost the process and not the completion.
LONGEST_LINE = 500_000
LONGEST_ERROR = 8_000
LONGEST_TEXT = 10_000
LONGEST_NAME = 200


def clean(text, limit=LONGEST_TEXT):
    """Text that JSON and UTF-8 can hold, at most so many characters of it."""
    if len(text) > limit:
        text = text[: limit // 2] + " … " + text[-limit // 2 :]
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def failure():
    """The answer for the exception at hand."""
    try:
        kind, error, trace = sys.exc_info()
        # The user's own frames; of an error that is found here, its message.
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*PROGRAMS, "<frozen importlib")):
            trace = trace.tb_next
        # An error of this file has a name that says nothing to the user.
        text = str(error) if kind is NoList else "".join(traceback.format_exception(kind, error, trace))
    except Exception:  # its text cannot be made
        text = f"{type(sys.exc_info()[1]).__name__}, whose text cannot be shown"
    return {"error": clean(text.rstrip(), LONGEST_ERROR)}


def shown(value):
    """A returned value, for a message."""
    try:
        text = repr(value)
    except Exception:
        text = "…"
    return f"{clean(text, 200)} ({type(value).__name__})"


def number(value, what="the function returned"):
    """A float, or None for None and NaN; infinities are passed on for tamis to refuse. Takes numbers, booleans, text that is a number, and
    what has __float__ (NumPy, PyTorch)."""
    if value is None:
        return None
    try:
        result = float(value)
    except Exception:
        raise ValueError(f"{what} {shown(value)}, which is no number") from None
    return None if math.isnan(result) else result


def named_numbers(result):
    """The named numbers of one verl result. A plain number is `acc` too, as in verl; other entries that are no numbers (`pred`) are left out."""
    if isinstance(result, (tuple, list)):  # verl's prime_math style: the first entry is the score
        result = result[0] if result else None
    if not isinstance(result, dict):
        value = number(result)
        return {"score": value, "acc": value}
    if "score" not in result:
        raise KeyError(f"the function returned a dictionary without `score`: its keys are {clean(str(sorted(map(str, result))), 500)}")
    scores = {}
    for name, value in result.items():
        if name in ("score", "acc"):
            scores[name] = number(value, f"the function returned a dictionary whose `{name}` is")
        elif isinstance(value, str) or value is None:  # an answer that was read, say: text is no score, even of digits
            continue
        else:
            try:
                scores[str(name)] = number(value)
            except ValueError:
                continue
    if scores.get("acc", 0.0) is None:
        del scores["acc"]
    return checked_names(scores)


def answer_of(result):
    """The answer that a function read, its `pred`, as a column of text: majority votes count it."""
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    pred = result.get("pred") if isinstance(result, dict) else None
    try:
        return {} if pred is None else {"log_extra": {"pred": clean(str(pred))}}
    except Exception:
        return {}


def checked_names(scores):
    for name in scores:
        if len(name) > LONGEST_NAME:
            raise ValueError(f"the function returned a name of {len(name)} characters, {clean(name, 80)}: at most {LONGEST_NAME}")
    return {clean(name): value for name, value in scores.items()}


async def finished(value):
    return await value if inspect.isawaitable(value) else value


def truth_of(item):
    """The ground truth as the dataset holds it: tamis compares text, a function may want a number or list."""
    reward_model = item["columns"].get("reward_model")
    if isinstance(reward_model, dict) and "ground_truth" in reward_model:
        return reward_model["ground_truth"]
    return item["ground_truth"]


def question_of(prompt):
    """The prompt as text: of a conversation the last message of the user."""
    if isinstance(prompt, str):
        return prompt
    content = next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def simple_numbers(result):
    """As of verl; a dictionary without `score` has as score its `reward`, or the sum of its numbers, `acc` left out if there are others."""
    if isinstance(result, dict) and "score" not in result:
        values = {name: number(value, f"the function returned a dictionary whose `{name}` is") for name, value in result.items()}
        parts = {name: value for name, value in values.items() if name != "acc"} or values
        known = [value for value in parts.values() if value is not None]
        result = {**values, "score": values["reward"] if "reward" in values else sum(known) if known else None}
    return named_numbers(result)


async def call_simple(function, item, kwargs):
    given = {
        **item["columns"],
        "completion": item["completion"],
        "prompt": question_of(item["prompt"]),
        "ground_truth": truth_of(item),
        "data_source": item["data_source"],
        **kwargs,
    }
    signature = signature_of(function)
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        given = {name: given[name] for name in named_parameters(signature) if name in given}
    return {"scores": simple_numbers(await finished(function(**given)))}


async def call_verl(function, item, kwargs):
    extra_info = item["columns"].get("extra_info")
    arguments = {
        "data_source": item["data_source"],
        "solution_str": item["completion"],
        "ground_truth": truth_of(item),
        "extra_info": dict(extra_info) if isinstance(extra_info, dict) else {},
    }
    result = await finished(function(**{**arguments, **kwargs}))
    return {"scores": named_numbers(result), **answer_of(result)}


async def answer_verl(function, items, kwargs, call=call_verl):
    async def one(item):
        try:
            return await call(function, item, kwargs)
        except BaseException:  # SystemExit too: it ends a completion, not the run
            return failure()

    if inspect.iscoroutinefunction(function):
        return await asyncio.gather(*map(one, items))
    return [await one(item) for item in items]


async def answer_simple(function, items, kwargs):
    return await answer_verl(function, items, kwargs, call_simple)


class Log:
    """The values that a TRL function logs in one call."""

    def __init__(self, num_completions):
        self.num_completions = num_completions
        self.extra = {}
        self.metrics = {}

    def log_extra(self, column, values):
        values = list(values)
        if len(values) != self.num_completions:
            raise ValueError(f"log_extra({column!r}, ...) was given {len(values)} values for {self.num_completions} completions")
        self.extra[clean(str(column), LONGEST_NAME)] = [self.text(value) for value in values]

    def log_metric(self, name, value):
        value = number(value, f"log_metric({name!r}, ...) was given")
        if value is not None and math.isfinite(value):
            self.metrics.setdefault(clean(str(name), LONGEST_NAME), []).append(value)

    @staticmethod
    def text(value):
        return None if value is None else clean(str(value))

    def of(self, row):
        """The values that belong to one completion. Those that were logged for the call belong to its first."""
        logged = {}
        if self.extra:
            logged["log_extra"] = {column: values[row] for column, values in self.extra.items()}
        if self.metrics and row == 0:
            logged["log_metric"] = self.metrics
        return logged


def trainer_state(item):
    """The fields of transformers.TrainerState; `log_history` is empty."""
    state = {
        "epoch": float(item["epoch"]),
        "global_step": 0,
        "max_steps": 0,
        "logging_steps": 1,
        "eval_steps": 0,
        "save_steps": 0,
        "train_batch_size": None,
        "num_train_epochs": 0,
        "num_input_tokens_seen": 0,
        "total_flos": 0,
        "log_history": [],
        "best_metric": None,
        "best_global_step": None,
        "best_model_checkpoint": None,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "is_hyper_param_search": False,
        "trial_name": None,
        "trial_params": None,
        "stateful_callbacks": {},
    }
    return types.SimpleNamespace(**{**state, **item["trainer_state"]})


class NoList(ValueError):
    """The function did not return one result for each completion, so results cannot be assigned. It is not
    called again."""


def listed(results, items, what):
    """The results of a batch as a list of one for each completion."""
    if results is None or isinstance(results, (str, bytes, dict)) or not hasattr(results, "__iter__"):
        raise NoList(f"the function returned {shown(results)}, not a list of {what}")
    results = list(results)
    if len(results) != len(items):
        raise NoList(f"the function returned {len(results)} rewards for {len(items)} completions")
    return results


async def call_trl(function, items, kwargs):
    names = []
    for item in items:
        names += [name for name in item["columns"] if name not in names]
    columns = {
        name: [item["columns"].get(name) for item in items]
        for name in names
        if name not in TRL_REPLACED
    }
    log = Log(len(items))
    arguments = {
        "prompts": [item["prompt"] for item in items],
        "completions": [item["completion"] if item["messages"] is None else item["messages"] for item in items],
        "completion_ids": [item["completion_ids"] for item in items],
        "trainer_state": trainer_state(items[0]),
        "log_extra": log.log_extra,
        "log_metric": log.log_metric,
    }
    rewards = listed(await finished(function(**{**columns, **arguments, **kwargs})), items, "numbers")

    def one(row, reward):
        try:
            return {"score": number(reward, "the function returned, for this completion,"), **log.of(row)}
        except ValueError:
            return {**failure(), **log.of(row)}

    return [one(row, reward) for row, reward in enumerate(rewards)]


def easyr1_numbers(result):
    """The named numbers of one EasyR1 result: `overall` is the score, `accuracy` the raw outcome (right above
    0), if there is one."""
    if not isinstance(result, dict) or "overall" not in result:
        found = clean(str(sorted(map(str, result))), 500) if isinstance(result, dict) else type(result).__name__
        raise ValueError(f"an EasyR1 function returns dictionaries with `overall`, this one has {found}")
    number(result["overall"], "the function returned a dictionary whose `overall` is")
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
        results = listed(await finished(function(requests, **kwargs)), items, "dictionaries")

    def one(result):
        try:
            return {"scores": easyr1_numbers(result), **answer_of(result)}
        except (ValueError, KeyError):
            return failure()

    return [one(result) for result in results]


async def answer_easyr1(function, items, kwargs, default="batch"):
    kind = getattr(sys.modules[MODULE], "REWARD_TYPE", default)
    if kind not in ("batch", "sequential"):
        return [{"error": f"REWARD_TYPE must be \"batch\" or \"sequential\", not {kind!r}"}] * len(items)
    try:
        return await call_easyr1(function, items, kwargs, kind == "sequential")
    except NoList:
        return [failure()] * len(items)
    except BaseException:
        if len(items) == 1:
            return [failure()]
    # As for TRL: one completion must not cost the others their reward.
    return [answer for item in items for answer in await answer_easyr1(function, [item], kwargs, default)]


async def answer_easyr1_sequential(function, items, kwargs):
    return await answer_easyr1(function, items, kwargs, "sequential")


async def answer_trl(function, items, kwargs):
    try:
        return await call_trl(function, items, kwargs)
    except NoList:
        return [failure()] * len(items)
    except BaseException:
        if len(items) == 1:
            return [failure()]
    # One completion must not cost the others their reward, so each is scored again by itself.
    return [answer for item in items for answer in await answer_trl(function, [item], kwargs)]


KINDS = {
    "simple": answer_simple,
    "verl": answer_verl,
    "trl": answer_trl,
    "easyr1": answer_easyr1,
    "easyr1_sequential": answer_easyr1_sequential,
}


def signature_of(function):
    """None for what has none: some built-in functions and callables of C."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def named_parameters(signature):
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in signature.parameters.values() if parameter.kind in kinds]


def misfit(function, kind, kwargs, columns):
    """Why a function cannot be called as a kind's; None if it can. `columns`: of the rows; None allows any name."""
    signature = signature_of(function)
    if signature is None:
        return None
    named = named_parameters(signature)
    if kind == "simple":
        needed = [name for name in named if signature.parameters[name].default is inspect.Parameter.empty]
        known = {*SIMPLE, *kwargs, *(needed if columns is None else columns)}
        missing = [name for name in needed if name not in known]
        if "completion" not in named:
            return "it has no parameter `completion`"
        try:
            signature.bind(**dict.fromkeys(needed))
        except TypeError as error:
            return str(error)
        if missing:
            return f"missing a required argument: '{missing[0]}' (the columns of the rows: {', '.join(sorted(columns)) or 'none'})"
        return None
    if kind.startswith("easyr1"):
        try:
            signature.bind(None, **kwargs)
        except TypeError as error:
            return str(error)
        foreign = [name for name in named[:1] if name in SIMPLE + VERL + TRL]
        return f"its first parameter is `{foreign[0]}`, and it would get a list of dictionaries" if foreign else None
    own, central, more = (VERL, VERL, []) if kind == "verl" else (TRL, TRL_CENTRAL, named if columns is None else columns)
    try:
        signature.bind(**dict.fromkeys([*own, *kwargs, *(name for name in more if name not in TRL_REPLACED)]))
    except TypeError as error:
        if kind == "trl" and "unexpected keyword" in str(error):
            return f"{error}: TRL passes everything that there is by name, so the parameters must end with **kwargs"
        if kind == "verl" and "solution_strs" in named:
            return f"{error}: it is written for verl's batch reward manager, and is called here for one completion at a time"
        known = "" if kind == "verl" or columns is None else f" (the columns of the rows: {', '.join(sorted(columns)) or 'none'})"
        return f"{error}{known}"
    if named and not set(named) & set(central):
        return f"it has none of the parameters {', '.join(central)}"
    return None


def fitting(function, kwargs):
    """The kinds that a function's parameters fit."""
    signature = signature_of(function)
    kinds = ("simple", "verl", "trl") if signature is not None else ("verl", "trl")
    fits = [kind for kind in kinds if misfit(function, kind, kwargs, None) is None]
    first = (named_parameters(signature) if signature is not None else [])[:1]
    is_easyr1 = hasattr(sys.modules[MODULE], "REWARD_TYPE") or bool(first and first[0].startswith("reward_input"))
    if is_easyr1 and misfit(function, "easyr1", kwargs, None) is None:
        is_sequential = not hasattr(sys.modules[MODULE], "REWARD_TYPE") and first == ["reward_input"]
        fits.append("easyr1_sequential" if is_sequential else "easyr1")
    return fits


def chosen(function, fits):
    """The kind of a function for which none was named: the only one that fits, else the one whose parameters it names, else verl."""
    if len(fits) == 1:
        return fits[0]
    signature = signature_of(function)
    named = set(named_parameters(signature)) if signature is not None else set()
    if not fits and "completion" in named:
        return "simple"
    return "trl" if not fits and named & set(TRL_CENTRAL) and not named & set(VERL) else "verl"


GOLD = ("ground_truth", "answer", "solution")


def words_of(function):
    """The names that a function's code reads, and its text constants; None if its source is not known or it may read more."""
    if hasattr(function, "__wrapped__"):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except Exception:  # built-in, a callable object, a lambda within a statement
        return None
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if words & {"locals", "vars", "eval", "exec"}:
        return None
    return words | {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def reads_gold(signature, kind, gold, words):
    """Whether a function takes the ground truth: verl's and EasyR1's do, others by the name of a column that holds it, as a parameter or
    as a key of `**kwargs`."""
    if kind == "verl" or kind.startswith("easyr1") or signature is None:
        return True
    names, named = {*GOLD, *gold}, set(named_parameters(signature))
    has_more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    return bool(names & named or has_more and names & (words or set()))


def uses_gold(signature, kind, gold, words):
    """Whether the function's code reads what it takes of the ground truth. A parameter alone says nothing: verl passes it to all."""
    if not reads_gold(signature, kind, gold, words):
        return False
    if words is None or signature is None or kind.startswith("easyr1"):
        return True
    names = {*VERL[2:]} if kind == "verl" else {*GOLD, *gold}
    return bool(names & words) or (kind == "verl" and "ground_truth" not in named_parameters(signature))


def introduction(function, name, kind, fits, kwargs, columns, gold):
    """The facts about the function that tamis needs before it calls it."""
    signature, words = signature_of(function), words_of(function)
    return {
        "style": kind,
        "fits": fits,
        "signature": clean(f"{name}{signature if signature is not None else '(…)'}", 500),
        "problem": misfit(function, kind, kwargs, columns),
        "reads_gold": reads_gold(signature, kind, gold, words),
        "uses_gold": uses_gold(signature, kind, gold, words),
    }


def load(path):
    """Imports the file, like a script beside its own modules."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def find(path, name):
    """A function of the imported file."""
    module = sys.modules[MODULE]
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise AttributeError(f"{path} has no function `{name}`; it has {', '.join(functions) or 'none'}")
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"`{name}` of {path} is {shown(function)}, not a function")
    return function


class Reward:
    """A function of the file, as one reward calls it."""

    def __init__(self, path, name, kind, kwargs):
        self.name, self.kwargs, self.missing = name, kwargs, None
        try:
            self.function = find(path, name)
        except (AttributeError, TypeError) as error:
            self.missing, self.is_one_by_one = clean(str(error)), True
            return
        self.fits = fitting(self.function, kwargs)
        self.kind = kind or chosen(self.function, self.fits)
        # Each answer is written at once: one that hangs does not cost those before it.
        self.is_one_by_one = self.kind in ("simple", "verl") and not inspect.iscoroutinefunction(self.function)

    def introduce(self, columns, gold):
        if self.missing is not None:
            return {"missing": self.missing}
        introduced = introduction(self.function, self.name, self.kind, self.fits, self.kwargs, columns, gold)
        return {"introduction": introduced}

    def answers(self, items, loop):
        if self.missing is not None:
            return [{"error": self.missing}] * len(items)
        return answers_to(items, KINDS[self.kind], loop, self.function, self.kwargs)


def answers_to(items, answer, loop, function, kwargs):
    """One answer for each completion, whatever escapes from the function."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(answer(function, items, kwargs))
    except BaseException:  # sys.exit in a task of the function's own goes past every `await`, and leaves the loop with work half done
        if len(items) == 1:
            return [failure()]
    return [reply for item in items for reply in answers_to([item], answer, asyncio.new_event_loop(), function, kwargs)]


def line_of(item, reply):
    line = json.dumps({"id": item["id"], **reply})
    if len(line) > LONGEST_LINE:
        line = json.dumps({"id": item["id"], "error": f"the answer takes {len(line)} bytes, more than {LONGEST_LINE}"})
    return line + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True)
    path = parser.parse_args().path

    # The answers keep the real standard output; file descriptor 1, which the user's code (or a library in C) prints to, becomes standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    try:
        load(path)
    except Exception:
        sys.exit(failure()["error"])
    loop = asyncio.new_event_loop()
    rewards, printing, items = {}, 0, []
    for line in requests:
        request = json.loads(line)
        if isinstance(request["function"], dict):
            named = request["function"]
            rewards[named["id"]] = Reward(path, named["name"], named["kind"], named["kwargs"])
            continue
        if request["function"] != printing:
            printing = request["function"]
            sys.stderr.flush()
            os.write(2, f"\x1etamis-reward {printing}\n".encode())
        reward = rewards[printing]
        if "introduce" in request:
            columns, gold = request["introduce"]["columns"], request["introduce"].get("gold", ())
            answers.write(json.dumps(reward.introduce(columns, gold)) + "\n")
            answers.flush()
            continue
        items.append(request)
        if request["remaining"] and not reward.is_one_by_one:
            continue
        for item, reply in zip(items, reward.answers(items, loop)):
            answers.write(line_of(item, reply))
        answers.flush()
        items = []


if __name__ == "__main__":
    main()
