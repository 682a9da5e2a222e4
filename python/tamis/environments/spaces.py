"""Gymnasium's spaces as text: actions that an answer names, observations that it shows.

An answer's action is the text of its last `<answer>..</answer>`, or else its last line that is not empty.

    Discrete        a name or the number of an action, whatever its case; or the only name that occurs there as a word
    MultiDiscrete,
    MultiBinary     as many numbers as it has places, in order, any separators between them
    Text            the text itself, where the space contains it
"""

import re

import numpy as np
from gymnasium import spaces

from .protocol import Refused

MOST_NUMBERS = 64
_OF_NUMBERS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def answer_of(text):
    """The part of a policy's text that is its answer."""
    found = _ANSWER.findall(text)
    lines = [line for line in (found[-1] if found else text).splitlines() if line.strip()]
    return "\n".join(lines).strip() if found else (lines[-1].strip() if lines else "")


class Actions:
    """The actions of a space by the text that names them; `names` are those of a Discrete space in order."""

    def __init__(self, space, names=None):
        self._space, self.names = space, names
        if isinstance(space, spaces.Discrete):
            if names is not None and len(names) != space.n:
                raise Refused(
                    f"`actions` has {len(names)} names, and the environment {space.n} actions ({space})",
                    "name each of them, in their order",
                )
            self.names = names or [str(int(space.start) + place) for place in range(int(space.n))]
            if len({name.casefold() for name in self.names}) < len(self.names):
                raise Refused("`actions` names two actions alike", "give each a name of its own, whatever its case")
            self.choices = ", ".join(self.names)
            return
        if names is not None:
            raise Refused(f"`actions` names actions, and the environment's are {space}", "leave `actions` out")
        if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            self.choices = f"{int(np.prod(space.shape))} whole numbers ({space})"
        elif isinstance(space, spaces.Text):
            self.choices = f"a text of {space.min_length} to {space.max_length} characters"
        else:
            raise Refused(
                f"actions of the space {space} cannot be named by a text",
                "make them Discrete by a wrapper, registered in the module that `import` names, or write the "
                "environment as `kind: python`, whose `step` takes the text",
            )

    @property
    def example(self):
        """An answer, for the instruction; None if it would be empty."""
        return f"<answer>{self.names[0]}</answer>" if self.names else None

    def read(self, text):
        """The action that a policy's text names, or None."""
        answer = answer_of(text)
        if isinstance(self._space, spaces.Discrete):
            place = self._find(answer)
            return None if place is None else self._space.start + self._space.dtype.type(place)
        if isinstance(self._space, spaces.Text):
            return answer if self._space.contains(answer) else None
        numbers = [int(number[:18]) for number in re.findall(r"-?\d+", answer)]
        if len(numbers) != int(np.prod(self._space.shape)):
            return None
        # A number that does not fit the type would become another one.
        action = np.array(numbers).astype(self._space.dtype)
        is_exact = action.tolist() == numbers
        action = action.reshape(self._space.shape)
        return action if is_exact and self._space.contains(action) else None

    def _find(self, answer):
        names = [name.casefold() for name in self.names]
        bare = answer.strip(" \t\n.,;:!?\"'`*()[]").casefold()
        for wanted in (answer.casefold(), bare):
            if wanted in names:
                return names.index(wanted)
        number = re.fullmatch(r"-?\d{1,9}", bare)
        if number and 0 <= (place := int(bare) - int(self._space.start)) < len(names):
            return place
        words = [place for place, name in enumerate(names) if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", bare)]
        return words[0] if len(words) == 1 else None


def check_observation(space, whole=None):
    """Refuses a space whose observations mean nothing as text."""
    whole = space if whole is None else whole
    if isinstance(space, spaces.Dict):
        parts = space.spaces.values()
    elif isinstance(space, spaces.Tuple):
        parts = space.spaces
    elif isinstance(space, spaces.Discrete | spaces.Text):
        parts = ()
    elif isinstance(space, _OF_NUMBERS) and np.prod(space.shape) <= MOST_NUMBERS:
        parts = ()
    else:
        why = f"has more than {MOST_NUMBERS} numbers" if isinstance(space, _OF_NUMBERS) else "is not one of those known"
        raise Refused(
            f"observations of the space {whole} cannot be shown as text: {space} {why}",
            "write a function that does, `def show(observation, environment): return text`, and name it: "
            "`observation: FILE.py:show`",
        )
    for part in parts:
        check_observation(part, whole)


def show(space, value):
    """An observation as text: a number or text, numbers in a row, rows of a grid, a line for each key."""
    if isinstance(space, spaces.Dict):
        return "\n".join(_line(name, show(part, value[name])) for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        parts = [show(part, value) for part, value in zip(space.spaces, value, strict=True)]
        return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)
    if isinstance(space, spaces.Text):
        return value
    return _numbers(np.asarray(value))


def _line(name, text):
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"


def _numbers(values):
    if values.ndim == 0:
        value = values.item()
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if values.ndim == 1:
        return ", ".join(map(_numbers, values))
    return ("\n" if values.ndim == 2 else "\n\n").join(map(_numbers, values))
