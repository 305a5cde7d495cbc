"""Which state directories a supervisor refuses because another user could write to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longwatch.app.console import make_state_directory
from longwatch.errors import UsageError
from longwatch.supervisor.state_directory import require_trusted

NOBODY = 65534


def refusal(state: Path) -> str:
    with pytest.raises(UsageError) as refused:
        make_state_directory(state)
    assert not (state / ".gitignore").exists()
    return str(refused.value)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
@pytest.mark.parametrize("below", ["", "logs", "crashes", "evals"])
def test_a_directory_that_every_user_can_write_to_is_refused_with_the_cure(
    tmp_path: Path, mode: int, below: str
) -> None:
    """Also with the sticky bit: others could make the lock file, the ledger or a log first."""
    state = tmp_path / "state"
    directory = state / below
    directory.mkdir(parents=True)
    directory.chmod(mode)
    assert (
        f"the state directory is not safe: {directory} can be written to by every user "
        f"(mode {mode:o}); `chmod o-w` it, or give another --state-dir, such as a new directory "
        f"below it"
    ) == refusal(state)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775])
def test_a_directory_of_this_user_or_its_group_is_used(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    make_state_directory(tmp_path)
    assert "*\n" == (tmp_path / ".gitignore").read_text()


def test_a_link_of_this_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    require_trusted(tmp_path / "state")
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UsageError, match="can be written to by every user"):
        require_trusted(tmp_path / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    logs = tmp_path / "logs"
    logs.symlink_to(tmp_path / "elsewhere")
    os.lchown(logs, NOBODY, NOBODY)
    assert refusal(tmp_path).startswith(
        f"the state directory is not safe: {logs} is a symbolic link of user {NOBODY}; replace it "
        f"by a directory"
    )


def test_a_link_in_place_of_the_ignore_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(0o700)
    (tmp_path / "state" / ".gitignore").symlink_to(tmp_path / "elsewhere")
    make_state_directory(tmp_path / "state")
    assert not (tmp_path / "elsewhere").exists()
