"""What scripts/release refuses, and what it takes from the changelog."""

import importlib.machinery
import importlib.util
import subprocess

import pytest

CHANGELOG = """# Changelog

## 0.2.10 (unreleased)

## 0.2.1 (2026-12-01)

### For those who train

- **A**: what is new.

## 0.2.0

- B.
"""


@pytest.fixture
def release(root):
    loader = importlib.machinery.SourceFileLoader("release", str(root / "scripts/release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    loader.exec_module(module)
    return module


def test_notes_are_the_section_of_the_version(release):
    assert release.notes_of("0.2.1", CHANGELOG) == ("(2026-12-01)", "### For those who train\n\n- **A**: what is new.")
    assert release.notes_of("0.2.0", CHANGELOG) == ("", "- B.")
    with pytest.raises(SystemExit, match="0.2.10: its section is empty"):
        release.notes_of("0.2.10", CHANGELOG)
    with pytest.raises(SystemExit, match=r"no section `## 0.2` \(it has 0.2.10, 0.2.1, 0.2.0\)"):
        release.notes_of("0.2", CHANGELOG)


def test_the_tree_has_its_section(release, root):
    dated, notes = release.notes_of(release.version_of_tree(), (root / "CHANGELOG.md").read_text())
    assert dated.startswith("(") and len(notes) > 1000


def test_a_tree_with_changes_is_refused(release, tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True, capture_output=True
        )

    monkeypatch.setattr(release, "ROOT", tmp_path)
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    release.check_tree("1.0", allow_dirty=False)
    assert release.left_to_do == []
    git("tag", "v1.0")
    release.check_tree("1.0", allow_dirty=False)
    (tmp_path / "a").write_text("2")
    with pytest.raises(SystemExit, match="changes that are not committed:\n M a\n"):
        release.check_tree("1.0", allow_dirty=False)
    release.check_tree("1.0", allow_dirty=True)
    assert ["commit the changes" in item for item in release.left_to_do] == [True]
    git("commit", "-am", "b")
    with pytest.raises(SystemExit, match="the tag v1.0 is on another commit"):
        release.check_tree("1.0", allow_dirty=False)
