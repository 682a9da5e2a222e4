"""The pages about the sieve: the example in them is run, its commands print what the page shows, their Python works."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/sieve_in_trl.py"
PAGE = (ROOT / "docs/trl.md").read_text()
PROGRAM = os.environ.get("TAMIS_PROGRAM") or shutil.which("tamis")
# Last bits differ between processors, and over 100 steps all figures do.
FIGURE = re.compile(r"-?\d[\d.,]*%?|[▁▂▃▄▅▆▇█]+")


def fences(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def pattern(shown: str) -> str:
    """A regular expression for what a page shows: `...` is anything, also whole lines, and each figure is a group."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "...":
            lines.append(r"(?:[^\n]*\n)*?")
            continue
        texts = FIGURE.split(line.rstrip())
        found = [r"(-?\d[\d.,]*%?|[▁▂▃▄▅▆▇█]+)"] * (len(texts) - 1)
        parts = [part for pair in zip(texts, [*found, ""], strict=True) for part in (re.escape(pair[0]), pair[1])]
        lines.append("".join(parts).replace(re.escape("..."), "[^\n]*") + r"[ ]*\n")
    return "".join(lines)


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("sieve_in_trl", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@unittest.skipUnless(PROGRAM, "there is no program `tamis`: TAMIS_PROGRAM names it")
class ExampleTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        for options in ([], ["--plain"]):
            done = subprocess.run(
                [sys.executable, EXAMPLE, *options],
                cwd=cls.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]

    def run_program(self, command: str) -> str:
        done = subprocess.run(
            [str(PROGRAM), *command.split()],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.strip("\n") + "\n"

    def test_commands_print_what_the_page_shows(self) -> None:
        shells = fences(PAGE, "console")
        commands = [
            part.partition("\n") for shell in shells for part in re.split(r"^\$ ", shell, flags=re.MULTILINE)[1:]
        ]
        # The others need no TRL: scripts/test-book runs them.
        commands = [command for command in commands if " runs/copying" in command[0]]
        self.assertGreater(len(commands), 2)
        for command, _, shown in commands:
            with self.subTest(command):
                printed = self.run_program(command.removeprefix("tamis "))
                self.assertRegex(printed, rf"\A{pattern(shown)}\Z")
                found = re.fullmatch(pattern(shown), printed)
                assert found is not None
                # Figures of single rollouts are ids.
                for ours, page in zip(found.groups(), FIGURE.findall(shown), strict=True):
                    if not command.startswith("tamis rollouts"):
                        self.check_figure(ours, page)

    def check_figure(self, ours: str, page: str) -> None:
        """Shares within a factor of 2, and counts above 99, too: processors differ in last bits."""
        if page.endswith("%") or page.isdigit() and int(page) > 99:
            small, large = sorted(float(figure.rstrip("%,").replace(",", "")) for figure in (ours, page))
            self.assertLessEqual(large, 2 * small + 0.5, (ours, page))

    def test_the_example_has_the_figures_of_the_page(self) -> None:
        share, number = re.findall(r"At first ([\d.]+ %) .* takes (\d+) prompts", EXAMPLE.read_text())[0]
        self.assertIn(f"At first {share}", PAGE.replace("\n", " "))
        self.assertIn(f"Total prompts: {number} ", PAGE)

    def test_the_policy_learns_and_every_group_is_counted(self) -> None:
        printed = self.run_program("monitor runs/copying --once")
        first, last = map(float, re.findall(r"pass rate +([\d.]+)% → ([\d.]+)%", printed)[0])
        self.assertGreater(last, 10 * first, printed)
        line = re.search(r"^groups .*", printed, re.MULTILINE)
        assert line is not None
        generated, dropped, kept, trained, surplus = map(int, re.findall(r"\d+", line[0]))
        self.assertEqual(trained, 100 * 8)
        self.assertEqual(generated, dropped + kept)
        self.assertEqual(kept, trained + surplus)


class PythonTests(unittest.TestCase):
    def run_fence(self, text: str) -> Any:
        """Runs Python of a page with the example's trainer, for two steps."""
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            # In the folder in which the trainer makes its own.
            trainer = load_example().make_trainer()
            trainer.args.max_steps = 2
            exec(compile(text, "page", "exec"), {"trainer": trainer})
        return trainer

    def test_the_page_of_the_package(self) -> None:
        examples = fences((ROOT / "docs/python.md").read_text(), "python trl")
        self.assertTrue(examples)
        for example in examples:
            # The batch of the example takes more than ten of its size at first.
            self.run_fence(example.replace('"max_num_gen_batches": 10', '"max_num_gen_batches": 100'))

    def test_the_settings_of_the_page(self) -> None:
        settings = [text for text in fences(PAGE, "python") if text.startswith("tamis.trl.attach(")]
        self.assertEqual(len(settings), 1)
        trainer = self.run_fence("import tamis.trl\n" + settings[0])
        self.assertEqual(trainer.sieve.settings["on_limit"], "keep_dropped")
        self.assertEqual(trainer.sieve.settings["max_num_gen_batches"], {"rounds": 20})


if __name__ == "__main__":
    unittest.main()
