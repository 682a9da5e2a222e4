"""Calls a user's own loss or advantage for tamis.

    python3 tamis_function.py --path FILE --name FUNCTION --section loss|advantage [--kwargs JSON]

loss:      FUNCTION(columns, **kwargs) -> (loss of each token, derivative of each token); a file that imports PyTorch gets tensors, and may
           return the losses alone, which PyTorch then differentiates
advantage: FUNCTION(columns, **kwargs) -> one number for each trajectory, or for each token

A request is a line of JSON, {"columns": [[name, type, length], ...], ...}, and behind it the bytes of the columns in that order: float64
("d"), int64 ("q") or one byte a flag ("?"). The answer is a line {"arrays": [length, ...], ...} and the float64 numbers of the arrays, or
{"error": text}. A request without columns is answered with the function's signature. Whatever the function prints goes to standard error.
tamis_reward.py lies beside this file.
"""

import argparse
import array
import inspect
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # beside tamis's own files
import tamis_reward  # noqa: E402

sys.dont_write_bytecode = writes_bytecode
del sys.path[0]
tamis_reward.PROGRAMS.append(__file__)

try:
    import numpy
except ImportError:
    numpy = None

FLOATS = "d"


class Columns:
    """Columns of a batch by name, as NumPy arrays (lists without NumPy) or tensors; `None` for a column that this run has not."""

    def __init__(self, columns):
        self.__dict__.update(columns)

    def __getattr__(self, name):
        raise AttributeError(f"there is no column `{name}`; there are {', '.join(self.__dict__)}")

    def __getitem__(self, name):
        return getattr(self, name)

    def __contains__(self, name):
        return name in self.__dict__

    def __iter__(self):
        return iter(self.__dict__)

    def __repr__(self):
        return f"Columns({', '.join(self.__dict__)})"


def column(kind, data):
    """A column of its bytes."""
    if numpy is not None:
        return numpy.frombuffer(data, dtype={"?": numpy.bool_}.get(kind, kind)).copy()
    if kind == "?":
        return [byte != 0 for byte in data]
    return array.array(kind, data).tolist()


