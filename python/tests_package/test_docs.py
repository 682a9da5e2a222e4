"""Runs the examples of docs/python.md unchanged."""

import importlib.util
import re

import pytest


def test_examples_of_the_page(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (root / "docs/python.md").read_text()
    examples = re.findall(r"^```python(?: (torch|numpy))?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 6
    # One after the other, as a reader types them.
    names = {}
    left_out = 0
    for needs, example in examples:
        if needs and not importlib.util.find_spec(needs):
            left_out += 1
            continue
        exec(compile(example, "docs/python.md", "exec"), names)
    if left_out:
        pytest.skip(f"{left_out} example(s) need PyTorch or NumPy; the others passed")


def test_ranges_are_those_of_the_tested_versions(root):
    tomllib = pytest.importorskip("tomllib")
    packaging = pytest.importorskip("pip._vendor.packaging.requirements")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    tested = dict(
        line.split("==")
        for line in (root / "python/requirements-torch.txt").read_text().split()
        if "==" in line
    )
    for line in project["optional-dependencies"]["torch"]:
        requirement = packaging.Requirement(line)
        assert requirement.specifier.contains(tested[requirement.name]), line
