"""The wheel's tag: pip accepts it here, PyPI accepts it, and it promises no older system than its files run on."""

import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys
import tarfile
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


@pytest.fixture
def backend(monkeypatch):
    """The build backend, with nothing of maturin but its names."""
    folder = pathlib.Path(__file__).resolve().parents[1] / "wheel_backend"
    monkeypatch.syspath_prepend(str(folder))
    hooks = ("get_requires_for_build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist")
    monkeypatch.setitem(sys.modules, "maturin", types.SimpleNamespace(**dict.fromkeys(hooks)))
    spec = importlib.util.spec_from_file_location("wheel_backend_alone", folder / "tamis_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_program_of_any_name_becomes_the_command(backend, tmp_path, monkeypatch):
    program = tmp_path / "tamis-2026-11-x86_64"
    program.write_bytes(pathlib.Path("/bin/true").read_bytes())
    program.chmod(0o755)
    monkeypatch.setenv("TAMIS_WHEEL_PROGRAM", str(program))
    monkeypatch.setattr(backend, "SCRIPTS", tmp_path / "data" / "scripts")
    staged = backend._stage_program()
    assert [path.name for path in staged.parent.iterdir()] == ["tamis"]
    assert staged.stat().st_mode & 0o111


def test_the_source_distribution_has_what_git_tracks(backend, tmp_path, monkeypatch):
    def prepare(folder):
        pathlib.Path(folder, "tamis-9.9.dist-info").mkdir()
        pathlib.Path(folder, "tamis-9.9.dist-info/METADATA").write_text("Name: tamis\n")
        return "tamis-9.9.dist-info"

    def git(*words):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)

    tree = tmp_path / "tree"
    (tree / "crates").mkdir(parents=True)
    monkeypatch.setattr(backend, "ROOT", tree)
    monkeypatch.setattr(backend, "prepare_metadata_for_build_wheel", prepare)
    with pytest.raises(SystemExit, match="from a checkout of its repository"):
        backend.build_sdist(tmp_path)
    for name in ("pyproject.toml", "Cargo.lock", "crates/a.rs", "run.sh"):
        (tree / name).write_text(name)
    (tree / "run.sh").chmod(0o755)
    git("init")
    git("add", "-A")
    git("commit", "-m", "all")
    (tree / "notes-of-mine").write_text("not tracked")
    (tree / "crates/a.rs").write_text("as it is now")

    name = backend.build_sdist(tmp_path)
    assert name == "tamis-9.9.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        packed = {entry.name: (entry.mode, archive.extractfile(entry).read().decode()) for entry in archive}
    assert packed == {
        "tamis-9.9/Cargo.lock": (0o644, "Cargo.lock"),
        "tamis-9.9/crates/a.rs": (0o644, "as it is now"),
        "tamis-9.9/pyproject.toml": (0o644, "pyproject.toml"),
        "tamis-9.9/run.sh": (0o755, "run.sh"),
        "tamis-9.9/PKG-INFO": (0o644, "Name: tamis\n"),
    }
    first = (tmp_path / name).read_bytes()
    (tree / "run.sh").touch()
    backend.build_sdist(tmp_path)
    assert (tmp_path / name).read_bytes() == first


def test_pip_takes_it():
    assert TAG in {str(tag) for tag in tags.sys_tags()}


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
def test_it_says_how_old_a_system_may_be():
    # PyPI refuses `linux_x86_64`.
    minor = re.fullmatch("cp311-abi3-manylinux_2_([0-9]+)_[a-z0-9_]+", TAG)
    assert minor, TAG
    needed = [int(found) for path in BINARIES for found in re.findall(rb"\0GLIBC_2\.([0-9]+)(?=[\0.])", path.read_bytes())]
    assert len(needed) > 2
    # The oldest system that has everything that is needed, or the oldest with a tag.
    assert int(minor[1]) >= max(needed)
    assert int(minor[1]) <= max(*needed, 17) + 3
