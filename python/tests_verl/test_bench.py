"""bench/peers/verl_sieve.py at a small size: what the page says of the two buffers. Its clock is made up, so its numbers
are the same everywhere."""

import subprocess
import sys
import unittest
from pathlib import Path

from world import HAS_VERL, ROOT, Case

BENCH = ROOT / "bench/peers/verl_sieve.py"


@unittest.skipUnless(HAS_VERL, "verl is not installed")
class BenchTests(Case):
    def test_beside_verls_own(self):
        import verl

        site = Path(verl.__file__).parents[1]
        done = subprocess.run([sys.executable, BENCH, site, "--steps", "300"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = {}
        for line in done.stdout.splitlines()[1:]:
            mode, keep, *name, generated, polls, surplus, stale = line.partition("   of")[0].split("   ")[0].split()[:8]
            figures[mode, float(keep), " ".join(name)] = (float(generated), float(polls))
        self.assertTrue(figures)


if __name__ == "__main__":
    unittest.main()
