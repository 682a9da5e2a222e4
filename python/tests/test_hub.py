"""`Run.push_to_hub` with huggingface_hub itself, against a stand-in of the hub's API on this machine."""

import base64
import hashlib
import http.server
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TAMIS_PROGRAM")

SUMS = [
    "model.init={architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}",
    "data.task=arithmetic", "data.max_prompt_length=16", "data.train_batch_size=4", "rollout.n=2", "rollout.max_response_length=4",
    "run.name=sums", "train.total_steps=2", "checkpoint.save_freq=1", "validate.before_train=false",
]  # fmt: skip

PUSH = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tamis.runs import Run
print(Run(sys.argv[2], frames="list").push_to_hub("me/sums", **json.loads(sys.argv[3])))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of an upload: a repository, a branch, which files go where, LFS objects, a commit."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, value=None):
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_PUT(self):
        self.server.objects[self.path.rsplit("/", 1)[-1]] = self.body()
        self.answer(200)

    def do_GET(self):
        self.server.asked.append(("GET", self.path))
        self.answer(404, {"error": f"the stand-in has no {self.path}"})

    def do_POST(self):
        hub, body, path = self.server, self.body(), self.path.split("?")[0]
        hub.asked.append(("POST", path))
        if path != "/verify" and self.headers.get("Authorization") != "Bearer secret":
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        if path == "/api/repos/create":
            hub.repository = json.loads(body)
            return self.answer(200, {"url": f"{hub.address}/me/sums", "name": "me/sums"})
        if path.startswith("/api/models/me/sums/branch/"):
            hub.branches.append(path.rsplit("/", 1)[-1])
            return self.answer(200, {})
        if path.startswith("/api/models/me/sums/preupload/"):
            # As on the hub: large and binary files are LFS objects.
            mode = {True: "lfs", False: "regular"}
            files = [{"path": file["path"], "uploadMode": mode[file["path"].endswith(".safetensors")], "shouldIgnore": False, "oid": None}
                     for file in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": files})
        if path == "/me/sums.git/info/lfs/objects/batch":
            actions = lambda oid: {"upload": {"href": f"{hub.address}/lfs/{oid}"}, "verify": {"href": f"{hub.address}/verify"}}
            objects = [{**item, "actions": actions(item["oid"])} for item in json.loads(body)["objects"]]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if path == "/verify":
            wanted = json.loads(body)
            return self.answer(200 if len(hub.objects[wanted["oid"]]) == wanted["size"] else 422, {})
        if path.startswith("/api/models/me/sums/commit/"):
            hub.revision = path.rsplit("/", 1)[-1]
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    hub.message = value["summary"]
                elif line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.objects[value["oid"]]
            return self.answer(200, {"success": True, "commitOid": "1" * 40, "commitUrl": f"{hub.address}/me/sums/commit/{'1' * 40}"})
        return self.answer(404, {"error": f"the stand-in has no {path}"})


@unittest.skipUnless(importlib.util.find_spec("huggingface_hub"), "SKIPPED: huggingface_hub is not installed")
@unittest.skipUnless(PROGRAM, "SKIPPED: there is no program `tamis` (TAMIS_PROGRAM)")
class PushTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = pathlib.Path(made.name)
        subprocess.run([PROGRAM, "train", "--quiet", *SUMS], cwd=cls.folder, check=True, capture_output=True)
        cls.run_dir = cls.folder / "runs/sums"

    def setUp(self):
        self.hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        self.hub.address = f"http://127.0.0.1:{self.hub.server_port}"
        self.hub.asked, self.hub.objects, self.hub.files, self.hub.branches = [], {}, {}, []
        thread = threading.Thread(target=self.hub.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)

    def push(self, run=None, **arguments):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        left_out = ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH")
        kept = {name: value for name, value in os.environ.items() if name not in left_out and "proxy" not in name.lower()}
        # Its storage for large files, Xet, is another protocol than LFS.
        own = {"HF_ENDPOINT": self.hub.address, "HF_HOME": home.name, "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-c", PUSH, str(ROOT / "python"), str(run or self.run_dir), json.dumps(arguments)]
        return subprocess.run(command, env={**kept, **own}, capture_output=True, text=True, timeout=120, check=False)

    def exported(self, *arguments):
        target = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "model"
        subprocess.run([PROGRAM, "export", *arguments, str(target)], cwd=self.folder, check=True, capture_output=True)
        return {file.name: file.read_bytes() for file in target.iterdir()}

    def test_the_files_of_the_checkpoint_arrive(self):
        done = self.push(token="secret", private=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), f"{self.hub.address}/me/sums/commit/{'1' * 40}")
        self.assertEqual((self.hub.repository["name"], self.hub.repository["organization"]), ("sums", "me"))
        self.assertEqual(self.hub.repository["visibility"], "private")
        self.assertEqual((self.hub.message, self.hub.revision), ("Trained with tamis: run sums", "main"))
        self.assertEqual(self.hub.files, self.exported("runs/sums"))
        # Weights are LFS objects, and the other files are not.
        weights = hashlib.sha256(self.hub.files["model.safetensors"]).hexdigest()
        self.assertEqual(list(self.hub.objects), [weights])
        self.assertEqual(self.hub.branches, [])

    def test_an_earlier_step_goes_to_a_branch(self):
        done = self.push(token="secret", step=1, revision="early", commit_message="the first step", dtype="bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.hub.branches, self.hub.revision, self.hub.message), (["early"], "early", "the first step"))
        [first, *_] = sorted((self.run_dir / "checkpoints").iterdir())
        self.assertEqual(self.hub.files, self.exported(str(first), "--dtype", "bf16"))

    def test_what_cannot_be_pushed_says_what_to_do(self):
        none = self.push()
        self.assertEqual(none.returncode, 1)
        self.assertIn("there is no token of the hub: `hf auth login`, the variable HF_TOKEN, or `token=`", none.stderr)
        self.assertEqual(self.hub.asked, [])
        wrong = self.push(token="other")
        self.assertIn("401", wrong.stderr)
        self.assertEqual(self.hub.files, {})
        # Before a repository is made.
        self.hub.asked.clear()
        empty = self.folder / "runs/empty"
        empty.mkdir()
        (empty / "config.yaml").write_text((self.run_dir / "config.yaml").read_text())
        unsaved = self.push(empty, token="secret")
        self.assertEqual(unsaved.returncode, 1)
        self.assertIn("has no checkpoint yet: one is written every `checkpoint.save_freq` steps, and when a run ends", unsaved.stderr)
        unknown = self.push(token="secret", step=7)
        self.assertIn("has no checkpoint of step 7; it has those of the steps: 1, 2", unknown.stderr)
        self.assertEqual(self.hub.asked, [])


if __name__ == "__main__":
    unittest.main()
