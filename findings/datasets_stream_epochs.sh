#!/usr/bin/env bash
# datasets 5.2.0 (PyPI): a stream (`to_iterable_dataset`, `streaming=True`) that is resumed and read for several epochs.
#
# Expected: after `load_state_dict` the first pass has the rows after the checkpoint, each later pass has all rows, and a
# stream without `shuffle()` has one order.
# Seen: two things.
# 1. The state that was loaded is not used up: each later pass starts at the checkpoint again, so the rows before it are
#    never seen until the end of the run. (Issue 7447 of the repository has it; it was closed when `set_epoch` mended
#    it.) A state of the end of an epoch gives passes without rows: a loop over steps that draws epochs until it has
#    enough never ends.
# 2. `set_epoch(n)` with n > 0 mends that, but shuffles the shards of a stream that nobody shuffled, by a generator
#    seeded with n: rows that were sorted by difficulty come in another order from the second epoch on.
# What helps: `set_epoch` before each pass after a resume, and one shard or a column of one's own for an order that matters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
"$folder/venv/bin/python" - <<'PYTHON'
import itertools

from datasets import Dataset


def stream():
    return Dataset.from_dict({"row": range(8)}).to_iterable_dataset(num_shards=8)


def passes(data, number_of_epochs=False):
    read = []
    for epoch in range(3):
        if number_of_epochs:
            data.set_epoch(epoch)
        read.append([example["row"] for example in data])
    return read


def resumed(read_before):
    first, second = stream(), stream()
    list(itertools.islice(first, read_before))
    second.load_state_dict(first.state_dict())
    return second


whole = list(range(8))
rows = [
    ("never stopped", passes(stream()), [whole] * 3),
    ("resumed after 5 rows", passes(resumed(5)), [[5, 6, 7]] * 3),
    ("resumed after 8 rows", passes(resumed(8)), [[]] * 3),
]
for name, seen, expected in rows:
    print(f"{name + ':':32} {seen}")
    assert seen == expected, (seen, expected)
never, after = passes(stream(), True), passes(resumed(5), True)
print(f"{'never stopped, set_epoch:':32} {never}")
print(f"{'resumed after 5, set_epoch:':32} {after}")
assert never[0] == whole and whole not in never[1:] and all(sorted(each) == whole for each in never)
assert after == [[5, 6, 7], *never[1:]], after
PYTHON
# Output on 2026-11-30, Python 3.11.7:
#   never stopped:                   [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
#   resumed after 5 rows:            [[5, 6, 7], [5, 6, 7], [5, 6, 7]]
#   resumed after 8 rows:            [[], [], []]
#   never stopped, set_epoch:        [[0, 1, 2, 3, 4, 5, 6, 7], [5, 0, 1, 4, 2, 6, 3, 7], [6, 5, 7, 2, 3, 4, 0, 1]]
#   resumed after 5, set_epoch:      [[5, 6, 7], [5, 0, 1, 4, 2, 6, 3, 7], [6, 5, 7, 2, 3, 4, 0, 1]]
