#!/usr/bin/env bash
# xgrammar 0.2.9 (PyPI), which vLLM and SGLang use for structured outputs unless told otherwise. Fetches torch, too (2 GB).
#
# Expected: an expression means what it means in Python's re (or Rust's regex): `.` is no line break, `\d` and `\w` are
# Unicode's, POSIX classes and set intersections are read or refused.
# Seen: `.` matches a line break; `\d` is [0-9] and `\w` is [a-zA-Z0-9_], so `[^\d]` lets other digits through;
# `[[:digit:]]` is read as one of the characters `[:digt` and then `]`; `\A` and `\z` are the letters A and z (a warning on
# stderr); `(?i)` and named groups of Python's form raise RuntimeError.
# What helps: write the characters themselves: `[^\n]`, `[0-9]`, `[Yy][Ee][Ss]`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.9
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import re

import xgrammar
from xgrammar.testing import _is_grammar_accept_string


def accepts(expression, text):
    try:
        return _is_grammar_accept_string(xgrammar.Grammar.from_regex(expression), text)
    except RuntimeError:
        return "RuntimeError"


rows = [(".", "\n"), (r"\d", "\u0663"), (r"\w", "\u00e9"), (r"[^\d]", "\u0663"), ("[[:digit:]]", "3"), ("[[:digit:]]", "g]"), (r"\Aab\z", "Aabz"), ("(?i)yes", "YES"), ("(?P<n>a)b", "ab")]
seen = [accepts(expression, text) for expression, text in rows]
for (expression, text), found in zip(rows, seen):
    print("%-12s on %-8s xgrammar %s" % (expression, ascii(text), found))
assert seen == [True, False, False, True, False, True, True, "RuntimeError", "RuntimeError"], seen
assert not re.fullmatch(".", "\n") and re.fullmatch(r"\d", "\u0663") and re.fullmatch("(?i)yes", "YES")
PYTHON
# Output on 2026-11-29, Python 3.11.7:
#   .            on '\n'     xgrammar True
#   \d           on '\u0663' xgrammar False
#   \w           on '\xe9'   xgrammar False
#   [^\d]        on '\u0663' xgrammar True
#   [[:digit:]]  on '3'      xgrammar False
#   [[:digit:]]  on 'g]'     xgrammar True
#   \Aab\z       on 'Aabz'   xgrammar True
#   (?i)yes      on 'YES'    xgrammar RuntimeError
#   (?P<n>a)b    on 'ab'     xgrammar RuntimeError
