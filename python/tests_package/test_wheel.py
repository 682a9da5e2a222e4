"""The wheel's tag: pip takes it here, PyPI takes it at all, and it promises no older system than its files run on."""

import importlib.metadata
import pathlib
import re
import sys

import pytest
from packaging import tags

import tamis

INSTALLED = importlib.metadata.distribution("tamis")
TAG = re.search("(?m)^Tag: (.*)$", INSTALLED.read_text("WHEEL"))[1]
BINARIES = [
    pathlib.Path(sys.executable).parent / "tamis",
    next(pathlib.Path(tamis.__file__).parent.glob("_native*.so")),
]


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
