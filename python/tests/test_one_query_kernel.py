"""The Triton kernel of one query, on a GPU or by Triton's interpreter on a CPU, against the same row by row in f64."""

import importlib.util
import os
import sys
import unittest

# Before Triton is imported.
if os.environ.get("TAMIS_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
# First: without PyTorch it reports that and skips the tests.
from support import Case

import torch
from test_generate import OneQuery, row_by_row

if importlib.util.find_spec("triton") is None:
    print("\nSKIPPED: Triton is not installed, so its kernel was not tried; `.ci/all gangs` installs it\n", file=sys.stderr)
    raise unittest.SkipTest("Triton is not installed")

from tamis.learner.one_query_kernel import attend


class Kernel(Case):
    drawn = OneQuery.drawn

    def check(self, drawn, tolerance, **more):
        self.assert_close(attend(*drawn, 0.2, **more).float(), row_by_row(*drawn, 0.2, **more).float(), tolerance, str(more))

    def test_windows_and_caps(self):
        generator = torch.Generator().manual_seed(2)
        for more in ({}, {"window": 1}, {"window": 7}, {"window": 100}, {"cap": 5.0}, {"window": 5, "cap": 3.0}):
            self.check(self.drawn(generator), 1e-5, **more)

    def test_heads_of_every_size(self):
        generator = torch.Generator().manual_seed(3)
        for width in (6, 64, 80, 128):
            for num_kept, num_grouped in ((1, 1), (2, 7), (1, 20)):
                self.check(self.drawn(generator, width, num_kept, num_grouped), 1e-5)

    def test_lengths_up_to_4096(self):
        generator = torch.Generator().manual_seed(4)
        for width in (64, 128):
            for prompt, length in ((1, 0), (63, 64), (64, 63), (65, 1), (1, 4095), (3000, 1096)):
                self.check(self.drawn(generator, width, 1, 2, (length, 0), (0, 0), (prompt,)), 1e-5)

    def test_in_bf16(self):
        generator = torch.Generator().manual_seed(5)
        drawn = [one.bfloat16() if one.is_floating_point() else one for one in self.drawn(generator, 64)]
        self.check(drawn, 2e-2)


if __name__ == "__main__":
    unittest.main()
