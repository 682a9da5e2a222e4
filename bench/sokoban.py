#!/usr/bin/env python3
"""Sokoban with a random policy: tamis against gym-sokoban 0.0.6 as RAGEN wraps it, steps a second on one core.

    python3 bench/sokoban.py                                  10,000 episodes of tamis, 200 of Python, 3 rounds
    python3 bench/sokoban.py --boxes 2 --rows 8 --columns 8 --search-depth 10 --python-episodes 20

Both sides draw a room for every episode, act until the game is over, and have the text of the room after every action.
The Python side is the package's own environment with RAGEN's changes: rooms are searched with only the four pull
actions, to `search_depth`, and the state is shown as rows of symbols. Its `step` also draws an image of the room, which
RAGEN leaves in and does not use; `without images` leaves it out. Of the rounds, which take turns, each side's quickest
counts. Python runs fewer episodes; rates are compared. Seconds are those of the processor, on both sides.

It needs cargo, and an interpreter that can make virtual environments: gym-sokoban goes into `target/venv-sokoban`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PACKAGES = ["gym-sokoban==0.0.6", "gym==0.26.2", "numpy<3"]
FORMS = ["as RAGEN runs it", "without images"]


def play(options):
    """The Python side, within its environment: one JSON line for each form."""
    import random

    import numpy
    from gym_sokoban.envs import room_utils
    from gym_sokoban.envs.sokoban_env import SokobanEnv

    # RAGEN pulls whenever it can, and never steps away without a box.
    room_utils.ACTION_LOOKUP = {i: room_utils.ACTION_LOOKUP[i] for i in range(4)}
    search = room_utils.depth_first_search

    def from_the_top(*arguments, ttl=300, **rest):
        """The package's search starts at a depth of 300."""
        room_utils.depth_first_search = search
        try:
            return search(*arguments, ttl=options.search_depth, **rest)
        finally:
            room_utils.depth_first_search = from_the_top

    room_utils.depth_first_search = from_the_top
    symbols = dict(enumerate("#_O√XPS"))

    class Environment(SokobanEnv):
        """The package's environment, shown as text."""

        def __init__(self, has_images):
            self.has_images = has_images
            dim_room = (options.rows, options.columns)
            super().__init__(dim_room=dim_room, max_steps=options.max_steps, num_boxes=options.boxes, reset=False)

        def reset(self):
            while True:
                try:
                    self.room_fixed, self.room_state, self.box_mapping = room_utils.generate_room(
                        dim=self.dim_room, num_steps=self.num_gen_steps, num_boxes=self.num_boxes
                    )
                    break
                except (RuntimeError, RuntimeWarning):
                    pass
            self.num_env_steps, self.reward_last, self.boxes_on_target = 0, 0, 0
            self.player_position = numpy.argwhere(self.room_state == 5)[0]

        def get_image(self, mode, scale=1):
            return super().get_image(mode, scale) if self.has_images else None

        def text(self):
            room = numpy.where((self.room_state == 5) & (self.room_fixed == 2), 6, self.room_state)
            return "\n".join("".join(symbols[cell] for cell in row) for row in room.tolist())

    random.seed(0)
    numpy.random.seed(0)
    policy = random.Random(1)
    for form, num_episodes in zip(FORMS, (max(1, options.python_episodes // 10), options.python_episodes)):
        environment = Environment(has_images=form == FORMS[0])
        num_steps, solved, rooms_seconds, play_seconds = 0, 0, 0.0, 0.0
        for _ in range(num_episodes):
            begin = time.process_time()
            environment.reset()
            drawn = time.process_time()
            environment.text()
            is_over = False
            while not is_over:
                _, _, is_over, _ = environment.step(policy.randint(1, 4))
                environment.text()
                num_steps += 1
            solved += environment.boxes_on_target == environment.num_boxes
            rooms_seconds += drawn - begin
            play_seconds += time.process_time() - drawn
        result = {"episodes": num_episodes, "steps": num_steps, "solved": int(solved)}
        print(json.dumps(result | {"rooms_seconds": rooms_seconds, "play_seconds": play_seconds}))


def lines(command):
    """What a program prints as JSON lines."""
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def interpreter():
    """Python of the environment that holds the package, which is made if it is missing."""
    python = TARGET / "venv-sokoban" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    if subprocess.run([python, "-c", "import gym_sokoban"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="of tamis")
    parser.add_argument("--python-episodes", type=int, default=200, help="of Python; a tenth of them with images")
    parser.add_argument("--rounds", type=int, default=3)
    for name, default in (("rows", 6), ("columns", 6), ("boxes", 1), ("max_steps", 100), ("search_depth", 300)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return play(options)

    python = interpreter()
    build = ["cargo", "build", "--release", "--quiet", "-p", "tamis-env", "--example", "sokoban"]
    subprocess.run(build, check=True, cwd=ROOT)
    names = ("rows", "columns", "boxes", "max_steps", "search_depth")
    settings = [f"{name}={getattr(options, name)}" for name in names]
    ours = [TARGET / "release" / "examples" / "sokoban", str(options.episodes), *settings]
    theirs = [python, __file__, "--play", "--python-episodes", str(options.python_episodes)]
    for name in names:
        theirs += [f"--{name.replace('_', '-')}", str(getattr(options, name))]

    runs = {"tamis": [], FORMS[0]: [], FORMS[1]: []}
    for _ in range(options.rounds):
        runs["tamis"] += lines(ours)
        for form, run in zip(FORMS, lines(theirs)):
            runs[form].append(run)

    def rates(name):
        """Steps a second with and without drawing rooms, and rooms a second."""
        steps = [run["steps"] for run in runs[name]]
        rooms = [run["rooms_seconds"] for run in runs[name]]
        play = [run["play_seconds"] for run in runs[name]]
        with_rooms = max(n / (a + b) for n, a, b in zip(steps, rooms, play))
        without = max(n / b for n, b in zip(steps, play))
        return with_rooms, without, max(run["episodes"] / run["rooms_seconds"] for run in runs[name])

    print(f"Sokoban, random policy, {', '.join(settings)}; best of {options.rounds} rounds")
    print("| | episodes | solved | steps/s, rooms included | steps/s without rooms | rooms/s |")
    print("|---|---|---|---|---|---|")
    own = rates("tamis")
    for name in runs:
        run, of_name = runs[name][0], rates(name)
        ratios = ["" if name == "tamis" else f" (1/{a / b:,.0f})" for a, b in zip(own, of_name)]
        cells = " | ".join(f"{rate:,.0f}{ratio}" for rate, ratio in zip(of_name, ratios))
        label = name if name == "tamis" else f"gym-sokoban, {name}"
        print(f"| {label} | {run['episodes']:,} | {run['solved'] / run['episodes']:.1%} | {cells} |")
    return None


if __name__ == "__main__":
    main()
