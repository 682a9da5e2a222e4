"""scripts/gpu-check: the tests that it runs on a device, and parts that fail, hang, or leave something behind."""

import argparse
import ast
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Tests that take a device and are not run on a GPU, with the reason.
ELSEWHERE = {
    "test_cuda": "named by itself",
    "test_exact": "the part `exact` has it",
    "test_alike": "compares with the built-in engine, within rounding on a CPU",
    "test_native": "reads the built-in engine's checkpoints, bit for bit on a CPU",
    "test_continuous": "on a GPU it needs flash-attention; test_cuda.py has it",
    "test_handles": "hands out memory of the CPU; test_cuda.py has that of the GPU",
    "test_plan": "compares bytes of a CPU",
    "test_ranks": "ranks over gloo on a CPU",
    "test_server": "messages; what is computed is in test_learner.py",
    "test_transfer": "sends over gloo",
    "test_work": "counts operations, and computes nothing that depends on the device",
}


def script():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu-check"))
    spec = importlib.util.spec_from_loader("gpu_check", loader)
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.object(sys, "dont_write_bytecode", True):
        loader.exec_module(module)
    return module


gpu_check = script()


def imports_of_support(path):
    """Names that a test takes from support.py."""
    nodes = ast.parse(path.read_text()).body
    return {name.name for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "support" for name in node.names}


class OnTheDevice(unittest.TestCase):
    def test_every_test_that_takes_a_device_is_run_on_it(self):
        tests = pathlib.Path(__file__).parent
        takes = {path.stem for path in tests.glob("test_*.py") if imports_of_support(path) & {"DEVICE", "opened", "open_settings"}}
        self.assertIn("test_generate", takes)
        self.assertEqual(takes - ELSEWHERE.keys(), set(gpu_check.TESTS) - {"test_one_query_kernel"})
        self.assertLessEqual(ELSEWHERE.keys(), takes)
        self.assertLessEqual({*gpu_check.QUICK_TESTS, "test_one_query_kernel"}, {path.stem for path in tests.glob("test_*.py")})

    def test_all_parts_together_take_less_than_nine_minutes(self):
        # Beside them, ten seconds to look at the machine and to unpack wheels; if that takes longer, the last parts get less.
        self.assertLessEqual(sum(seconds for _, _, seconds in gpu_check.PARTS), 9 * 60 - 10)