def torch_of(function):
    """PyTorch, if the function's file imports it or something of it; otherwise None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    # Behind decorators, and the file of a callable object.
    names = getattr(inspect.unwrap(function), "__globals__", None) or vars(sys.modules[tamis_reward.MODULE])
    for value in list(names.values()):
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if isinstance(module, str) and (module == "torch" or module.startswith("torch.")):
            return torch
    return None


def described(value):
    """What came back, for a message: the shape of an array, and otherwise the value."""
    shape = getattr(value, "shape", None)
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    if shape is not None:
        return f"{kind} of shape {tuple(shape)}"
    if isinstance(value, (list, tuple)):
        return f"{kind} of {len(value)}"
    return tamis_reward.shown(value)


def floats(value, lengths, what):
    """The numbers of a result, as an array of float64. `lengths` are those that it may have, by what they count."""
    expected = " or ".join(f"{length} (one per {unit})" for unit, length in lengths.items())
    if value is None:
        raise TypeError(f"{what} is None; expected {expected} numbers. Does the function end in `return`?")
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy() if numpy is not None else value.detach().cpu().double().tolist()
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) != 1:
        more = "; the function returns one number each, and objective.aggregation makes one of them" if len(shape) == 0 else ""
        raise ValueError(f"{what} is {described(value)}; expected {expected} numbers in one dimension{more}")
    try:
        numbers = array.array(FLOATS, [float(one) for one in value] if numpy is None else numpy.asarray(value, dtype=numpy.float64).tobytes())
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {described(value)}, not numbers ({error}); expected {expected} numbers") from None
    if len(numbers) not in lengths.values() or (numpy is not None and numpy.ndim(value) != 1):
        raise ValueError(f"{what} is {described(value)}; expected {expected} numbers")
    return numbers


def loss_of(function, columns, kwargs, num_tokens):
    """Values and derivatives of a loss."""
    lengths = {"token": num_tokens}
    torch = torch_of(function)
    if torch is None:
        result = function(Columns(columns), **kwargs)
    else:
        tensors = {name: tensor(torch, values) for name, values in columns.items()}
        tensors["logprobs"].requires_grad_()
        result = function(Columns(tensors), **kwargs)
        if torch.is_tensor(result):
            floats(result, lengths, "the loss")
            used = result[tensors["mask"]].sum()
            if not used.requires_grad:
                if num_tokens and bool(tensors["mask"].any()):
                    raise ValueError("the loss does not depend on `columns.logprobs`: PyTorch has nothing to differentiate")
                return [floats(result, lengths, "the loss"), array.array(FLOATS, bytes(8 * num_tokens))], "torch"
            (derivative,) = torch.autograd.grad(used, tensors["logprobs"], allow_unused=True)
            if derivative is None:
                raise ValueError("the loss does not depend on `columns.logprobs`: PyTorch has nothing to differentiate")
            return [floats(result, lengths, "the loss"), floats(derivative, lengths, "its derivative")], "torch"
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        fix = "return both: `return loss, derivative`" + ("" if torch else ", or import torch in the file and return a tensor")
        raise TypeError(f"the function returned {described(result)}; expected the losses and their derivatives: {fix}")
    return [floats(result[0], lengths, "the loss"), floats(result[1], lengths, "the derivative")], "arrays"


def advantage_of(function, columns, kwargs, num_tokens):
    """Advantages of trajectories, or of tokens."""
    torch = torch_of(function)
    given = columns if torch is None else {name: tensor(torch, values) for name, values in columns.items()}
    result = function(Columns(given), **kwargs)
    lengths = {"trajectory": len(columns["rewards"]), "token": num_tokens}
    return [floats(result, lengths, "what the function returned")], "arrays" if torch is None else "torch"


def tensor(torch, values):
    """A column as a tensor, numbers as float64."""
    if values is None or isinstance(values, dict):
        return values and {name: tensor(torch, one) for name, one in values.items()}
    is_float = numpy is None and any(type(one) is float for one in values[:1])
    return torch.as_tensor(values, dtype=torch.float64 if is_float else None)


SECTIONS = {"loss": loss_of, "advantage": advantage_of}


def introduction(function, name, section, kwargs):
    """What the function is, and why it cannot be called."""
    signature = tamis_reward.signature_of(function)
    problem = None
    if inspect.iscoroutinefunction(function):
        problem = "it is `async`"
    elif signature is not None:
        try:
            signature.bind(None, **kwargs)
        except TypeError as error:
            problem = str(error)
    called = ", ".join(["columns", *(f"{key}=..." for key in kwargs)])
    shown = f"{name}{signature if signature is not None else '(…)'}"
    line = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_firstlineno", None)
    return {"line": line, "signature": tamis_reward.clean(shown, 500), "called": f"{name}({called})", "problem": problem}


def read_columns(request, data):
    """Columns by name. A name with a dot is a part of a column: `scores.acc`."""
    columns = dict.fromkeys(request["names"])
    at = 0
    for name, kind, length in request["columns"]:
        size = length * (1 if kind == "?" else 8)
        values = column(kind, data[at : at + size])
        at += size
        outer, dot, inner = name.partition(".")
        if dot:
            columns[outer] = {**(columns.get(outer) or {}), inner: values}
        else:
            columns[name] = values
    return columns


def is_of_user(trace):
    """Whether an exception was raised outside of tamis's own files."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename not in tamis_reward.PROGRAMS


def answered(request, data, function, arguments):
    """The header of an answer, and its arrays."""
    try:
        if "columns" not in request:
            return {"introduction": introduction(function, arguments.name, arguments.section, arguments.kwargs)}, []
        columns = read_columns(request, data)
        arrays, style = SECTIONS[arguments.section](function, columns, arguments.kwargs, request["num_tokens"])
        return {"arrays": [len(numbers) for numbers in arrays], "style": style}, arrays
    except BaseException as error:  # SystemExit too: the message says where it was raised
        failed = tamis_reward.failure()
        is_of_lists = numpy is None and torch_of(function) is None and isinstance(error, (AttributeError, TypeError))
        if is_of_lists and is_of_user(error.__traceback__):
            failed["error"] += f"\nThe columns are lists, because NumPy is missing: No module named 'numpy' in {sys.executable}"
        return failed, []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--section", choices=tuple(SECTIONS), required=True)
    parser.add_argument("--kwargs", type=json.loads, default={})
    arguments = parser.parse_args()

    # As in tamis_reward.py: file descriptor 1 becomes standard error, and nothing of the user's reads our input.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    try:
        tamis_reward.load(arguments.path)
        function = tamis_reward.find(arguments.path, arguments.name)
    except Exception:
        sys.exit(tamis_reward.failure()["error"])
    for line in requests:
        request = json.loads(line)
        size = sum(length * (1 if kind == "?" else 8) for _, kind, length in request.get("columns", ()))
        header, arrays = answered(request, requests.read(size), function, arguments)
        answers.write(json.dumps(header).encode() + b"\n")
        for numbers in arrays:
            answers.write(numbers.tobytes())
        answers.flush()


if __name__ == "__main__":
    main()
