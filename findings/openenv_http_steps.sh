#!/usr/bin/env bash
# openenv 0.10.0 (PyPI): the routes POST /reset, POST /step and GET /state of a server from `create_fastapi_app`.
#
# Expected: /step goes on with the episode that /reset began, as the routes' own descriptions read ("Reset the environment
# to its initial state", "execute an action in the environment"), or is refused.
# Seen: each request makes an environment, uses it once and closes it. /step plays the first move of an episode that was
# never reset, whatever came before: the seed and the task of /reset are lost, the episode does not end, and the status is
# 200 with a reward.
# What helps: the WebSocket /ws, which keeps one environment a connection (openenv's own clients use it).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check)
# Without gradio and what else its page and its command line need.
"${pip[@]}" fastapi fastmcp httpx pydantic pyyaml requests websockets
"${pip[@]}" --no-deps openenv==0.10.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
from fastapi.testclient import TestClient
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    number: int


class Hint(Observation):
    text: str
    moves: int


class Guessing(Environment):
    """Guess the number that the seed of `reset` sets; five moves at most."""

    def __init__(self):
        super().__init__()
        self.secret, self.moves = 0, 0

    def reset(self, seed=None, episode_id=None, **more):
        self.secret, self.moves = seed, 0
        return Hint(text="begin", moves=0)

    def step(self, action, timeout_s=None, **more):
        self.moves += 1
        right = action.number == self.secret
        return Hint(text="right" if right else "wrong", moves=self.moves, reward=float(right), done=right or self.moves == 5)

    @property
    def state(self):
        return State(step_count=self.moves)


client = TestClient(create_fastapi_app(Guessing, Guess, Hint))


def show(name, answer):
    row = (answer["observation"]["text"], answer["observation"]["moves"], answer["reward"], answer["done"])
    print(f"{name:6} {row}")
    return row


client.post("/reset", json={"seed": 7}).raise_for_status()
seen = [show("HTTP", client.post("/step", json={"action": {"number": number}}).raise_for_status().json()) for number in (1, 2, 3, 4, 5, 7)]
assert seen == [("wrong", 1, 0.0, False)] * 6, seen
with client.websocket_connect("/ws") as socket:

    def call(kind, data):
        socket.send_json({"type": kind, "data": data})
        return socket.receive_json()["data"]

    call("reset", {"seed": 7})
    seen = [show("/ws", call("step", {"number": number})) for number in (1, 7)]
assert seen == [("wrong", 1, 0.0, False), ("right", 2, 1.0, True)], seen
PYTHON
# Output on 2026-11-30, Python 3.11.7:
#   HTTP   ('wrong', 1, 0.0, False)   six times, the last of them with the right number
#   /ws    ('wrong', 1, 0.0, False)
#   /ws    ('right', 2, 1.0, True)
