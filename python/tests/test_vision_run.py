"""A run of `tamis train` on prompts with images: PyTorch learns, and a server with vLLM's interface samples.

The server is transformers' own model behind the routes that a run uses; it opens images by the addresses that it
is given, makes the tokens of them itself and loads what the run publishes.
"""

import base64
import json
import pathlib
import subprocess
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import support
import warm
from test_run import PROGRAM
from test_vision import END, IMAGE, PROCESSOR, START, draw, tiny

import torch
import transformers
from tamis.learner.vision import Images

TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<start><image_pad><end>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
CONFIG = """
run: {seed: 3, threads: 1}
model: {path: model}
data: {train: [rows.jsonl], max_prompt_length: 40, train_batch_size: 2}
learner: {backend: torch, device: cpu}
rollout: {backend: vllm, n: 2, max_response_length: 3}
reward: [{kind: python, name: letters, path: letters.py, function: letters, style: trl}]
filter: null
train: {ppo_mini_batch_size: 2, total_steps: 2, optimizer: {learning_rate: 1e-2}}
checkpoint: {save_freq: 1}
"""
# The mean letter, for text-only prompts and for images by path.
LETTERS = """
import os

def letters(prompts, completions, image=None, images=None, **more):
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    paths = [path for value in [*(image or []), *(images or [])] for path in (value if isinstance(value, list) else [value])]
    assert all(os.path.exists(path) for path in paths if path), paths
    assert all(isinstance(message["content"], str) for prompt in prompts for message in prompt), prompts
    return [sum(map(ord, text)) / max(1, len(text)) / 100 for text in texts]
"""


def save_tokenizer(folder, *placeholders):
    """A tokenizer of characters; `placeholders` are the tokens of images and videos."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    names = ["<pad>", "<begin>", "<eos>", "<start>", "<end>", *placeholders]
    assert (names.index("<start>"), names.index("<end>"), names.index(placeholders[0])) == (START, END, IMAGE)
    characters = "abcdefghijklmnopqrstuvwxyz ?<>0123456789."
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*names, *characters])}, "<pad>"))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)


def save_model(folder):
    """The tiny model of the other tests with a tokenizer of characters."""
    support.save_tiny(folder, tiny(), kind=transformers.AutoModelForImageTextToText)
    save_tokenizer(folder, "<image_pad>", "<video_pad>")
    transformers.models.qwen2_vl.Qwen2VLImageProcessorPil(**PROCESSOR).save_pretrained(folder)


class Sampler:
    """A model that samples, and the requests that it got."""

    def __init__(self, folder):
        self.lock = threading.Lock()
        self.label, self.asked = "default", []
        self.load(folder)

    def load(self, folder):
        """Takes the weights of a folder, and its processor."""
        self.module = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.images = Images(folder)

    @torch.no_grad()
    def logits(self, tokens, images, num_prompt):
        """Logits [T, V] of a prompt and what comes after it."""
        ids = torch.tensor([tokens])
        kinds = (ids == IMAGE).int()
        kinds[:, num_prompt:] = 0
        given = {}
        if images:
            given = {
                "pixel_values": torch.cat([image.patches for image in images]),
                "image_grid_thw": torch.stack([image.grid for image in images]),
                "mm_token_type_ids": kinds,
            }
        return self.module(input_ids=ids, use_cache=False, **given).logits[0]

    def sample(self, body):
        """The answer of `/inference/v1/generate`."""
        parameters = body["sampling_params"]
        paths = [unquote(part["url"].removeprefix("file://")) for part in body.get("content_parts", [])]
        images = [self.images.get(path) for path in paths]
        lengths = iter([image.num_tokens for image in images])
        prompt = [one for token in body["token_ids"] for one in [token] * (next(lengths) if images and token == IMAGE else 1)]
        answer = {"request_id": f"generate-tokens-{body['request_id']}"}
        if "prompt_logprobs" in parameters:
            logprobs = self.logits(prompt, [], len(prompt)).log_softmax(-1)
            listed = [{str(token): {"logprob": logprobs[i, token].item()}} for i, token in enumerate(prompt[1:])]
            answer["prompt_logprobs"] = [None, *listed]
        generator = torch.Generator().manual_seed(parameters.get("seed", 0) % (1 << 62))
        completion, content = [], []
        while len(completion) < parameters["max_tokens"] and not set(completion) & set(parameters.get("stop_token_ids", [])):
            logprobs = self.logits(prompt + completion, images, len(prompt))[-1].log_softmax(-1)
            allowed = parameters.get("allowed_token_ids")
            # The image token is not drawn: transformers' `forward` would take it for an image.
            logprobs[IMAGE] = -torch.inf
            token = allowed[0] if allowed else int(torch.multinomial(logprobs.exp(), 1, generator=generator))
            value = 0.0 if allowed else logprobs[token].item()
            completion.append(token)
            content.append({"token_id": token, "logprob": value, "rank": 1, "top_logprobs": []})
        ended = "stop" if completion[-1:] and completion[-1] in parameters.get("stop_token_ids", []) else "length"
        if images:
            self.asked.append((paths, len(prompt)))
            answer["prompt_token_ids"] = prompt
        span = {"version": self.label, "start": 0, "end": len(completion)}
        choice = {"index": 0, "finish_reason": ended, "token_ids": completion, "weight_versions": [span]}
        choice["logprobs"] = {"content": content}
        return {**answer, "usage": {"completion_tokens": len(completion)}, "choices": [choice]}

    def answer(self, path, body):
        """A route's answer, or `None` if there is none."""
        path = path.split("?")[0]
        if path == "/inference/v1/generate":
            return self.sample(body)
        if path == "/collective_rpc":
            self.load(body["kwargs"]["weights_path"])
        if path == "/update_weight_version":
            self.label = body["new_version"]
        return {
            "/health": {}, "/version": {"version": "0.32.0"}, "/is_paused": {"is_paused": False},
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": 256}]},
            "/weight_info": {"weight_version": self.label}, "/metrics": {}, "/pause": {}, "/resume": {},
            "/reset_prefix_cache": {"success": True}, "/collective_rpc": {"results": [None]},
            "/update_weight_version": {"success": True}, "/inference/v1/abort_requests": {},
        }.get(path)  # fmt: skip


