"""The wheel's tag: pip takes it here, PyPI takes it at all, and it promises no older system than its files run on."""

import importlib.metadata
import importlib.util
import pathlib
import re
import sys
import types

import pytest
from packaging import tags

import tamis

INSTALLED = importlib.metadata.distribution("tamis")
TAG = re.search("(?m)^Tag: (.*)$", INSTALLED.read_text("WHEEL"))[1]
BINARIES = [
    pathlib.Path(sys.executable).parent / "tamis",
    next(pathlib.Path(tamis.__file__).parent.glob("_native*.so")),
]


def test_a_program_of_any_name_becomes_the_command(tmp_path, monkeypatch):
    backend = pathlib.Path(__file__).resolve().parents[1] / "wheel_backend"
    monkeypatch.syspath_prepend(str(backend))
    hooks = ("get_requires_for_build_wheel", "get_requires_for_build_editable")
    monkeypatch.setitem(sys.modules, "maturin", types.SimpleNamespace(**dict.fromkeys(hooks)))
    spec = importlib.util.spec_from_file_location("wheel_of_any_name", backend / "tamis_wheel.py")
    wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheel)
    program = tmp_path / "tamis-2026-11-x86_64"
    program.write_bytes(pathlib.Path("/bin/true").read_bytes())
    program.chmod(0o755)
    monkeypatch.setenv("TAMIS_WHEEL_PROGRAM", str(program))
    monkeypatch.setattr(wheel, "SCRIPTS", tmp_path / "data" / "scripts")
    staged = wheel._stage_program()
    assert [path.name for path in staged.parent.iterdir()] == ["tamis"]
    assert staged.stat().st_mode & 0o111


def test_pip_takes_it():
    assert TAG in {str(tag) for tag in tags.sys_tags()}


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
def test_it_says_how_old_a_system_may_be():
    # PyPI refuses `linux_x86_64`.
    minor = re.fullmatch("cp311-abi3-manylinux_2_([0-9]+)_[a-z0-9_]+", TAG)
    assert minor, TAG
    needed = [int(found) for path in BINARIES for found in re.findall(rb"\0GLIBC_2\.([0-9]+)(?=[\0.])", path.read_bytes())]
    assert len(needed) > 2
    # The oldest that has all that is asked for, or the oldest that there is a tag of.
    assert int(minor[1]) >= max(needed)
    assert int(minor[1]) <= max(*needed, 17) + 3
