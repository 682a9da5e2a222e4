"""Seconds that verl's group filter takes in Python over 65,536 trajectories: 4096 groups of 16, half of them uniform.

Prints JSON lines {"what": "filter", "form": "verl" | "set" | "numpy", "seconds": median, "seconds_min": ..., "kept": trajectories}.

- `verl`: the steps of the DAPO trainer that verl releases, written from a description of them: the metric of each trajectory is appended to a
  list under the unique id of its prompt (a string), `np.std` of each list, the ids with a deviation above zero or with one member kept
  in a *list*, and each trajectory whose id is in that list is kept. The membership test makes it quadratic in the number of groups.
- `set`: the same with the one-word repair, a set of kept ids.
- `numpy`: what a careful author would write instead: groups lie side by side, so one reshape, and no string is touched.

`run.py` compares tamis with `verl`, and prints the other two beside it.
"""

import argparse
import json
import random
import uuid

import numpy as np

from quiet import measure, summary

GROUPS, SIZE = 4096, 16


def trajectories():
    """Ids (one string per group, repeated) and the metric `acc`: a quarter all wrong, a quarter all right, half mixed."""
    draw = random.Random(0)
    ids, accuracy = [], []
    for group in range(GROUPS):
        uid = str(uuid.UUID(int=draw.getrandbits(128), version=4))
        if group % 4 == 0:
            members = [0.0] * SIZE
        elif group % 4 == 1:
            members = [1.0] * SIZE
        else:
            right = draw.randint(1, SIZE - 1)
            members = [1.0] * right + [0.0] * (SIZE - right)
            draw.shuffle(members)
        ids += [uid] * SIZE
        accuracy += members
    return np.array(ids, dtype=object), np.array(accuracy)


def deviations(ids, metric):
    per_id = {}
    for uid, value in zip(ids, metric):
        per_id.setdefault(uid, []).append(value)
    return {uid: (np.std(values), len(values)) for uid, values in per_id.items()}


def keep_by_list(ids, metric):
    kept = [uid for uid, (deviation, members) in deviations(ids, metric).items() if deviation > 0 or members == 1]
    return [i for i, uid in enumerate(ids) if uid in kept]


def keep_by_set(ids, metric):
    kept = {uid for uid, (deviation, members) in deviations(ids, metric).items() if deviation > 0 or members == 1}
    return [i for i, uid in enumerate(ids) if uid in kept]


def keep_by_rows(ids, metric):
    rows = metric.reshape(GROUPS, SIZE)
    return np.repeat(rows.std(1) > 0, SIZE).nonzero()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3, help="of the slow forms; the quick one takes 100 times as many")
    arguments = parser.parse_args()
    ids, metric = trajectories()
    expected = keep_by_rows(ids, metric).tolist()
    for form, keep, repetitions in (
        ("verl", keep_by_list, arguments.repetitions),
        ("set", keep_by_set, arguments.repetitions),
        ("numpy", keep_by_rows, 100 * arguments.repetitions),
    ):
        kept = keep(ids, metric)
        if list(kept) != expected:
            raise SystemExit(f"{form} keeps {len(kept)} trajectories, {len(expected)} expected")
        timing = summary(*measure(lambda: keep(ids, metric), repetitions, limit=6.0))
        line = {"what": "filter", "form": form, "kept": len(expected), "trajectories": len(ids), **timing}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
