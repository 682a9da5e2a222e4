# What the worker runs -------------------------------------------------------------------------------------

import linecache  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402

import ast  # noqa: E402
import bisect, collections, copy, decimal, fractions, functools, heapq, itertools  # noqa: E401, E402, F401
import io, math, operator, random, re, string, typing  # noqa: E401, E402, F401

PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
del pow
"""


def encode(value):
    """Plain data in a form that is equal if Python's `==` holds; anything else is equal to nothing."""
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None:
        return None
    if isinstance(value, (bool, int)):
        return "n" + int.__repr__(int(value))
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
        near = float(value)
        return encode(near) if near == value else f"?{kind.__name__}"
    if isinstance(value, float):
        if value != value:
            return "?nan"
        if value in (math.inf, -math.inf):
            return "ninf" if value > 0 else "n-inf"
        return "n" + (int.__repr__(int(value)) if value == int(value) else float.__repr__(value))
    if isinstance(value, str):
        return "s" + str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return "b" + bytes(value).hex()
    if isinstance(value, list):
        return ["l", *map(encode, list.__iter__(value))]
    if isinstance(value, tuple):
        return ["t", *map(encode, tuple.__iter__(value))]
    if isinstance(value, (set, frozenset)):
        return ["S", *sorted(map(encode, set(value)), key=json.dumps)]
    if isinstance(value, dict):
        pairs = [[encode(key), encode(dict.__getitem__(value, key))] for key in dict.__iter__(value)]
        return ["d", *sorted(pairs, key=json.dumps)]
    return f"?{kind.__name__}"


def split_rows(rows):
    """The tests of each row as scripts, or the fault of a test."""
    found = []
    for tests in rows:
        try:
            found.append({"scripts": [split_test(test) for test in tests]})
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            found.append({"fault": f"a test is no Python: {error}"})
    return found


def split_test(test):
    """Test code of dataset authors as steps, which one process takes in their order.

    A step is {"run"}, or {"test"} if it passes by reaching its end, or {"expression", "expected"} if it
    compares with plain data. Code without assertions on its top level is one step.
    """
    steps, between = [], []
    for node in (body := ast.parse(test).body):
        if isinstance(node, ast.Assert):
            if between:
                steps.append({"run": "\n".join(map(ast.unparse, between))})
            steps.append(split_assertion(node))
            between = []
        else:
            between.append(node)
    if len(between) == len(body):
        return [{"test": test}]
    if between:
        steps.append({"run": "\n".join(map(ast.unparse, between))})
    return steps


def split_assertion(node):
    whole = {"test": ast.unparse(node)}
    compare = node.test
    if not (isinstance(compare, ast.Compare) and [type(op) for op in compare.ops] == [ast.Eq]):
        return whole
    sides = []
    for side in (compare.left, compare.comparators[0]):
        try:
            sides.append((True, encode(ast.literal_eval(side))))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            sides.append((False, ast.unparse(side)))
    if sides[0][0] == sides[1][0]:
        return whole
    (expected,) = [value for is_plain, value in sides if is_plain]
    (expression,) = [value for is_plain, value in sides if not is_plain]
    # For example a complex number, even inside a list.
    return {"expression": expression, "expected": expected} if is_data(expected) else whole


def is_data(form):
    if isinstance(form, list):
        return all(map(is_data, form))
    return form is None or not form.startswith("?")


def compile_text(text, name, kind="exec", cache=linecache.cache, size=len, make=compile):
    cache[name] = (size(text), None, text.splitlines(keepends=True), name)
    return make(text, name, kind, dont_inherit=True)


def execute(job, job_descriptor, late_length, report):
    """Runs the code and what follows on it; never returns."""
    # Objects that the code may replace in its modules are saved before it runs; a scanner is not Python that
    # could be changed.
    scan, dumps, read = json.JSONDecoder().scan_once, json.dumps, read_exactly
    write, leave = os.write, os._exit
    run, look, compiled, form, show = exec, eval, compile_text, encode, traceback.print_exception
    mode, setup, source = job["mode"], job.get("setup", ""), job.get("source", "")
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["code.py"]
    if mode == "split":
        report_all(write, report, dumps(split_rows(json.loads(read(job_descriptor, late_length)))))
        leave(0)
    module = types.ModuleType("__main__" if mode == "script" else "solution")
    sys.modules[module.__name__] = module
    space = module.__dict__
    space["__file__"] = "code.py"
    status = 0
    try:
        try:
            if mode == "call":
                run(PRELUDE, space)
            if setup:
                run(compiled(setup, "setup.py"), space)
            run(compiled(source, "code.py"), space)
            if mode != "script":
                late, _ = scan(read(job_descriptor, late_length).decode(), 0)
                if setup:
                    run(compiled(setup, "setup.py"), space)
                if "steps" in late:
                    found = []
                    for step in late["steps"]:
                        if "run" in step:
                            run(compiled(step["run"], "test.py"), space)
                            continue
                        try:
                            if "test" in step:
                                run(compiled(step["test"], "test.py"), space)
                                value = late["token"]
                            else:
                                value = form(look(compiled(step["expression"], "test.py", "eval"), space))
                        except BaseException:  # noqa: BLE001
                            value = "?failed"
                        found.append(value)
                    report_all(write, report, dumps(found))
                else:
                    name = late["function"]
                    holder = space.get("Solution")
                    function = space[name] if name in space else getattr(holder(), name)
                    report_all(write, report, dumps(form(function(*late["arguments"]))))
        finally:
            finish()
    except SystemExit as error:
        if error.code is None:
            status = 0
        elif isinstance(error.code, int):
            status = error.code & 0xFF
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException as error:  # noqa: BLE001
        status = 1
        trace = error.__traceback__
        # The first lines are this file's.
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        try:
            show(type(error), error, trace, file=sys.stderr)
        except BaseException:  # noqa: BLE001
            pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001
            pass
    leave(status)


def report_all(write, descriptor, text):
    data = text.encode()
    while data:
        data = data[write(descriptor, data):]


def finish():
    """As Python does at the end of a program: waits for threads, calls registered functions."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()


