"""`kind: tools`: Python functions as tools of a model.

    functions   FILE.py:NAME or MODULE:NAME of each

    def weather(city: str, days: int = 1) -> str:
        \"\"\"The weather of a city.

        Args:
            city: Its name.
            days: How many days from today on.
        \"\"\"
        return forecast(city, days)

Its JSON schema is made of the annotations and the docstring (Args as Google writes them). An answer that is stepped with
is one call, `{"name": .., "arguments": {..}}`; the message that follows is what the function returned, as text or as
JSON, or its error as Python words it; `LONGEST` characters of it. An episode is over when it is closed.
"""

import inspect
import json
import re
import types
import typing

from .protocol import Outcome, Refused, load_named, shown

LONGEST = 1 << 16
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def _schema_of(annotation, what):
    """JSON schema of an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (inspect.Parameter.empty, typing.Any):
        return {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in arguments if one is not type(None)]
        return _schema_of(kinds[0], what) if len(kinds) == 1 else {"anyOf": [_schema_of(one, what) for one in kinds]}
    kind = origin or annotation
    if kind in (tuple, set):
        kind = list
    if kind not in _NAMES:
        hint = "annotate with str, int, float, bool, list, dict, Literal or a union of them"
        raise Refused(f"{what} is annotated as {shown(annotation)}, for which there is no JSON type", hint)
    schema = {"type": _NAMES[kind]}
    if kind is list and arguments:
        schema["items"] = _schema_of(arguments[0], what)
    return schema


def _read_docstring(function):
    """The description of the function, and of each argument."""
    text = inspect.getdoc(function) or ""
    head, _, rest = text.partition("\nArgs:")
    section = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    told = {}
    for entry in re.split(r"\n(?=\s{4}\S)", section):
        name, colon, meaning = entry.partition(":")
        if colon:
            told[re.sub(r"\(.*\)", "", name).strip()] = " ".join(meaning.split())
    return " ".join(re.split(r"\n\s*(?:Returns|Raises|Yields|Examples?):", head)[0].split()), told


def schema(function):
    """The tool of a function, as chat templates take it."""
    name = function.__name__
    of_other_kind = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in of_other_kind):
        hint = "write a plain function around it that returns a value: `return asyncio.run(..)`, `return list(..)`"
        raise Refused(f"the tool {name} is asynchronous or a generator", hint)
    description, told = _read_docstring(function)
    if not description:
        raise Refused(f"the tool {name} has no docstring", "write one that describes what it does: the model reads it")
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that are not there at run time
        hints = {}
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        what = f"`{parameter.name}` of the tool {name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Refused(f"{what} cannot be given by name", "a model calls tools with arguments by name")
        own = _schema_of(hints.get(parameter.name, parameter.annotation), what)
        if parameter.name in told:
            own["description"] = told[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = own
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class Kind:
    """The tools of a run."""

    def __init__(self, settings):
        paths = settings.take("functions", list, "a list of FILE.py:NAME or MODULE:NAME")
        settings.finish()
        self._functions = {}
        for path in paths:
            function = load_named(path, "functions")
            if function.__name__ in self._functions:
                raise Refused(f"two tools are called {function.__name__}", "rename one")
            self._functions[function.__name__] = function
        self._schemas = [schema(function) for function in self._functions.values()]

    def describe(self):
        """Its part of the answer to `hello`."""
        return {
            "name": "tools",
            "max_turns": None,
            "tools": self._schemas,
            "system": None,
            "is_deterministic": False,
        }

    def levels(self, split, count, seed):
        """None: any prompt may be answered with tools."""
        return []

    def start(self, level, luck):
        """Calls of one trajectory."""
        return Episode(self._functions), None


class Episode:
    """Calls of one trajectory."""

    def __init__(self, functions):
        self._functions = functions

    def step(self, text):
        """Makes a call."""
        call = json.loads(text)
        try:
            result = self._functions[call["name"]](**call["arguments"])
            content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
            failed = 0.0
        except BaseException as error:  # it is the model's to mend, `sys.exit` too
            content, failed = f"{type(error).__name__}: {error}", 1.0
        if len(content) > LONGEST:
            content = content[:LONGEST] + f"\n[{len(content) - LONGEST} characters were left out]"
        # An empty message would be none.
        return Outcome([{"role": "tool", "content": content or "null"}], None, info={"tool_failed": failed})

    def close(self):
        """Nothing is kept."""
