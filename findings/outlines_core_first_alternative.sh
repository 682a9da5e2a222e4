#!/usr/bin/env bash
# outlines_core 0.2.14 (PyPI), the engine behind vLLM's structured-output backend `outlines`.
#
# Expected: a completion may be any text that the expression matches as a whole, as in Python's re.fullmatch and in
# llguidance 1.9.1. So `1|10|100` allows 1, 10 and 100.
# Seen: a text ends at the first alternative that ends. After `1` nothing more is allowed, so 10 and 100 cannot be
# sampled; `yes|yes, sir` never allows the longer answer; `[0-9]+?` allows one digit only. No error, no warning.
# Anchors are refused: `^[0-9]+$` raises ValueError ("anchored universal start state").
# What helps: put the longer alternative first (`100|10|1`), and use no lazy quantifiers and no anchors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines_core==0.2.14 llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import re

import llguidance
from llguidance import LLMatcher, LLTokenizer
from outlines_core import Index, Vocabulary

# One token a byte, and token 256 as the end, for both.
class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(llguidance.TokenizerWrapper(Bytes()))
vocabulary = Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})


def outlines(expression, text):
    index = Index(expression, vocabulary)
    state = index.get_initial_state()
    for byte in text.encode():
        state = index.get_next_state(state, byte)
        if state is None:
            return False
    return index.is_final_state(state)


def guidance(expression, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(expression))
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


seen = []
for expression, text in [("1|10|100", "100"), ("100|10|1", "100"), ("yes|yes, sir", "yes, sir"), ("[0-9]+?", "12"), ("(a|ab)(c|)", "ab")]:
    row = (expression, text, bool(re.fullmatch(expression, text)), guidance(expression, text), outlines(expression, text))
    print("%-14s %-10r re %-5s llguidance %-5s outlines_core %s" % row)
    seen.append(row[2:])
assert seen == [(True, True, False), (True, True, True), (True, True, False), (True, True, False), (True, True, False)], seen
try:
    outlines("^[0-9]+$", "12")
except ValueError as error:
    print("^[0-9]+$       outlines_core:", error)
else:
    raise SystemExit("outlines_core takes anchors now")
PYTHON
# Output on 2026-11-29, Python 3.11.7:
#   1|10|100       '100'      re True  llguidance True  outlines_core False
#   100|10|1       '100'      re True  llguidance True  outlines_core True
#   yes|yes, sir   'yes, sir' re True  llguidance True  outlines_core False
#   [0-9]+?        '12'       re True  llguidance True  outlines_core False
#   (a|ab)(c|)     'ab'       re True  llguidance True  outlines_core False
#   ^[0-9]+$       outlines_core: Index failed since anchored universal start state doesn't exist
