"""The benchmarks of the torch learner run at the smallest size on a CPU, and print what they should. Times
are not checked."""

import json
import pathlib
import subprocess
import sys
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import CONTINUOUS_RELEASE, ROOT, Case

import transformers


# One of the learner's kernels is wrong by a hundredth.
WRONG = """
import sys
sys.path.insert(0, "bench")
import torch_kernels
from tamis.learner import attention
right = attention.attend_sequences
attention.attend_sequences = lambda *given, **more: (1.01 * right(*given, **more)[0], None)
sys.exit(torch_kernels.main())
"""


class Benchmarks(Case):
    def test_kernels(self):
        lines = self.lines("torch_kernels.py", "--small", "--repetitions", "1")
        self.assertEqual({line["kernel"] for line in lines}, {"attention", "one_query", "head", "adamw"})
        for line in lines:
            self.assertNotIn("beyond", line)
            self.assertLess(line["error"], 3e-5)
        words = [sys.executable, "-c", WRONG, "--small", "--repetitions", "1", "--only", "attention"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
        self.assertEqual(done.returncode, 1, done.stderr[-3000:])
        self.assertEqual([json.loads(line).get("beyond") for line in done.stdout.splitlines()], [True, None])

    def lines(self, name, *arguments):
        done = subprocess.run(
            [sys.executable, str(pathlib.Path(ROOT) / "bench" / name), *arguments], capture_output=True, text=True, timeout=900, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_training_passes(self):
        lines = self.lines(
            "torch_learner.py", "--tokens", "200", "--lengths", "4", "8", "--repetitions", "1", "--update",
            "--forms", "learner", "wire", "padded", "--prompts", "shared", "apart", "--chunk", "16",
        )  # fmt: skip
        found = [(line["form"], line.get("prompts")) for line in lines]
        self.assertEqual(found, [("learner", "shared"), ("wire", "shared"), ("learner", "apart"), ("padded", None)])
        for line in lines:
            self.assertNotIn("failed", line)
            self.assertLess(line["apart"][0], 1e-4)
            self.assertAlmostEqual(line["norm_gradient"], lines[0]["norm_gradient"], delta=1e-3 * lines[0]["norm_gradient"])
            self.assertGreater(line["mfu"], 0.0)
            self.assertIn("wire" if line["form"] == "wire" else "peak_gib", line)

    def test_generation(self):
        sizes = "--prompts", "2", "--prompt", "8", "--completion", "4"
        continuous = ["continuous"] if transformers.__version__.startswith(CONTINUOUS_RELEASE) else []
        forms = ["learner", *continuous, "static"]
        lines = self.lines("torch_generation.py", *sizes, "--repeats", "1", "--lengths", "equal", "--forms", *forms)
        self.assertEqual([line["form"] for line in lines], forms)
        self.assertEqual([line["tokens"] for line in lines], [2 * 8 * 4] * len(forms))
        (line,) = self.lines("torch_generation.py", *sizes, "--lengths", "equal", "--forms", "learner", "--profile")
        kinds = [line[name] for name in ("products_with_weights", "attention_of_one_query", "everything_else")]
        self.assertGreater(min(kinds), 0.0)
        self.assertAlmostEqual(sum(kinds), line["seconds"], delta=0.03)

    def test_the_same_bits(self):
        lines = self.lines("torch_exact.py", "--prompts", "2", "--prompt", "8", "--completion", "4", "--repeats", "1")
        self.assertEqual([line["form"] for line in lines], ["exact", "ordinary", "transformers", "check"])
        self.assertEqual((lines[0]["apart"], lines[0]["equal"]), ([0.0, 0.0], 1.0))
        self.assertLess(max(line["apart"][0] for line in lines[1:3]), 1e-4)
        self.assertEqual(lines[3]["differs"], [])


if __name__ == "__main__":
    unittest.main()
