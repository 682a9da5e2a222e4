#!/usr/bin/env bash
# inspect_ai 0.3.285 (PyPI): the scorer `match(numeric=True)`, with which GSM8K and the like are scored.
#
# Expected: an answer is correct if its number equals the target's. Integers are compared exactly.
# Seen: two things.
# 1. Both numbers are rounded to five significant digits first: with the target 123456 the answer 123460 is correct, and
#    with 1000000 so is 1,000,049. Up to five digits integers are compared exactly.
# 2. A percentage is no number, as documented, but then the number before it is taken: "It had 20 seats, and now 45%." is
#    correct for 20.
# What helps: compare integers exactly in a scorer of one's own; ask for the number alone on the last line.
#
# The function behind the scorer runs here without the package's 40 dependencies, of which it needs none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps inspect_ai==0.3.285
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.util
import sys
from types import ModuleType
from unittest.mock import MagicMock

(site,) = importlib.util.find_spec("inspect_ai").submodule_search_locations
for name in ("inspect_ai", "inspect_ai._util", "inspect_ai.scorer", "inspect_ai.solver"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [site + name.removeprefix("inspect_ai").replace(".", "/")]
# Classes that its neighbours in the file work with.
for name in ("scorer._metric", "scorer._scorer", "scorer._target", "solver._task_state"):
    sys.modules["inspect_ai." + name] = MagicMock()
from inspect_ai.scorer._common import match_str

cases = [
    ("The answer is 123460.", "123456", True),
    ("The answer is 1,000,049.", "1000000", True),
    ("The answer is 12346.", "12345", False),
    ("It had 20 seats, and now 45%.", "20", True),
    ("It had 20 seats, and now 45%.", "45", False),
]
for text, target, expected in cases:
    number, correct = match_str(text, target, numeric=True)
    print(f"{text:30} target {target:8} compared {number:11} {'correct' if correct else 'incorrect'}")
    assert correct == expected, (text, target, correct)
PYTHON
# Output on 2026-11-30, Python 3.11.7:
#   The answer is 123460.          target 123456   compared 1.2346e+05  correct
#   The answer is 1,000,049.       target 1000000  compared 1e+06       correct
#   The answer is 12346.           target 12345    compared 12346       incorrect
#   It had 20 seats, and now 45%.  target 20       compared 20          correct
#   It had 20 seats, and now 45%.  target 45       compared 20          incorrect
