"""Settings, messages and outcomes as the wire has them, and errors with a hint."""

import difflib
import hashlib
import importlib
import importlib.util
import json
import math
import pathlib
import sys
import traceback
from dataclasses import dataclass, field

PROTOCOL = "tamis-environment/1"
TRAIN, HELD_OUT = SPLITS = ("train", "held_out")
LONGEST_ERROR = 4000
_ROLES = ("system", "user", "assistant", "tool")


class Refused(Exception):
    """What cannot be done: `message` names the place, `hint` the fix."""

    def __init__(self, message, hint=None):
        super().__init__(message)
        self.message = message
        self.hint = hint


class Settings:
    """Values by name, each taken once and checked; `finish` refuses what is left over."""

    def __init__(self, values, what):
        if not isinstance(values, dict):
            raise Refused(f"{what} must be an object, and is {shown(values)}")
        self._values, self._what, self._known = dict(values), what, []

    def take(self, name, kinds, expected, default=...):
        """A value of one of these types. Without a default it must be there; null is the default."""
        self._known.append(name)
        value = self._values.pop(name, None)
        if value is None:
            if default is ...:
                raise Refused(f"{self._what} has no `{name}` ({expected})")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds not in (bool, object)):
            raise Refused(f"`{name}` of {self._what} must be {expected}, and is {shown(value)}")
        return value

    def text(self, name, default=...):
        """A text."""
        return self.take(name, str, "a text", default)

    def choice(self, name, choices):
        """One of these texts."""
        expected = "one of " + ", ".join(choices)
        value = self.take(name, str, expected)
        if value not in choices:
            raise Refused(f"`{name}` of {self._what} must be {expected}, and is {shown(value)}")
        return value

    def count(self, name, default=..., least=1):
        """A whole number."""
        value = self.take(name, int, f"a whole number from {least} on", default)
        if value is not default and value < least:
            raise Refused(f"`{name}` of {self._what} must be a whole number from {least} on, and is {value}")
        return value

    def object(self, name):
        """Values by name; none if it is left out."""
        return self.take(name, dict, "an object", {})

    def anything(self, name):
        """Any value but null."""
        return self.take(name, object, "any value but null")

    def finish(self):
        """Refuses keys that are left over."""
        for name in self._values:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"its keys are {', '.join(self._known)}"
            raise Refused(f"{self._what} has the unknown key `{name}`", hint)


@dataclass
class Outcome:
    """The result of an answer."""

    messages: list
    reward: float | None
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    info: dict = field(default_factory=dict)

    @property
    def is_last(self):
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    def body(self):
        """As the wire has it."""
        if not (self.messages or self.is_last):
            message = "the episode continues, but the environment returned no observation"
            raise Refused(message, "return an observation, or end the episode")
        return {
            "messages": [] if self.is_last else self.messages,
            "reward": None if self.reward is None else as_number(self.reward, "the reward"),
            "terminated": bool(self.terminated),
            "truncated": bool(self.truncated and not self.terminated),
            "success": None if self.success is None else bool(self.success),
            "info": {str(name): as_number(value, f"`{name}` of info") for name, value in self.info.items()},
        }


def as_number(value, what):
    """A finite float; takes what has `__float__` too, as numbers of NumPy and PyTorch do, but no text."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # it raises what it likes
        number = math.nan
    if not math.isfinite(number):
        raise Refused(f"{what} is {shown(value)}, and must be a finite number")
    return number


def as_messages(value, what):
    """A text (a user's message), a message or a list of them as a list of messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise Refused(f"{what} is {shown(value)}, and must be a text or a list of messages")
    for message in messages:
        is_sound = isinstance(message, dict) and message.get("role") in _ROLES
        if not (is_sound and isinstance(message.get("content"), str)):
            hint = f"its role is one of {', '.join(_ROLES)}, and its content a text"
            raise Refused(f"{what} has the message {shown(message)}", hint)
    return messages


def as_reply(value, what):
    """Messages that follow an answer: a user's or tools'. None for no message."""
    messages = [] if value is None else as_messages(value, what)
    for message in messages:
        if message["role"] not in ("user", "tool"):
            hint = "what follows an answer of the policy comes from `user` or `tool`"
            raise Refused(f"{what} has a message of the role {message['role']}", hint)
    return messages


def level_seed(seed, split, number):
    """Seed of a level, below 2^31: even ones are trained on, odd ones held out, so none is both."""
    digest = hashlib.sha256(f"{seed}/{split}/{number}".encode()).digest()
    return (int.from_bytes(digest[:4], "big") >> 2) * 2 + (split == HELD_OUT)


def load_named(path, key):
    """The function or class that `FILE.py:NAME` or `MODULE:NAME` names."""
    place, _, name = path.rpartition(":")
    if not (place and name.isidentifier()):
        raise Refused(f"`{key}` is {shown(path)}", "write FILE.py:NAME or MODULE:NAME")
    if place.endswith(".py"):
        module = _load_file(pathlib.Path(place).resolve(), key)
    else:
        module = load_module(place, key)
    value = getattr(module, name, None)
    if not callable(value):
        raise Refused(f"`{key}`: {place} has no function or class `{name}`")
    return value


def load_module(name, key):
    """A module by its name."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a module raises what it likes
        hint = "it is looked for among the packages of `python` (the interpreter), and in the working directory"
        is_itself = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        hint = hint if is_itself else _package_hint(error) or hint
        raise Refused(f"`{key}`: failed to import {name}: {told(error)}", hint) from error


def _load_file(file, key):
    name = f"tamis_file_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise Refused(f"`{key}` names a file that is not there: {file}", "write its path from the working directory")
    # Files beside it can be imported by it.
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise Refused(f"`{key}`: failed to import {file}: {told(error)}", _package_hint(error)) from error
    return module


# Packages with another name than the module that a file imports.
_PACKAGES = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def _package_hint(error):
    """How to install the package that an import misses; None for another error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = error.name.split(".")[0]
    package = _PACKAGES.get(module, module)
    fix = f"`{sys.executable} -m pip install {package}`"
    return (
        f"install it there ({fix}), or name an interpreter that has it: the environment's `python`, or run.python for everything; "
        f"if `{module}` is yours, add its folder to PYTHONPATH"
    )


def error_body(error):
    """An exception as the wire has it."""
    if isinstance(error, Refused):
        return {"message": error.message[:LONGEST_ERROR], "hint": error.hint}
    return {"message": told(error), "hint": None}


def told(error):
    """The last line of an exception's traceback, and the place where it was raised."""
    try:
        line = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # its text cannot be made
        line = type(error).__name__
    # A file that cannot be parsed has no frame, and its error has the place.
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {frames[-1].filename}, in {frames[-1].name})" if frames else ""
    return line[:LONGEST_ERROR] + place


def shown(value):
    """A value for a message."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 120 else text[:117] + "..."


def encode(values):
    """A line: JSON in UTF-8. Values of NumPy are written as Python's, halves of surrogate pairs as `?`."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, default=_plain)
    return text.encode("utf-8", "replace") + b"\n"


def _plain(value):
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise Refused(f"{shown(value)} is a {type(value).__name__}, and cannot be written as JSON")
