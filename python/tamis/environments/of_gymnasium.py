"""`kind: gymnasium`: an environment of Gymnasium, by its id.

    id                its id, as `gymnasium.make` takes it: FrozenLake-v1
    make_args         keyword arguments of `gymnasium.make`
    level_args        FILE.py:NAME or MODULE:NAME of a function from a level's seed to further ones (a map, say)
    import            module to import first, one that registers environments
    actions           names of Discrete actions in their order; null: their numbers
    observation       how an observation is shown. null: as the environment renders it where it offers
                      `render_mode="ansi"`, otherwise by its space; `ansi` or `space` for one of the two;
                      FILE.py:NAME of a function from `(observation, environment)` to a text for anything else
    instruction       the system message; null: one that lists the actions, empty: none
    max_turns         most answers of an episode; null: as many as the environment takes (its TimeLimit)
    invalid_penalty   reward of an answer that names no action, which leaves the state as it is: -0.1

A level is a seed for `reset(seed=..)`: levels differ only by it, so all are alike if the environment always
begins alike. After the reset the environment's `np_random` is seeded anew from level and luck, and with it
what the world draws from then on (slippery ice, the next cards): members of a group have one start, and each
its own luck. What an environment draws elsewhere is not reached.

`info` has `action_is_valid`, `action_is_effective` (whether the observation changed) and `num_actions`, 1 or 0 each.
`success` is the environment's own `is_success` or `success` in its info, otherwise whether it terminated with a reward
above 0.
"""

import copy

import gymnasium
import numpy as np

from .board import plain_board
from .protocol import Outcome, Refused, Settings, level_seed, load_module, load_named, told
from .spaces import Actions, check_observation, show


class Kind:
    """Makes environments of one id, and shows what they observe."""

    def __init__(self, settings):
        self._id, self._make_args = settings.text("id"), settings.object("make_args")
        level_args, module = settings.text("level_args", None), settings.text("import", None)
        actions = settings.take("actions", list, "a list of names", None)
        if actions is not None and not all(isinstance(name, str) and name.strip() for name in actions):
            raise Refused(f"`actions` must be a list of names, and is {actions}")
        observation, instruction = settings.text("observation", None), settings.text("instruction", None)
        self.max_turns = settings.count("max_turns", None)
        self.invalid_penalty = float(settings.take("invalid_penalty", int | float, "a number", -0.1))
        settings.finish()
        if module is not None:
            load_module(module, "import")
        self._level_args = None if level_args is None else load_named(level_args, "level_args")
        self._choose_rendering(observation)
        first, second = self.open(0), self.open(0)
        try:
            self.actions = Actions(first.action_space, actions)
            if self._show is None and not self._is_drawn:
                check_observation(first.observation_space)
            shows = [self.show(environment, environment.reset(seed=0)[0]) for environment in (first, second)]
            if shows[0] != shows[1]:
                raise Refused(
                    f"two environments {self._id} that are reset with one seed open differently",
                    "fix what `gymnasium.make` draws by `make_args`, or make it of the level's seed by `level_args`",
                )
            spec = first.spec
            limit = spec.max_episode_steps if spec is not None else None
            self._is_deterministic = spec is None or not spec.nondeterministic
        finally:
            first.close()
            second.close()
        self.limit = min((turns for turns in (self.max_turns, limit) if turns is not None), default=None)
        example = f", for example {self.actions.example}" if self.actions.example else ""
        self._system = instruction if instruction is not None else (
            f"You act in the environment {self._id}, a step at a time. Actions: {self.actions.choices}.\n"
            f"End each answer with your next action in <answer> tags{example}."
        )

    def _choose_rendering(self, observation):
        self._show = None
        if observation not in (None, "ansi", "space"):
            self._show = load_named(observation, "observation")
        environment = self._make(self._arguments(0))
        modes = environment.metadata.get("render_modes", [])
        mode = environment.render_mode
        environment.close()
        self._is_drawn = self._show is None and observation != "space" and "ansi" in modes
        if observation == "ansi" and not self._is_drawn:
            hint = "leave `observation` out, or name a function that shows its observations"
            raise Refused(f'{self._id} does not offer `render_mode="ansi"`: it has {", ".join(modes) or "none"}', hint)
        if self._is_drawn and mode is None:
            self._make_args = {**self._make_args, "render_mode": "ansi"}
        elif self._is_drawn and mode != "ansi":
            self._is_drawn = False

    def _arguments(self, seed):
        return self._make_args if self._level_args is None else {**self._make_args, **self._level_args(seed)}

    def _make(self, arguments):
        try:
            return gymnasium.make(self._id, **arguments)
        except Exception as error:
            hint = "is its id right, is it registered (`import`), and are `make_args` what it takes?"
            raise Refused(f"failed to make the environment {self._id}: {told(error)}", hint) from error

    def open(self, seed):
        """An environment for a level, not reset yet."""
        return self._make(self._arguments(seed))

    def show(self, environment, observation):
        """What the policy reads."""
        if self._show is not None:
            text = self._show(observation, environment.unwrapped)
        elif self._is_drawn:
            text = plain_board(environment.render())
        else:
            text = show(environment.observation_space, observation)
        if not (isinstance(text, str) and text.strip()):
            raise Refused("an observation is shown as no text", "let `observation` return a text that is not empty")
        return text

    def describe(self):
        """Its part of the answer to `hello`."""
        return {
            "name": self._id,
            "max_turns": self.limit,
            "tools": [],
            "system": self._system or None,
            "is_deterministic": self._is_deterministic,
        }

    def levels(self, split, count, seed):
        """Seeds, each with what its reset shows."""
        levels, environment = [], None
        for number in range(count):
            level = level_seed(seed, split, number)
            if environment is None or self._level_args is not None:
                environment and environment.close()
                environment = self.open(level)
            observation, _ = environment.reset(seed=level)
            levels.append({"level": {"seed": level}, "prompt": self.show(environment, observation)})
        environment and environment.close()
        return levels

    def start(self, level, luck):
        """An episode on a level, without messages: its prompt has everything."""
        settings = Settings(level, "the level")
        seed = settings.count("seed", least=0)
        settings.finish()
        return Episode(self, seed, luck), None


