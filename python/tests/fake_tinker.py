"""A server of Tinker's API in this process, whose model is a table: what follows a token depends only on that token.

The table of the base model is made of a seed; an adapter adds to it, and learns by AdamW of exact gradients. Divisors,
clipping, the number of models and failures are those that a test asks for.
"""

import contextlib
import copy
import http.server
import json
import math
import random
import struct
import threading
from array import array

from tamis.tinker import protobuf

# Failures: the connection breaks before a request is carried out, or after it.
CUT, LOST = "cut", "lost"
# The divisor of tamis's own sums, and the owner of the runs' models.
VOCABULARY = 18
BASE = "tiny"


def field(number, value):
    return protobuf._bytes(number, value)


def pass_body(rows):
    """A `ForwardBackwardOutput` with these log-probabilities."""
    offsets = array("q", [0])
    for row in rows:
        offsets.append(offsets[-1] + 4 * len(row))
    numbers = b"".join(array("f", row).tobytes() for row in rows)
    tensor = field(1, numbers) + field(2, offsets.tobytes()) + protobuf._number(3, 1)
    record = field(1, b"x") + field(2, field(1, b"logprobs") + field(2, tensor)) + protobuf._number(3, len(rows))
    metric = field(1, b"loss:sum") + protobuf._varint(2 << 3 | 1) + struct.pack("<d", 2.5)
    return field(1, b"scalar") + field(2, record) + field(3, metric)


def sample_body(sequences):
    """A `SampleResponse` of `(tokens, log-probabilities, whether it stopped)`."""
    return b"".join(
        field(
            1,
            protobuf._number(1, int(not stops))
            + field(2, array("i", tokens).tobytes())
            + field(3, array("f", logprobs).tobytes()),
        )
        for tokens, logprobs, stops in sequences
    )


def read_pass(body):
    """A `ForwardBackwardRequest` as a dict; each datum has its tokens, targets and inputs by name."""
    request = {"data": [], "forward_only": 0, "seq_id": 0}
    for number, value in protobuf._fields(body):
        if number == 3:
            request["data"].append(read_datum(value))
        else:
            name = {1: "model_id", 2: "seq_id", 4: "loss_fn", 6: "forward_only"}[number]
            request[name] = value if isinstance(value, int) else value.decode()
    return request


def read_datum(body):
    datum = {"inputs": {}}
    for number, value in protobuf._fields(body):
        if number == 1:
            datum["tokens"] = array("i", protobuf._last(protobuf._last(value)(1))(1)).tolist()
            continue
        entry = protobuf._last(value)
        tensor = protobuf._last(entry(2))
        kind = {1: "f", 2: "q"}[tensor(3, int)]
        datum["inputs"][entry(1).decode()] = array(kind, tensor(1)).tolist()
    datum["targets"] = datum["inputs"].pop("target_tokens")
    return datum


def base_table(seed=3):
    draw = random.Random(seed)
    return [[draw.gauss(0.0, 1.0) for _ in range(VOCABULARY)] for _ in range(VOCABULARY)]


def zeros():
    return [[0.0] * VOCABULARY for _ in range(VOCABULARY)]


class Model:
    """Table, moments and gradient of one adapter, and the futures of its calls by number."""

    def __init__(self, rank, session):
        self.rank, self.session = rank, session
        self.table, self.first, self.second, self.num_steps = zeros(), zeros(), zeros(), 0
        self.calls, self.passes, self.numbers = [], [], {}

    def state(self):
        return copy.deepcopy((self.table, self.first, self.second, self.num_steps))

    def take(self, state, has_optimizer=True):
        self.table, first, second, num_steps = copy.deepcopy(state)
        if has_optimizer:
            self.first, self.second, self.num_steps = first, second, num_steps


def distribution(base, table, token):
    logits = [one + other for one, other in zip(base[token], table[token], strict=True)]
    largest = max(logits)
    total = math.log(sum(math.exp(logit - largest) for logit in logits)) + largest
    return [logit - total for logit in logits]


