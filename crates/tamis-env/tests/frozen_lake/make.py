"""Writes gymnasium.json beside it: the law of FrozenLake as gymnasium holds it (pip install gymnasium==1.4.0)."""

import json
import os

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv, generate_random_map

os.chdir(os.path.dirname(os.path.abspath(__file__)))

wide = ["FFSFG", "FHFFF", "HFFHF"]
several = ["SFHG", "FFFF", "GHSF"]
lakes = [
    (MAPS["4x4"], True, 1.0 / 3.0),
    (MAPS["4x4"], True, 0.8),
    (MAPS["4x4"], True, 0.0),
    (MAPS["4x4"], True, 1.0),
    (MAPS["4x4"], False, 1.0),
    (MAPS["8x8"], True, 0.8),
    (wide, True, 0.98),
    (wide, False, 1.0),
    (several, True, 0.7),
    (["SG"], True, 0.6),
    (generate_random_map(size=5, p=0.7, seed=3), True, 0.123456789),
]

# `law[cell][action]` lists [probability, cell, reward, is over].
cases = []
for rows, is_slippery, success_rate in lakes:
    env = FrozenLakeEnv(desc=rows, is_slippery=is_slippery, success_rate=success_rate)
    law = [
        [[[float(p), int(s), float(r), bool(over)] for p, s, r, over in env.P[cell][action]] for action in range(4)]
        for cell in range(len(rows) * len(rows[0]))
    ]
    cases.append({"map": rows, "is_slippery": is_slippery, "success_rate": success_rate, "law": law})

with open("gymnasium.json", "w") as file:
    file.write('{"gymnasium": %s, "cases": [\n' % json.dumps(gymnasium.__version__))
    file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases))
    file.write("\n]}\n")