class Episode:
    """One environment at play."""

    def __init__(self, kind, seed, luck):
        self._kind, self._num_turns = kind, 0
        self._environment = kind.open(seed)
        self._observation, _ = self._environment.reset(seed=seed)
        if hasattr(self._environment.unwrapped, "np_random"):
            self._environment.unwrapped.np_random = np.random.Generator(np.random.PCG64([seed, luck]))

    def step(self, text):
        """Carries out the action that the text names."""
        kind, environment = self._kind, self._environment
        self._num_turns += 1
        is_out = kind.limit is not None and self._num_turns >= kind.limit
        action = kind.actions.read(text)
        if action is None:
            told = f"Your answer names no action, and nothing happened. Actions: {kind.actions.choices}.\n\n"
            return Outcome(
                [{"role": "user", "content": told + kind.show(environment, self._observation)}],
                kind.invalid_penalty,
                truncated=is_out,
                success=False,
                info={"action_is_valid": 0, "action_is_effective": 0, "num_actions": 0},
            )
        # Some environments return the array that they later write into.
        before = copy.deepcopy(self._observation)
        self._observation, reward, terminated, truncated, info = environment.step(action)
        is_effective = not _is_same(before, self._observation)
        success = False
        if terminated or truncated or is_out:
            own = info.get("is_success", info.get("success"))
            success = bool(terminated and reward > 0) if own is None else bool(own)
        return Outcome(
            [{"role": "user", "content": kind.show(environment, self._observation)}],
            reward,
            terminated=terminated,
            truncated=truncated or is_out,
            success=success,
            info={"action_is_valid": 1, "action_is_effective": is_effective, "num_actions": 1},
        )

    def close(self):
        """Lets the environment go."""
        self._environment.close()


def _is_same(one, other):
    if isinstance(one, dict):
        return all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(map(_is_same, one, other))
    return bool(np.array_equal(one, other))
