from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from longwatch.runner.policy import OutputCheck
from longwatch.runner.workspace import MAX_ARTIFACTS, MAX_DEPTH, Artifact, Workspace

REPORT = OutputCheck(file="output/report.md", min_bytes=3)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "runs", "abc1", event=b"{}", prompt=None)


def test_a_workspace_is_private_and_has_its_input(tmp_path: Path) -> None:
    """Directories are 0700 and files 0600, whatever the umask; the prompt is the input."""
    old = os.umask(0)
    try:
        made = Workspace.create(tmp_path / "runs", "abc1", event=b"{}", prompt=b"Look.")
    finally:
        os.umask(old)
    assert tmp_path / "runs" / "abc1" == made.path
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.path.iterdir()}
    assert {"event.json": 0o600, "prompt.md": 0o600, "output": 0o700} == modes
    assert 0o700 == stat.S_IMODE(made.path.stat().st_mode)
    assert b"Look." == made.input_file.read_bytes()


def test_without_a_prompt_the_event_is_the_input(workspace: Workspace) -> None:
    """Standard input is event.json then."""
    assert workspace.event_file == workspace.input_file
    assert not workspace.prompt_file.exists()


def test_a_workspace_is_made_once(workspace: Workspace) -> None:
    """A directory that is there already is not used again."""
    with pytest.raises(FileExistsError):
        Workspace.create(workspace.path.parent, "abc1", event=b"{}", prompt=None)


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "."])
def test_a_run_id_is_no_path(tmp_path: Path, run_id: str) -> None:
    """No run id leads out of the root."""
    with pytest.raises(ValueError, match="letters and digits"):
        Workspace(tmp_path, run_id)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"abc", ""), (b"ab", "found 2 bytes"), (None, "found none (no such file or directory)")],
)
def test_the_promised_output_is_a_file_of_some_size(
    workspace: Workspace, content: bytes | None, problem: str
) -> None:
    """Its size counts, and an error says what was expected and what was found."""
    if content is not None:
        (workspace.output / "report.md").write_bytes(content)
    found = workspace.missing_output(REPORT)
    assert found.endswith(problem)
    assert bool(problem) == found.startswith("expected output/report.md of at least 3 bytes")


def test_output_outside_the_workspace_does_not_count(workspace: Workspace, tmp_path: Path) -> None:
    """Neither a path with dots nor a link leads to output elsewhere; a link inside does."""
    (tmp_path / "runs" / "other.md").write_text("long enough")
    outside = workspace.missing_output(OutputCheck(file="../other.md"))
    assert "leads out of the workspace" in outside
    (workspace.output / "report.md").symlink_to(tmp_path / "runs" / "other.md")
    assert "leads out of the workspace" in workspace.missing_output(REPORT)
    (workspace.output / "report.md").unlink()
    (workspace.path / "real.md").write_text("long enough")
    (workspace.output / "report.md").symlink_to("../real.md")
    assert not workspace.missing_output(REPORT)


def test_output_that_is_no_file_does_not_count(workspace: Workspace) -> None:
    """A directory, and links in a circle."""
    (workspace.output / "report.md").mkdir()
    assert "not a regular file" in workspace.missing_output(REPORT)
    (workspace.output / "report.md").rmdir()
    (workspace.output / "report.md").symlink_to("report.md")
    assert "found none" in workspace.missing_output(REPORT)


def test_artifacts_are_the_files_below_output(workspace: Workspace, tmp_path: Path) -> None:
    """Links and pipes are left out, also links to directories; wrong bytes in names are escaped."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x")
    (workspace.output / "b").mkdir()
    (workspace.output / "b" / "two.txt").write_text("22")
    (workspace.output / "a.txt").write_text("1")
    (workspace.output / "link").symlink_to(tmp_path / "secret")
    (workspace.output / "key").symlink_to(tmp_path / "secret" / "key")
    os.mkfifo(workspace.output / "pipe")
    Path(os.fsdecode(os.fsencode(workspace.output) + b"/\xff")).touch()
    assert workspace.artifacts() == [
        Artifact("output/\\udcff", 0),
        Artifact("output/a.txt", 1),
        Artifact("output/b/two.txt", 2),
    ]


def test_artifacts_are_bounded(workspace: Workspace) -> None:
    """However many files an agent makes, and however deep."""
    deep = workspace.output.joinpath(*["d"] * MAX_DEPTH)
    deep.mkdir(parents=True)
    (deep / "too-deep").touch()
    assert [] == workspace.artifacts()
    for number in range(MAX_ARTIFACTS + 5):
        (workspace.output / str(number)).touch()
    assert MAX_ARTIFACTS == len(workspace.artifacts())


def test_remove_follows_no_link(workspace: Workspace, tmp_path: Path) -> None:
    """What a link leads to stays, and rights that the agent took away do not matter."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (workspace.output / "link").symlink_to(kept)
    locked = workspace.output / "locked"
    locked.mkdir()
    (locked / "file").touch()
    locked.chmod(0)
    workspace.remove()
    assert not workspace.path.exists()
    assert (kept / "file").exists()
    workspace.remove()


def test_remove_removes_a_link_in_its_place(tmp_path: Path) -> None:
    """A link that has the name of a workspace is removed, not what it leads to."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "abc1").symlink_to(tmp_path / "kept")
    Workspace(tmp_path, "abc1").remove()
    assert ["kept"] == [path.name for path in tmp_path.iterdir()]
