"""The build backend of pyproject.toml: maturin's, with the program `tamis` in the wheel.

maturin builds the native module. The program is a binary of its own and not a function of that module: it starts child
processes of itself, handles signals and looks beside its own file, none of which may depend on a Python around it. So
it is built first and goes into the wheel as a script, which pip puts into the `bin` folder of the environment.

Variables of the environment:

    TAMIS_WHEEL_PROFILE   cargo's profile of both, `release` unless set; `dev` builds fast and runs slowly
    TAMIS_WHEEL_PROGRAM   a program that is built already, to be taken as it is
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import maturin

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILE = os.environ.get("TAMIS_WHEEL_PROFILE", "release")
# That of `tool.maturin.data` in pyproject.toml.
SCRIPTS = ROOT / "target/wheel/tamis.data/scripts"

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable


def _build_program() -> pathlib.Path:
    """Builds the program; the path of it."""
    cargo = shutil.which("cargo")
    if cargo is None:
        sys.exit("building tamis needs a Rust toolchain (`cargo` was not found): https://rustup.rs installs one")
    command = [cargo, "build", "--locked", "--profile", PROFILE, "--package", "tamis-cli", "--bin", "tamis"]
    print("building the program:", *command[1:], file=sys.stderr, flush=True)
    command.append("--message-format=json-render-diagnostics")
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("cargo could not build the program (above)")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    executables = [message["executable"] for message in messages if message.get("executable")]
    return pathlib.Path(executables[-1])


def _stage_program() -> None:
    """Puts the program where maturin takes it from."""
    ready = os.environ.get("TAMIS_WHEEL_PROGRAM")
    program = pathlib.Path(ready) if ready else _build_program()
    shutil.rmtree(SCRIPTS.parent, ignore_errors=True)
    SCRIPTS.mkdir(parents=True)
    staged = SCRIPTS / program.name
    shutil.copy2(program, staged)
    strip = shutil.which("strip")
    if strip is not None:
        # A third of the file is names of symbols.
        subprocess.run([strip, str(staged)], check=False)


def _with_profile() -> None:
    """Tells maturin the profile."""
    os.environ["MATURIN_PEP517_ARGS"] = f"--profile {PROFILE}"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """The metadata of the wheel."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel: Python modules, native module, program."""
    _stage_program()
    _with_profile()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel whose Python modules are those of the repository."""
    _stage_program()
    _with_profile()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """There is none: the program's crates are no part of the module's, from which maturin collects sources."""
    sys.exit("tamis has no source distribution: build from a checkout of the repository")