class Fake:
    """The server. `divisor(own, call, step)` is what it divides derivatives by. `failures` has by path what comes in
    place of the next answers: `(status, JSON)`, `CUT`, `LOST`, or `None` for the real one.
    """

    def __init__(self, divisor=lambda own, call, step: 1.0, clips=True, most_models=8, norm_name="grad_norm"):
        self.divisor, self.clips, self.most_models, self.norm_name = divisor, clips, most_models, norm_name
        self.base = base_table()
        self.models, self.saved, self.samplers, self.futures = {}, {}, {}, {}
        self.sessions = set()
        # Requests: `(path, body)`.
        self.asked, self.failures = [], {}
        # Number of requests after which a future is ready; the same for samples.
        self.delay = self.sample_delay = 0
        # Whether `create_model` returns the model's name at once, as SkyRL does.
        self.is_quick = True
        self.num = 0
        self.lock = threading.Lock()
        # Changes of the log-probabilities that are returned, and of the advantages that are received.
        self.spoils = self.takes = lambda values: values
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def restart(self):
        """As after a kill: saved weights exist, models, sessions and futures do not."""
        self.models, self.samplers, self.futures, self.sessions = {}, {}, {}, set()

    def name(self, kind):
        self.num += 1
        return f"{kind}_{self.num}"

    def count(self, path):
        return sum(1 for asked, _ in self.asked if asked == path)

    def bodies(self, path):
        return [body for asked, body in self.asked if asked == path]

    # Answers: `(status, JSON or bytes)`

    def answer(self, path, body):
        with self.lock:
            if path != "retrieve_future":
                self.asked.append((path, body))
            method = getattr(self, f"on_{path}", lambda _: (404, {"detail": "Not Found"}))
            failures = self.failures.get(path)
            failure = failures.pop(0) if failures else None
            if failure == LOST:
                method(body)
            return method(body) if failure is None else failure

    def on_get_server_capabilities(self, _):
        return 200, {"supported_models": [{"model_name": BASE}]}

    def on_create_session(self, _):
        session = self.name("session")
        self.sessions.add(session)
        return 200, {"session_id": session}

    def on_session_heartbeat(self, body):
        return (200, {}) if body["session_id"] in self.sessions else (404, {"detail": "Session not found"})

    def future(self, result, delay=None):
        future = self.name("future")
        self.futures[future] = [result, self.delay if delay is None else delay]
        return 200, {"request_id": future}

    def on_retrieve_future(self, body):
        if body["request_id"] not in self.futures:
            return 404, {"detail": "Future not found"}
        future = self.futures[body["request_id"]]
        future[1] -= 1
        if future[1] >= 0:
            return 200, {"type": "try_again", "queue_state": "active"}
        return future[0]

    def on_create_model(self, body):
        if body["session_id"] not in self.sessions:
            return 404, {"detail": "Session not found"}
        if len(self.models) >= self.most_models:
            return self.future((400, {"detail": f"Maximum number of LoRA adapters ({self.most_models}) reached"}))
        model = self.name("model")
        self.models[model] = Model(body["lora_config"]["rank"], body["session_id"])
        status, answer = self.future((200, {"model_id": model}))
        return status, {**answer, **({"model_id": model} if self.is_quick else {})}

    def on_unload_model(self, body):
        found = self.models.pop(body["model_id"], None)
        return self.future((200, {})) if found else (404, {"detail": "Model not found"})

    def once(self, body, number, carry_out):
        """The answer to the call of this number, which is carried out once."""
        model = self.models.get(body["model_id"])
        if model is None:
            return 404, {"detail": "Model not found"}
        known = model.numbers.get(number)
        if known is not None:
            return known[1] if known[0] == body else (409, {"detail": "Training request sequence number was reused"})
        answer = carry_out(model)
        if answer[0] == 200:
            model.numbers[number] = body, answer
        return answer

    def on_forward_backward(self, body):
        request = read_pass(body)

        def carry_out(model):
            rows = []
            for datum in request["data"]:
                rows.append(
                    [
                        distribution(self.base, model.table, token)[target]
                        for token, target in zip(datum["tokens"], datum["targets"], strict=True)
                    ]
                )
            if not request["forward_only"]:
                model.passes.append((request, rows))
            return self.future((200, pass_body([self.spoils(row) for row in rows])))

        return self.once(request, request["seq_id"], carry_out)

    def gradient(self, model):
        """The gradient of the loss by the table."""
        gradient = zeros()
        step = [len(datum["targets"]) for request, _ in model.passes for datum in request["data"]]
        for request, rows in model.passes:
            assert request["loss_fn"] == "importance_sampling", request["loss_fn"]
            call = [len(datum["targets"]) for datum in request["data"]]
            for datum, row in zip(request["data"], rows, strict=True):
                inputs = datum["inputs"]
                advantages = self.takes(inputs["advantages"])
                assert len(advantages) == len(inputs["logprobs"]) == len(row)
                own = self.divisor(len(row), call, step)
                for place, (token, target) in enumerate(zip(datum["tokens"], datum["targets"], strict=True)):
                    ratio = math.exp(row[place] - inputs["logprobs"][place])
                    factor = -ratio * advantages[place] / own
                    chances = [math.exp(value) for value in distribution(self.base, model.table, token)]
                    for other in range(VOCABULARY):
                        gradient[token][other] += factor * ((other == target) - chances[other])
        model.passes = []
        return gradient

    def on_optim_step(self, body):
        def carry_out(model):
            adam = body["adam_params"]
            gradient = self.gradient(model)
            norm = math.sqrt(sum(value * value for row in gradient for value in row))
            factor = 1.0
            if self.clips and adam["grad_clip_norm"] > 0.0:
                factor = min(1.0, adam["grad_clip_norm"] / (norm + 1e-30))
            model.num_steps += 1
            first_share, second_share = (1.0 - adam[name] ** model.num_steps for name in ("beta1", "beta2"))
            for token in range(VOCABULARY):
                for other in range(VOCABULARY):
                    own = gradient[token][other] * factor
                    first = model.first[token][other] = (
                        adam["beta1"] * model.first[token][other] + (1 - adam["beta1"]) * own
                    )
                    second = adam["beta2"] * model.second[token][other] + (1 - adam["beta2"]) * own * own
                    model.second[token][other] = second
                    weight = model.table[token][other] * (1 - adam["learning_rate"] * adam["weight_decay"])
                    move = first / first_share / (math.sqrt(second / second_share) + adam["eps"])
                    model.table[token][other] = weight - adam["learning_rate"] * move
            metrics = {} if self.norm_name is None else {self.norm_name: norm if math.isfinite(norm) else None}
            return self.future((200, {"metrics": metrics}))

        return self.once(body, body["seq_id"], carry_out)

    def on_save_weights(self, body):
        def carry_out(model):
            path = f"tinker://{body['model_id']}/weights/{body['path']}"
            if path in self.saved:
                return 409, {"detail": f"Checkpoint '{body['path']}' already exists for model '{body['model_id']}'"}
            self.saved[path] = model.rank, model.state()
            return self.future((200, {"path": path, "type": "save_weights"}))

        return self.once(body, body["seq_id"], carry_out)

    def on_weights_info(self, body):
        if body["tinker_path"] not in self.saved:
            return 404, {"detail": f"Checkpoint not found: {body['tinker_path']}"}
        return 200, {"base_model": BASE, "is_lora": True, "lora_rank": self.saved[body["tinker_path"]][0]}

    def on_load_weights(self, body):
        def carry_out(model):
            if body["seq_id"] != 1:
                return 400, {"detail": f"LoadWeights is not permitted with seq_id {body['seq_id']}"}
            rank, state = self.saved[body["path"]]
            if rank != model.rank:
                return self.future((400, {"detail": "Rank mismatch"}))
            model.take(state, body["optimizer"])
            return self.future((200, {"type": "load_weights"}))

        return self.once(body, body["seq_id"], carry_out)

    def on_save_weights_for_sampler(self, body):
        def carry_out(model):
            if "path" in body:
                return self.future((200, {"path": f"tinker://{body['model_id']}/{body['path']}"}))
            sampler = self.name("sampling")
            self.samplers[sampler] = copy.deepcopy(model.table)
            return self.future((200, {"path": None, "sampling_session_id": sampler}))

        return self.once(body, body["seq_id"], carry_out)

    def on_create_sampling_session(self, body):
        sampler = self.name("sampling")
        self.samplers[sampler] = zeros()
        return 200, {"sampling_session_id": sampler}

    def on_asample(self, body):
        table = self.samplers.get(body["sampling_session_id"])
        if table is None:
            return 404, {"detail": "Session not found"}
        parameters = body["sampling_params"]
        draw = random.Random(parameters["seed"])
        token = body["prompt"]["chunks"][0]["tokens"][-1]
        tokens, logprobs, stops = [], [], False
        while len(tokens) < parameters["max_tokens"] and not stops:
            logs = distribution(self.base, table, token)
            (token,) = draw.choices(range(VOCABULARY), [math.exp(value) for value in logs])
            if parameters["temperature"] == 0.0:
                token = max(range(VOCABULARY), key=logs.__getitem__)
            tokens.append(token)
            logprobs.append(logs[token])
            stops = token in parameters.get("stop", [])
        return self.future((200, sample_body([(tokens, logprobs, stops)])), self.sample_delay)

    def on_config(self, _):
        return 200, {"pjwt_auth_enabled": False}


def handler(fake):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            is_protobuf = self.headers["Content-Type"] == protobuf.CONTENT_TYPE
            self.reply(data if is_protobuf else json.loads(data))

        def reply(self, body):
            answered = fake.answer(self.path.removeprefix("/api/v1/").split("/")[-1], body)
            if answered in (LOST, CUT):
                self.close_connection = True
                return
            status, found = answered
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            # If a client was killed, nothing waits for the answer.
            with contextlib.suppress(ConnectionError):
                self.write(status, found, data)

        def write(self, status, found, data):
            self.send_response(status)
            kind = protobuf.CONTENT_TYPE if isinstance(found, bytes) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
