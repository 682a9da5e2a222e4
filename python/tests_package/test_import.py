"""Importing is light, every name exists, and the package reports a missing native module."""

import subprocess
import sys

import pytest
import tamis


def run(code, *arguments):
    done = subprocess.run([sys.executable, *arguments, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_nothing_heavy():
    code = "import sys, tamis; tamis.Filter; tamis.Scheduler; print(*sorted(sys.modules))"
    loaded = {name.partition(".")[0] for name in run(code).split()}
    assert not loaded & {"torch", "numpy", "transformers", "ray", "pydantic"}
    assert "tamis" in loaded


def test_every_name_is_there():
    assert dir(tamis) == sorted(tamis.__all__)
    for name in tamis.__all__:
        assert getattr(tamis, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Filtre'"):
        tamis.Filtre  # noqa: B018
    assert tamis.__version__


def test_sources_without_the_native_module_say_what_to_do(root):
    code = f"""
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.path.insert(0, {str(root / "python")!r})
import tamis
try:
    tamis.Filter
except ImportError as error:
    print(error)
"""
    assert "needs the native module" in run(code, "-S")


def test_every_public_name_is_documented():
    for name in tamis.__all__:
        if name.startswith("_"):
            continue
        found = getattr(tamis, name)
        assert found.__doc__ and len(found.__doc__) > 30, name
        for member in (member for member in vars(found) if not member.startswith("_")):
            if name not in ("ColumnError", "ConfigError", "EventError"):
                assert getattr(found, member).__doc__, f"{name}.{member}"
