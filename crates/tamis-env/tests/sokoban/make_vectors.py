"""Plays gym-sokoban 0.0.6 and writes gym_sokoban.json, which crates/tamis-env/tests/sokoban.rs compares.

    python3 -m venv VENV && VENV/bin/pip install gym-sokoban==0.0.6
    VENV/bin/python crates/tamis-env/tests/sokoban/make_vectors.py

Rooms, steps, rewards and ends are the package's own; only its drawing of images is left out. Boards are written in
RAGEN's symbols, rows separated by `/`; actions are U, D, L, R (the package's push actions 1 to 4).
"""

import collections
import json
import pathlib
import random

import numpy
from gym_sokoban.envs.sokoban_env import SokobanEnv

SYMBOLS = "#_O√XPS"
LETTERS = "UDLR"
MOVES = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}

# rows, columns, boxes, max_steps, seed, policy
EPISODES = [
    (6, 6, 1, 40, 1, "random"),
    (6, 6, 1, 100, 2, "solve"),
    (6, 6, 1, 100, 3, "wander, then solve"),
    (5, 8, 1, 30, 4, "wander, then solve"),
    (8, 5, 1, 60, 5, "push"),
    (7, 7, 2, 100, 6, "push"),
    (6, 6, 2, 100, 7, "solve"),
    (8, 8, 2, 100, 8, "wander, then solve"),
    (7, 9, 2, 120, 9, "push"),
    (6, 6, 3, 80, 10, "push"),
    (8, 8, 3, 100, 11, "push"),
    (10, 10, 3, 60, 12, "random"),
]


class Imageless(SokobanEnv):
    """The environment without its images."""

    def get_image(self, mode, scale=1):
        return None


def board(environment):
    state = numpy.where((environment.room_state == 5) & (environment.room_fixed == 2), 6, environment.room_state)
    return "/".join("".join(SYMBOLS[int(cell)] for cell in row) for row in state)


def pushes(environment):
    """Actions that push a box."""
    row, column = environment.player_position
    state = environment.room_state
    return [
        action
        for action, (down, right) in MOVES.items()
        if state[row + down, column + right] in (3, 4) and state[row + 2 * down, column + 2 * right] in (1, 2)
    ]


def solution(environment):
    """Shortest actions to the end, breadth first; None if there are none."""
    fixed = environment.room_fixed
    goal = frozenset(map(tuple, numpy.argwhere(fixed == 2).tolist()))
    boxes = frozenset(map(tuple, numpy.argwhere(numpy.isin(environment.room_state, (3, 4))).tolist()))
    start = (tuple(int(x) for x in environment.player_position), boxes)
    before = {start: None}
    queue = collections.deque([start])
    while queue:
        state = queue.popleft()
        if state[1] == goal:
            actions = []
            while before[state]:
                state, action = before[state]
                actions.append(action)
            return actions[::-1]
        (row, column), boxes = state
        for action, (down, right) in MOVES.items():
            to, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            next_boxes = boxes
            if fixed[to] == 0:
                continue
            if to in boxes:
                if fixed[beyond] == 0 or beyond in boxes:
                    continue
                next_boxes = boxes - {to} | {beyond}
            if (to, next_boxes) not in before:
                before[to, next_boxes] = (state, action)
                queue.append((to, next_boxes))
    return None


def play(rows, columns, boxes, max_steps, seed, policy):
    random.seed(seed)
    numpy.random.seed(seed)
    environment = Imageless(dim_room=(rows, columns), max_steps=max_steps, num_boxes=boxes)
    episode = {"rows": rows, "columns": columns, "boxes": boxes, "max_steps": max_steps, "room": board(environment)}
    actions, rewards, moved, boards = "", [], [], []
    plan, done = [], False
    while not done:
        if policy.endswith("solve") and not plan and (policy == "solve" or len(actions) >= 8):
            plan = solution(environment) or []
        ready = pushes(environment)
        if plan:
            action = plan.pop(0)
        elif policy == "push" and ready and random.random() < 0.7:
            action = random.choice(ready)
        else:
            action = random.randint(1, 4)
        before = environment.player_position
        _, reward, done, _ = environment.step(action)
        actions += LETTERS[action - 1]
        rewards.append(float(reward))
        moved.append(int(not numpy.array_equal(before, environment.player_position)))
        boards.append(board(environment))
    solved = bool(environment._check_if_all_boxes_on_target())
    return episode | {"actions": actions, "rewards": rewards, "moved": moved, "boards": boards, "solved": solved}


def main():
    episodes = [play(*episode) for episode in EPISODES]
    counts = collections.Counter(round(reward, 1) for episode in episodes for reward in episode["rewards"])
    print("rewards:", dict(counts), "steps:", sum(counts.values()))
    assert {-0.1, 0.9, -1.1, 10.9} <= set(counts), "an event is missing: try other seeds"
    path = pathlib.Path(__file__).with_name("gym_sokoban.json")
    lines = ",\n".join(json.dumps(episode, ensure_ascii=False) for episode in episodes)
    path.write_text(f'{{"source": "gym-sokoban 0.0.6, numpy {numpy.__version__}", "episodes": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
