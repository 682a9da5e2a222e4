"""An environment of `environment: {kind: python, path: examples/guess.py:Guess}`: a number is guessed in four turns."""

import random


class Guess:
    """A secret number from 1 to 9; the reply to a guess is whether it is too low or too high."""

    name = "guess"
    system = "Guess a number from 1 to 9. Answer with the number alone."
    is_deterministic = True
    max_turns = 4

    def reset(self, level, luck):
        self.secret, self.num_turns = random.Random(level).randint(1, 9), 0
        return "guess"

    def step(self, text):
        self.num_turns += 1
        guess = int(text) if text.isascii() and text.isdigit() else 0
        is_right = guess == self.secret
        told = "low" if guess < self.secret else "high"
        return {
            "observation": told,
            "reward": float(is_right),
            "done": is_right,
            "truncated": self.num_turns == self.max_turns,
            "success": is_right,
            "info": {"distance": abs(guess - self.secret)},
        }
