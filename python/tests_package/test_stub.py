"""The stub of the native module and the module itself, by mypy's own comparison."""

import importlib.util
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy is not installed here")


def test_stub_is_that_of_the_module(tmp_path):
    modules = ["tamis._native", "tamis.errors", "tamis.schedule"]
    command = [sys.executable, "-m", "mypy.stubtest", *modules]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_types_as_a_user_sees_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import tamis\n"
        "from tamis.schedule import BeginStep\n"
        "reveal_type(tamis.Filter('variance').judge([[1, 0]])[0].kept)\n"
        "reveal_type(tamis.Objective().evaluate([[0.0]], [1.0]).loss)\n"
        "reveal_type(tamis.Scheduler(train_batch_size=1, n=2).handle(BeginStep()))\n"
        "tamis.Filter(3)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = done.stdout
    assert 'Revealed type is "bool"' in told or "builtins.bool" in told, told
    assert "float" in told and "StepReady" in told, told
    assert told.count("error:") == 1 and 'incompatible type "int"' in told, told


def test_sources_have_types(root, tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports"]
    sources = ["tamis.errors", "tamis.runs", "tamis.schedule", "tamis.slime", "tamis.verl"]
    if importlib.util.find_spec("torch"):
        # Without it everything in there is of an unknown type.
        sources += ["tamis.torch", "tamis.trl"]
    arguments = [argument for source in ["tamis", *sources] for argument in ("-m", source)]
    done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