def serve(sampler):
    """A server of this sampler on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            with sampler.lock:
                found = sampler.answer(self.path, json.loads(text) if text else {})
            body = json.dumps(found if found is not None else {"detail": "Not Found"}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
class VisionRun(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        save_model(self.folder / "model")
        (self.folder / "pictures").mkdir()
        draw(self.folder / "pictures/a b.png", (50, 30), 1)
        draw(self.folder / "other.png", (20, 20), 2)
        other = base64.b64encode((self.folder / "other.png").read_bytes()).decode()
        rows = [
            {"question": "how many?", "image": "pictures/a b.png", "answer": "3"},
            {"question": "<image> or <image>?", "images": [{"bytes": other}, "pictures/a b.png"], "answer": "1"},
        ]
        (self.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (self.folder / "config.yaml").write_text(CONFIG)
        (self.folder / "letters.py").write_text(LETTERS)
        self.sampler = Sampler(self.folder / "model")
        self.server = serve(self.sampler)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def train(self, *arguments, fails=False):
        command = [str(PROGRAM), "train", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode != 0, fails, done.stderr[-3000:])
        return done.stderr

    def test_a_run_sees(self):
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        given = [f"rollout.servers=[{address}]", f"learner.python={warm.interpreter()}"]
        said = self.train("config.yaml", "run.name=sees", *given)
        self.assertIn("<start><image_pad><end>", said)
        lengths = [self.sampler.images.get(str(self.folder / name)).num_tokens for name in ("pictures/a b.png", "other.png")]
        seen = {tuple(pathlib.Path(path).name for path in paths): length for paths, length in self.sampler.asked}
        (stored,) = (self.folder / "runs/.images").iterdir()
        self.assertEqual(stored.read_bytes(), (self.folder / "other.png").read_bytes())
        one, two = len("how many?") + 2 + lengths[0], len(" or ?") + 4 + sum(lengths)
        self.assertEqual(seen, {("a b.png",): one, (stored.name, "a b.png"): two})
        rows = [json.loads(line) for line in (self.folder / "runs/sees/metrics.jsonl").read_text().splitlines()]
        self.assertTrue(all(row["actor/grad_norm"] > 0.0 for row in rows), rows)
        self.assertIn(b"a b.png", (self.folder / "runs/sees/rollouts/step_1.parquet").read_bytes())
        self.assertTrue((self.folder / "runs/sees/checkpoints/step_2/preprocessor_config.json").exists())
        # The next steps begin with the checkpoint, whose images are counted as before.
        self.train("--resume", "runs/sees", "train.total_steps=3", *given)
        self.assertTrue((self.folder / "runs/sees/checkpoints/step_3/model.safetensors").exists())

    def test_the_native_engine_does_not(self):
        said = self.train("config.yaml", "learner.backend=native", "rollout.backend=native", fails=True)
        self.assertIn("Qwen2_5_VLForConditionalGeneration", said)
        self.assertIn("learner.backend=torch", said)


