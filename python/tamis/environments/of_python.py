"""`kind: python`: a class of the user's own.

    path   FILE.py:NAME or MODULE:NAME of the class, or of a function that makes one
    args   its keyword arguments

An environment is made for each episode, and several are at work at once, each call of one in some thread. It needs two
methods, and may have more:

    class Guess:
        system = "Guess a number from 1 to 9."     # also, as in hello: name, max_turns, tools, is_deterministic (false)

        def reset(self, level, luck):              # luck: a number below 2^64
            self.secret = random.Random(level).randint(1, 9)
            return "Your guess?"                   # a text, or messages

        def step(self, text):
            right = text.strip() == str(self.secret)
            return "Wrong. Again?", float(right), right        # observation, reward, whether it is over

        def levels(self, split, count, seed):      # "train" or "held_out"; without it levels are seeds, below 2^31
            return [{"level": 1, "prompt": "Your guess?", "ground_truth": "3"}]

        def close(self): ...

`step` may return `(observation, reward, terminated, truncated)` too, or `(observation, reward, done, info)`
if the last is a dict, or a dict with `observation`, `reward` and any of `done` or `terminated`, `truncated`,
`success` (true or false, each), and `info` (numbers by name). An episode without `success` has `acc` 1 if its
rewards add up to more than 0. A level without a `prompt` has what `reset(level, 0)` returns; an episode
begins with the result of its own `reset`.
"""

from .protocol import Outcome, Refused, Settings, as_messages, as_reply, level_seed, load_named, shown


class Kind:
    """Makes environments of one class."""

    def __init__(self, settings):
        self._path, self._args = settings.text("path"), settings.object("args")
        settings.finish()
        self._make = load_named(self._path, "path")
        self._first = self.open()
        for method in ("reset", "step"):
            if not callable(getattr(self._first, method, None)):
                raise Refused(
                    f"the environment of {self._path}, a {type(self._first).__name__}, has no method `{method}`",
                    "it needs `reset(level, luck)` and `step(text)`",
                )

    def open(self):
        """An environment."""
        return self._make(**self._args)

    def describe(self):
        """Its part of the answer to `hello`."""
        first = self._first
        names = ("name", "max_turns", "tools", "system", "is_deterministic")
        settings = Settings({name: getattr(first, name, None) for name in names}, f"the environment of {self._path}")
        return {
            "name": settings.text("name", type(first).__name__),
            "max_turns": settings.count("max_turns", None),
            "tools": settings.take("tools", list, "a list of JSON schemas", []),
            "system": settings.text("system", None),
            "is_deterministic": settings.take("is_deterministic", bool, "true or false", False),
        }

    def levels(self, split, count, seed):
        """Those that it lists, or seeds."""
        if callable(getattr(self._first, "levels", None)):
            listed = list(self._first.levels(split, count, seed))[:count]
        else:
            listed = [{"level": level_seed(seed, split, number)} for number in range(count)]
        return [self._level(one) for one in listed]

    def _level(self, one):
        if not (isinstance(one, dict) and "level" in one and set(one) <= {"level", "prompt", "ground_truth"}):
            hint = "return dicts with `level`, and `prompt` and `ground_truth` if there are any"
            raise Refused(f"`levels` of {self._path} lists {shown(one)}", hint)
        if one.get("prompt") is not None:
            return one
        environment = self.open()
        try:
            return {**one, "prompt": environment.reset(one["level"], 0)}
        finally:
            _close(environment)

    def start(self, level, luck):
        """An episode on a level, and its beginning."""
        environment = self.open()
        try:
            return Episode(environment), as_messages(environment.reset(level, luck), "what `reset` returned")
        except BaseException:
            _close(environment)
            raise


class Episode:
    """One environment at play."""

    def __init__(self, environment):
        self._environment = environment

    def step(self, text):
        """Hands an answer over."""
        result = self._environment.step(text)
        if isinstance(result, tuple | list) and len(result) in (3, 4):
            last = "info" if isinstance(result[-1], dict) else "truncated"
            result = dict(zip(("observation", "reward", "terminated", last), result, strict=False))
        elif not isinstance(result, dict):
            hint = "return (observation, reward, done), or a dict with them"
            raise Refused(f"`step` returned {shown(result)}", hint)
        settings = Settings(result, "what `step` returned")
        messages = as_reply(settings.take("observation", object, "a text or messages", None), "the observation")
        # For example of NumPy: they are checked when they are written.
        reward, info = settings.anything("reward"), settings.object("info")
        names = ("done", "terminated", "truncated", "success")
        done, terminated, truncated, success = (_take_truth(settings, name) for name in names)
        settings.finish()
        return Outcome(messages, reward, bool(terminated or done), bool(truncated), success, info)

    def close(self):
        """Lets the environment go."""
        _close(self._environment)


def _take_truth(settings, name):
    value = settings.take(name, object, "true or false", None)
    is_of_numpy = getattr(getattr(value, "dtype", None), "kind", None) == "b" and getattr(value, "ndim", None) == 0
    if not (value is None or isinstance(value, bool) or is_of_numpy):
        raise Refused(f"`{name}` of what `step` returned must be true or false, and is {shown(value)}")
    return None if value is None else bool(value)


def _close(environment):
    if callable(getattr(environment, "close", None)):
        environment.close()
