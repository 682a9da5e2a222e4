"""The program of `kind: math_verify` with the library itself, beside what TRL's `accuracy_reward` gave.

It needs the packages that scripts/install-environments installs; without them the tests are skipped with a message.
"""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from test_environments import needs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "crates/tamis-env/python/tamis_math_verify.py"
TAMIS = pathlib.Path(os.environ.get("TAMIS_PROGRAM", ROOT / "target/debug/tamis"))


def golden(name):
    """Reference vectors, as tests/golden or TAMIS_GOLDEN holds them."""
    folder = pathlib.Path(os.environ.get("TAMIS_GOLDEN", ROOT / "tests/golden"))
    for path in (folder / f"{name}.json.gz", folder / f"{name}.json"):
        if path.exists():
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            return json.loads(text)["cases"]
    raise FileNotFoundError(f"{folder}/{name}.json")


def replies(pairs):
    """The program's answer to (ground truth, completion)."""
    requests = [{"introduce": {"columns": None}}]
    requests += [
        {"id": number, "remaining": 0, "ground_truth": truth, "completion": completion}
        for number, (truth, completion) in enumerate(pairs)
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ended = subprocess.run([sys.executable, str(PROGRAM)], input=lines, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    introduced, *answers = map(json.loads, ended.stdout.splitlines())
    assert introduced["introduction"]["problem"] is None, introduced
    assert [answer["id"] for answer in answers] == list(range(len(pairs)))
    return answers


def judged(pairs):
    """The verdicts on (ground truth, completion)."""
    return [answer["scores"]["acc"] if "scores" in answer else answer["score"] for answer in replies(pairs)]


@needs("math_verify")
class MathVerifyTests(unittest.TestCase):
    """Verdicts of the program."""

    def test_its_verdicts_are_those_of_trl(self):
        cases = golden("trl_reward_accuracy")
        self.assertGreater(len(cases), 30)
        found = judged([(case["inputs"]["solution"], case["inputs"]["completion"]) for case in cases])
        differing = {
            (case["inputs"]["solution"], case["inputs"]["completion"]): (case["outputs"]["accuracy"], verdict)
            for case, verdict in zip(cases, found, strict=True)
            if verdict != case["outputs"]["accuracy"]
        }
        # The reference had antlr 4.9.3, with which a percentage is not its number.
        self.assertEqual(differing, {("$4$", "\\boxed{4\\%}"): (0.0, 1.0)})
        self.assertIn(None, found)

    def test_the_answer_that_was_read_is_the_vote(self):
        pairs = [("1/2", text) for text in ("so $x$ is \\boxed{\\frac{1}{2}}", "\\boxed{1/2}", "\\boxed{\\frac{2}{4}}", "no idea")]
        preds = [answer.get("log_extra", {}).get("pred") for answer in replies(pairs)]
        self.assertEqual(preds[0], preds[1])
        self.assertEqual(preds[:1] + preds[3:], ["1/2", None])

    def test_an_evaluation_asks_it(self):
        if not TAMIS.exists():
            self.skipTest(f"there is no program {TAMIS}: cargo build -p tamis-cli")
        with tempfile.TemporaryDirectory() as folder:
            rows = [{"prompt": "1+1=", "answer": "$2$"}, {"prompt": "?", "answer": "nothing to read"}]
            data = pathlib.Path(folder) / "rows.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            run = {
                "run": {"name": "tiny", "dir": folder, "seed": 5, "threads": 1},
                "model": {
                    "init": {
                        "architecture": "qwen3",
                        "hidden_size": 16,
                        "intermediate_size": 32,
                        "num_layers": 2,
                        "num_heads": 2,
                        "num_kv_heads": 1,
                        "max_position_embeddings": 1024,
                    }
                },
                "data": {"train": str(data), "train_batch_size": 2, "max_prompt_length": 128},
                "sft": {"steps": 0},
                "reward": [{"kind": "math_verify", "python": sys.executable}],
                "rollout": {"n": 2, "max_response_length": 2},
                "objective": {"advantage": {"kind": "grpo"}},
                "train": {"total_steps": 1, "optimizer": {"learning_rate": 1e-3}},
                "validate": {"test_freq": 0, "before_train": False},
                "checkpoint": {"save_freq": 0},
            }
            config = pathlib.Path(folder) / "run.yaml"
            config.write_text(json.dumps(run))
            ended = subprocess.run([TAMIS, "train", str(config)], capture_output=True, text=True, timeout=300)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("reward `math_verify`: math-verify 0.9.0, ", ended.stderr)
            metrics = (pathlib.Path(folder) / "tiny/metrics.jsonl").read_text().splitlines()
            # A random policy boxes no answer: those that can be judged are wrong, the other row has no score.
            self.assertEqual(json.loads(metrics[-1])["critic/score/mean"], 0.0)


if __name__ == "__main__":
    unittest.main()
