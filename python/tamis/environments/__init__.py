"""Environments of many turns that live in Python, behind JSON lines: `python -m tamis.environments`.

A run of tamis starts it for environments of Gymnasium, of verifiers and of a user's own, and plays many episodes in it
at once. As data flows:

    server          a line becomes a request, its call runs beside those of other episodes (threads), a line answers
    of_gymnasium    an environment of Gymnasium whose observations and actions can be put into text (spaces, board)
    of_verifiers    an environment of verifiers to 0.3, whose own loop plays and asks the policy as its model (tool_calls)
    of_tasksets     a taskset of verifiers from 0.4 on, whose own loop plays and asks the policy by a URL (chat_harness)
    rollout         both of these by `reset` and `step`
    of_python       a user's class of a few lines
    of_tools        Python functions that a model calls as tools
    protocol        settings, levels, messages and outcomes, checked; errors with their hints

The protocol `tamis-environment/1`
==================================

An environment can be written in any language, in one of two ways with the same bodies: a program that reads
one request a line from standard input and writes one answer a line to standard output, in any order, each
with the request's `id`; or an HTTP server with `POST /hello`, `/levels`, `/reset`, `/step`, `/close` (and
`/cut`), without `id` and `op`. A program's standard error is free. A program ends when its standard input
does.

`hello` comes first: once to a program; to a server once for each run, and again for its levels. `settings` are the
environment's own; null means no value throughout:

    {"id": 1, "op": "hello", "protocol": "tamis-environment/1", "settings": {"kind": "gymnasium", "id": "Taxi-v4"}}
    {"id": 1, "protocol": "tamis-environment/1", "name": "Taxi-v4", "max_turns": 200, "tools": [],
     "system": "You act ...", "is_deterministic": true}

`name` is that of the metrics. `max_turns` is the environment's own limit of answers, null for none. `tools` are JSON
schemas `{"type": "function", "function": {"name", "description", "parameters"}}` for the chat template. `system` is the system
message of every prompt that is a text or has none of its own. `is_deterministic` means that the same level, luck and
answers always give the same episode; `"scores_cut": true`, that `cut` is supported.

`levels` lists the first `count` of a split, fewer if there are no more; no level of one split is in the other:

    {"id": 2, "op": "levels", "split": "train" | "held_out", "count": 1000, "seed": 7}
    {"id": 2, "levels": [{"level": {"seed": 81}, "prompt": "..." | [{"role", "content"}, ..],
     "ground_truth": "..." | null}, ..]}

A `level` is any JSON, handed back to `reset`; `prompt` is what the policy sees first, a text being a user's message.

`reset` begins an episode under a name that is not in use. Members of a group reset the same level and see the same
start; `luck`, a decimal u64 in text, seeds what is drawn for one member only:

    {"id": 3, "op": "reset", "episode": "e1", "level": {"seed": 81}, "luck": "9007199254740993"}
    {"id": 3, "messages": null | [{"role", "content"}, ..]}

`messages` null: the episode begins with the level's `prompt`. Otherwise they are what it begins with, as a whole; if
none is the system's, the system message of the prompt comes first.

`step` takes an answer of the policy, its text as it was sampled without the token that ended it:

    {"id": 4, "op": "step", "episode": "e1", "action": "<answer>North</answer>"}
    {"id": 4, "messages": [{"role": "user" | "tool", "content": ".."}, ..], "reward": -1.0, "terminated": false,
     "truncated": false, "success": null, "info": {"action_is_valid": 1.0}}

`messages` follow the answer before the policy's next one; there are none after the last. `reward` is the answer's own.
It is null if the answer is not judged, as in an environment that gives its reward only at the end. `success` is
whether the task is solved by now, and null if that is unknown. `info` has finite numbers by name.

`cut` replaces the next step if there is no room for another answer and `hello` returned `"scores_cut": true`. The
episode ends as it is. The answer is that of a step, with the reward of the episode so far.

    {"id": 5, "op": "cut", "episode": "e1"}

`close` ends an episode, finished or not; an unknown one counts as closed. A call of it that still runs is answered with
an error. So a caller that has waited long enough for a `step` closes:

    {"id": 5, "op": "close", "episode": "e1"}
    {"id": 5}

What fails is answered with an error (over HTTP with a status from 400 on). It costs that episode, which is closed; the
process lives on:

    {"id": 4, "error": {"message": "ValueError: .. (line 7 of toy.py, in step)", "hint": null | "what to do"}}

Settings of `python -m tamis.environments`
==========================================

`kind` is `gymnasium`, `verifiers`, `python` or `tools`; `num_threads` (32) is how many calls run at once. If
four times as many abandoned calls still run, the process ends. The other keys are those of the kind: see its
module. Nothing of a kind is imported before it is needed.
"""
