"""The build backend of pyproject.toml: maturin's, with the program `tamis` in the wheel.

maturin builds the native module. The program is a binary of its own and not a function of that module: it starts child
processes of itself, handles signals and looks beside its own file, none of which may depend on a Python around it. So
it is built first and goes into the wheel as a script, which pip puts into the `bin` folder of the environment.

On Linux the wheel's tag says how old a system may be (`manylinux_2_N`, which PyPI asks for). maturin finds N
for the native module; if the program needs a newer glibc, its N is used. If either is linked with a library
that not every system has, the tag is `linux`, which fits similar machines and is refused by PyPI.

The source distribution is the repository: all files that git tracks. The crates read files of one another, of
python/ and of docs/, so a selection would only be a list to forget a file in.

Variables of the environment:

    TAMIS_WHEEL_PROFILE   cargo's profile of both, `release` unless set; `dev` builds fast and runs slowly
    TAMIS_WHEEL_PROGRAM   a program that is built already, to be taken as it is
    TAMIS_WHEEL_TARGET    a target of rustc (`aarch64-unknown-linux-gnu`) to build for, unless it is this machine; cargo
                          needs its standard library and a linker for it
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import maturin
from elf_needs import read_needs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILE = os.environ.get("TAMIS_WHEEL_PROFILE", "release")
TARGET = os.environ.get("TAMIS_WHEEL_TARGET")
# That of `tool.maturin.data` in pyproject.toml.
SCRIPTS = ROOT / "target/wheel/tamis.data/scripts"

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist


def _build_program() -> pathlib.Path:
    """Builds the program; the path of it."""
    cargo = shutil.which("cargo")
    if cargo is None:
        sys.exit("building tamis needs a Rust toolchain (`cargo` was not found): https://rustup.rs installs one")
    # The build script that packs the package does not notice a file that is new there.
    script, package = ROOT / "crates/tamis-train/build.rs", ROOT / "python/tamis"
    folders = [folder for folder in package.iterdir() if folder.is_dir() and folder.name != "__pycache__"]
    if any(folder.stat().st_mtime > script.stat().st_mtime for folder in folders):
        script.touch()
    command = [cargo, "build", "--locked", "--profile", PROFILE, "--package", "tamis-cli", "--bin", "tamis"]
    if TARGET:
        command += ["--target", TARGET]
    print("building the program:", *command[1:], file=sys.stderr, flush=True)
    command.append("--message-format=json-render-diagnostics")
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("cargo could not build the program (above)")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    executables = [message["executable"] for message in messages if message.get("executable")]
    return pathlib.Path(executables[-1])


def _stage_program() -> pathlib.Path:
    """Copies the program to the place from which maturin takes it. Returns that place."""
    ready = os.environ.get("TAMIS_WHEEL_PROGRAM")
    program = pathlib.Path(ready) if ready else _build_program()
    shutil.rmtree(SCRIPTS.parent, ignore_errors=True)
    SCRIPTS.mkdir(parents=True)
    # The command that it installs, whatever the program is called.
    staged = SCRIPTS / f"tamis{program.suffix if program.suffix == '.exe' else ''}"
    shutil.copy2(program, staged)
    # Another machine's program needs the strip of its own tools: `aarch64-linux-gnu-strip`.
    strip = shutil.which(f"{TARGET.replace('-unknown', '')}-strip" if TARGET else "strip")
    if strip is not None:
        # A third of the file is names of symbols.
        subprocess.run([strip, str(staged)], check=False)
    return staged


def _with_options(compatibility: str = "off") -> None:
    """Tells maturin the profile, and the tag of the platform: `off` is that of this machine, nothing the oldest that fits."""
    arguments = f"--profile {PROFILE} --auditwheel check --compatibility {compatibility}".strip()
    os.environ["MATURIN_PEP517_ARGS"] = f"{arguments} --target {TARGET}" if TARGET else arguments


def _newer_tag(wheel: str, program: pathlib.Path) -> str | None:
    """The wheel's tag with the program; None if it does not change."""
    needs = read_needs(program)
    fits = re.search(r"manylinux_2_([0-9]+)_", wheel)
    if needs is None or fits is None:
        return None
    if needs.foreign:
        print(f"the program needs {', '.join(needs.foreign)}: the wheel is for this machine alone", file=sys.stderr)
        return "linux"
    return f"manylinux_2_{needs.glibc_minor}" if needs.glibc_minor > int(fits[1]) else None


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """The metadata of the wheel."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel: Python modules, native module, program."""
    program = _stage_program()
    _with_options(compatibility="")
    wheel = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    tag = _newer_tag(wheel, program)
    if tag is None:
        return wheel
    # Compiled files are kept: this packs the wheel again.
    (pathlib.Path(wheel_directory) / wheel).unlink()
    _with_options(tag)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel whose Python modules are those of the repository."""
    _stage_program()
    _with_options()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """The source distribution: what git tracks, as it is in the work tree, and the metadata."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    tracked = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    if listed.returncode != 0 or "pyproject.toml" not in tracked:
        sys.exit("a source distribution of tamis has the files that git tracks: make it from a checkout of its repository")
    with tempfile.TemporaryDirectory() as scratch:
        folder = prepare_metadata_for_build_wheel(scratch)
        metadata = (pathlib.Path(scratch) / folder / "METADATA").read_bytes()
    base = folder.removesuffix(".dist-info")
    # The same sources give the same bytes.
    moment = int(os.environ.get("SOURCE_DATE_EPOCH") or _date_of_commit())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, data: bytes, mode: int) -> None:
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), mode, moment
            archive.addfile(entry, io.BytesIO(data))

        for name in tracked:
            add(name, (ROOT / name).read_bytes(), 0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
        add("PKG-INFO", metadata, 0o644)
    sdist = f"{base}.tar.gz"
    (pathlib.Path(sdist_directory) / sdist).write_bytes(gzip.compress(packed.getvalue(), mtime=moment))
    return sdist


def _date_of_commit() -> str:
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
