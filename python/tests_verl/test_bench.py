"""bench/peers/verl_sieve.py at a small size: the statements of the page about the two buffers. Its clock is
simulated, so its numbers are the same everywhere."""

import re
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
        lines = re.findall(r"^(\w+) +([\d.]+) (verl|tamis \w+) +([\d.]+) +([\d.]+) ", done.stdout, re.M)
        figures = {(mode, keep, name): (float(generated), float(polls)) for mode, keep, name, generated, polls in lines}
        self.assertEqual(len(figures), 18)
        page = (ROOT / "docs/verl.md").read_text()
        for mode, keep in {(mode, keep): None for mode, keep, _ in figures}:
            both = [figures[mode, keep, name] for name in ("verl", "tamis expected", "tamis exact")]
            cells = " | ".join(f"{generated:.2f}, {polls:.1f}" for generated, polls in both)
            self.assertIn(f"| `{mode}` | {keep} | {cells} |", page)
        for (mode, keep, name), (generated, polls) in figures.items():
            own_generated, own_polls = figures[mode, keep, "verl"]
            with self.subTest(mode=mode, keep=keep, name=name):
                # Neither buffer can know which prompts are good: 1/k groups are the least for each that is kept.
                self.assertGreater(generated, 0.97 / float(keep))
                if name == "tamis expected":
                    self.assertLessEqual(generated, own_generated)
                    self.assertLessEqual(polls, own_polls)
                    if (mode, keep) == ("sync", "0.4"):
                        self.assertLessEqual(generated, 0.9 * own_generated)
                        self.assertLessEqual(polls, 0.7 * own_polls)
                elif name == "tamis exact":
                    self.assertLessEqual(generated, own_generated)


if __name__ == "__main__":
    unittest.main()