class Parts(unittest.TestCase):
    def check(self, parts, only=None):
        """What a run of these parts leaves: `(exit status, JSON, Markdown)`."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "files/model").mkdir(parents=True)
        for name in gpu_check.MODEL_FILES:
            (folder / "files" / name).write_text("{}")
        given = argparse.Namespace(
            device="cpu", small=False, only=only, out=folder / "out", python=sys.executable, program=pathlib.Path(sys.executable),
            model_files=folder / "files",
        )  # fmt: skip
        found = {"gpu": None, "small": False, "device": "cpu"}
        with (
            unittest.mock.patch.object(gpu_check, "PARTS", parts), unittest.mock.patch.object(gpu_check, "machine", lambda _: found),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            status = gpu_check.check(given)
        self.assertFalse(given.work.exists(), "nothing is left behind")
        return status, json.loads((given.out / "results.json").read_text()), (given.out / "results.md").read_text()

    def python(self, code):
        return lambda part, given: part.run(given, [given.python, "-c", code], gpu_check.json_lines)

    def test_a_part_that_fails_does_not_end_the_others(self):
        def raises(part, given):
            part.run(given, [given.python, "-c", "print('{\"one\": 1}')"], gpu_check.json_lines)
            raise KeyError("what was not there")

        status, found, page = self.check([
            ("raises", raises, 30),
            ("fails", self.python("import sys; print('{\"two\": [2, 3]}'); print('no JSON'); sys.exit('it broke')"), 30),
            ("works", self.python("print('{\"three\": 3}')"), 30),
        ])  # fmt: skip
        self.assertEqual(status, 1)
        self.assertEqual([part["lines"] for part in found["parts"]], [[{"one": 1}], [{"two": [2, 3]}], [{"three": 3}]])
        problems = [part["problems"] for part in found["parts"]]
        self.assertEqual((len(problems[0]), len(problems[1]), problems[2]), (1, 1, []))
        self.assertIn("KeyError: 'what was not there'", problems[0][0])
        self.assertIn("status 1: ", problems[1][0])
        self.assertTrue(problems[1][0].endswith("it broke"))
        self.assertEqual(page.count("**failed**"), 2)
        self.assertIn("| two |\n| --- |\n| 2, 3 |", page)

    def test_a_part_that_hangs_is_ended_with_all_that_it_started(self):
        mark = f"gpu-check-test-{os.getpid()}"
        code = (
            f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', '{mark}']); "
            "print('{\"before\": 1}', flush=True); time.sleep(60)"
        )
        begin = time.monotonic()

        def hangs(part, given):
            self.python(code)(part, given)
            # There is no time for it.
            self.python("print('{\"after\": 1}')")(part, given)

        status, found, page = self.check([("hangs", hangs, 3), ("works", self.python("print('{\"three\": 3}')"), 30)])
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(status, 1)
        hung, works = found["parts"]
        self.assertEqual((hung["lines"], works["lines"]), ([{"before": 1}], [{"three": 3}]))
        self.assertIn("over its limit of 3 s", hung["problems"][0])
        self.assertIn("not begun, for the time was over", hung["problems"][1])
        self.assertIn("over its limit of 3 s", page)
        left = [path for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if mark in self.read(path)]
        self.assertEqual(left, [])

    def read(self, path):
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    def test_all_parts_that_work_are_no_failure(self):
        parts = [("one", self.python("print('{\"a\": 1}')"), 30), ("two", self.python("print('{\"b\": 1}')"), 30)]
        status, found, _ = self.check(parts)
        self.assertEqual((status, len(found["parts"])), (0, 2))
        status, found, _ = self.check(parts, only=["two"])
        self.assertEqual((status, [part["name"] for part in found["parts"]]), (0, ["two"]))

    def test_programs_side_by_side(self):
        sleeps = "import time; time.sleep(2); print('{\"ended\": 1}')"

        def together(part, given):
            programs = [([given.python, "-c", code], gpu_check.json_lines) for code in (sleeps, sleeps, "raise SystemExit(3)")]
            part.run_together(given, programs)

        status, found, _ = self.check([("together", together, 60)])
        (part,) = found["parts"]
        self.assertEqual((status, part["lines"], len(part["problems"])), (1, [{"ended": 1}] * 2, 1))
        self.assertLess(part["took"], 3.9)


    def test_parts_get_no_more_than_what_is_left_of_nine_minutes(self):
        seconds = []

        def notes(part, given):
            seconds.append(part.seconds)

        with unittest.mock.patch.object(gpu_check, "MOST_SECONDS", 20):
            self.check([("short", notes, 5), ("long", notes, 90)])
        self.assertEqual(seconds[0], 5)
        self.assertTrue(10 < seconds[1] <= 20, seconds)


class Arguments(unittest.TestCase):
    """What cannot work is refused in a sentence, before anything runs."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "tamis"
        self.program.touch()

    def refused(self, pattern, *words):
        """The message of a run with these words."""
        with self.assertRaisesRegex(SystemExit, pattern), contextlib.redirect_stdout(io.StringIO()):
            gpu_check.main([str(word) for word in words])

    def test_an_interpreter_that_is_not_there(self):
        self.refused("there is no program /nowhere/python\n  hint: .*--python", "--device", "cpu", "--python", "/nowhere/python")
        self.refused("there is no program no-such-python", "--device", "cpu", "--python", "no-such-python")

    def test_an_interpreter_that_does_not_answer(self):
        sleeps = self.folder / "python"
        sleeps.write_text("#!/bin/sh\nsleep 9\n")
        sleeps.chmod(0o755)
        with unittest.mock.patch.object(gpu_check, "LONGEST_IMPORT", 0.2):
            self.refused("took longer than 0.2 s to import PyTorch", "--device", "cpu", "--python", sleeps, "--program", self.program)

    def test_programs_are_found_from_every_folder(self):
        """Parts run in the folder of the script, so a relative path must not reach them."""
        link = self.folder / "python"
        link.symlink_to(sys.executable)
        with contextlib.chdir(self.folder), unittest.mock.patch.object(gpu_check, "check", lambda given: given):
            given = gpu_check.main(["--python", "./python", "--program", "tamis"])
        # Not the target of the link, which has other packages.
        self.assertEqual((given.python, given.program), (str(link), self.program))

    def test_results_that_cannot_be_written(self):
        (self.folder / "model").mkdir()
        for name in gpu_check.MODEL_FILES:
            (self.folder / name).touch()
        whole = ["--device", "cpu", "--program", self.program, "--model-files", self.folder]
        with unittest.mock.patch.object(gpu_check, "machine", lambda _: {"gpu": None}):
            self.refused("cannot write .*tamis: .*\n  hint: .*--out", *whole, "--out", self.program)

    def test_what_a_pack_needs(self):
        pack = ["--pack", self.folder / "packed.tar.xz"]
        self.refused("missing is not there\n  hint: cargo build --release", *pack, "--program", self.folder / "missing")
        self.refused("lacks model/tokenizer.json: scripts/smollm2", *pack, "--program", self.program, "--model-files", self.folder)
        (self.folder / "model").mkdir()
        for name in gpu_check.MODEL_FILES:
            (self.folder / name).touch()
        whole = ["--program", self.program, "--model-files", self.folder]
        self.refused("cannot write .*no/folder/x.tar.xz: there is no folder", "--pack", self.folder / "no/folder/x.tar.xz", *whole)
        # An unpacked archive, from which no other can be made.
        with unittest.mock.patch.object(gpu_check, "ROOT", self.folder):
            self.refused("is no git checkout", *pack, *whole)


