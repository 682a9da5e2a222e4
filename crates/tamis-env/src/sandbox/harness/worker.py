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
    """Plain data in a form that is equal where Python's `==` says so; anything else is equal to nothing."""
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


def split_tests(tests):
    """Tests of dataset authors, one assertion each where they can be taken apart.

    Each is {"setup", "test"}, or {"setup", "expression", "expected"} where it compares with plain data.
    """
    found = []
    for test in tests:
        try:
            body = ast.parse(test).body
        except (SyntaxError, ValueError) as error:
            raise Refused("tests", f"a test is no Python: {error}: {test[:80]}") from None
        first = next((i for i, node in enumerate(body) if isinstance(node, ast.Assert)), len(body))
        rest = body[first:]
        if not rest or not all(isinstance(node, ast.Assert) for node in rest):
            found.append({"setup": "", "test": test})
            continue
        setup = "\n".join(ast.unparse(node) for node in body[:first])
        for node in rest:
            found.append({"setup": setup, **split_assertion(node)})
    return found


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
    return {"expression": expression, "expected": expected}


def compile_text(text, name, kind="exec", cache=linecache.cache, size=len, make=compile):
    cache[name] = (size(text), None, text.splitlines(keepends=True), name)
    return make(text, name, kind, dont_inherit=True)


def execute(job, job_descriptor, late_length, report):
    """Runs the code and what follows on it; never returns."""
    # What the code may replace in its modules is taken before it runs; a scanner is not Python that could be
    # changed.
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
        try:
            found = split_tests(json.loads(read(job_descriptor, late_length)))
        except Refused as error:
            os.write(2, error.reason.encode(errors="backslashreplace"))
            leave(1)
        report_all(write, report, dumps(found))
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
                if late.get("setup"):
                    run(compiled(late["setup"], "test.py"), space)
                if "test" in late:
                    run(compiled(late["test"], "test.py"), space)
                    write(report, b'"' + late["token"].encode() + b'"')
                elif "expression" in late:
                    value = look(compiled(late["expression"], "test.py", "eval"), space)
                    report_all(write, report, dumps(form(value)))
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
    """What Python does at the end of a program: waits for threads, calls what was registered."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()


