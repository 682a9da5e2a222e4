"""Shared by the tests of the package. They run against the installed package, never the sources beside them."""

import gzip
import json
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = pathlib.Path(os.environ.get("TAMIS_GOLDEN", ROOT / "tests/golden"))

try:
    import tamis._native  # noqa: F401
except ImportError as missing:
    pytest.exit(f"the package is not installed in {sys.executable}: {missing}; scripts/test-package installs it", 2)


@pytest.fixture
def root():
    """The repository."""
    return ROOT


@pytest.fixture
def golden():
    """Reads the cases of a file of reference vectors."""

    def read(name):
        with gzip.open(GOLDEN / f"{name}.json.gz", "rt") as file:
            return json.load(file)["cases"]

    return read


@pytest.fixture
def torch():
    """PyTorch; without it the test is left out."""
    return pytest.importorskip("torch", reason="PyTorch is not installed here")