class Lines(unittest.TestCase):
    ENDED = "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... skipped 'no GPU'\ntest_c (m.C.test_c) ... FAIL\n"

    def test_tests_that_ended(self):
        told = self.ENDED + "\n====\nFAIL: test_c (m.C.test_c)\n----\nRan 3 tests in 0.1s\n\nFAILED (failures=1, skipped=1)\n"
        (line,) = gpu_check.unittest_line("m")("", told)
        self.assertEqual(line, {"tests": "m", "ended": 3, "skipped": 1, "failed": ["test_c"]})

    def test_tests_that_were_ended(self):
        (line,) = gpu_check.unittest_line("m")("", self.ENDED + "test_d (m.C.test_d) ... ")
        self.assertEqual(line, {"tests": "m", "ended": 3, "skipped": 1, "failed": ["test_c"], "ran_until": "test_d"})

    def test_a_comparison_needs_both(self):
        part = gpu_check.Part("p", 1)
        part.lines = [{"form": "learner", "tokens_per_s": 30}]
        gpu_check.compare(part, "form", "learner", "static", "tokens_per_s")
        self.assertEqual(len(part.lines), 1)
        part.lines.append({"form": "static", "tokens_per_s": 8})
        gpu_check.compare(part, "form", "learner", "static", "tokens_per_s")
        self.assertEqual(part.lines[-1], {"form": "learner / static", "tokens_per_s": 3.75})

    def test_without_trl_the_step_is_compared_with_a_plain_loop(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        given = argparse.Namespace(
            device="cpu", small=True, python=sys.executable, program="tamis", work=folder, environment={"PYTHONPATH": str(folder)},
        )  # fmt: skip
        asked = []

        def run(part, given, words, parse):
            asked.append(words[words.index("--peer") + 1])
            part.lines = [{"who": "tamis (torch)", "groups_with_signal_per_s": 6.0}, {"who": "plain loop", "groups_with_signal_per_s": 2.0}]

        with unittest.mock.patch.object(gpu_check.Part, "run", run):
            # TRL that is there and does not import.
            (folder / "trl.py").write_text("raise ImportError('needs another transformers')")
            part = gpu_check.Part("step", 1)
            gpu_check.step(part, given)
            (folder / "trl.py").write_text("GRPOTrainer = None")
            gpu_check.step(gpu_check.Part("step", 1), given)
        self.assertEqual(asked, ["plain", "trl"])
        # What the import took counts for the part.
        self.assertGreater(part.took, 0.0)
        self.assertEqual(part.lines[-1], {"who": "tamis (torch) / plain loop", "groups_with_signal_per_s": 3.0})
        self.assertIn("no vLLM", part.lines[1]["samples by"])


if __name__ == "__main__":
    unittest.main()
