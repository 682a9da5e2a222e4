"""The tests of test_cuda.py on a GPU that is simulated on the CPU (played_cuda.py), if there is none."""

import pathlib
import subprocess
import sys
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import Case

import torch


@unittest.skipIf(torch.cuda.is_available(), "there is a GPU, which test_cuda.py asks")
class PlayedCuda(Case):
    def test_what_is_written_for_a_gpu_runs_and_keeps_to_its_device(self):
        # In a process of its own: PyTorch is another after it.
        program = pathlib.Path(__file__).with_name("played_cuda.py")
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        self.assertRegex(done.stderr, "Ran [5-9] tests")


if __name__ == "__main__":
    unittest.main()
