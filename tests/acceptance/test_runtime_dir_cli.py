"""Commands beside a runtime directory that this user cannot trust."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from run_process import run_longwatch
from up_process import SLEEPER, write_config


@pytest.fixture
def untrusted() -> Iterator[dict[str, str]]:
    """The environment of a user whose runtime directory is open to others."""
    with TemporaryDirectory(dir="/tmp") as short:
        root = Path(short, f"longwatch-{os.geteuid()}")
        root.mkdir()
        root.chmod(0o777)
        yield {"XDG_RUNTIME_DIR": short, "TMPDIR": short}


PROBLEM = "is open to other users (mode 777); `chmod 700` it, or set XDG_RUNTIME_DIR"


def test_a_message_is_sent_and_handled_with_a_warning(
    longwatch_bin: Path, tmp_path: Path, untrusted: dict[str, str]
) -> None:
    sent = run_longwatch(longwatch_bin, tmp_path, "mailbox", "send", "jobs", "7", env=untrusted)
    assert 0 == sent.returncode, sent.stderr
    [warning] = sent.stderr.splitlines()
    assert warning.startswith("messages of other processes are found by polling")
    assert PROBLEM in warning
    (tmp_path / "app.py").write_text(
        "from longwatch.mailbox import open_mailbox\n"
        "from longwatch.runtime import MainLoop\n"
        "class Jobs(MainLoop[int, None]):\n"
        "    def handle(self, request, context):\n"
        "        print('handled', request, flush=True)\n"
        "Jobs(requests=open_mailbox('sqlite:///longwatch.db', 'jobs'))"
        ".run(max_iterations=1, wait_time_seconds=1)\n"
    )
    python = longwatch_bin.with_name("python")
    handled = run_longwatch(python, tmp_path, "app.py", env=untrusted)
    assert (0, "handled 7\n") == (handled.returncode, handled.stdout), handled.stderr


@pytest.mark.parametrize("command", [("up",), ("run", "--", "true")])
def test_a_supervisor_refuses_to_start_with_the_cure(
    longwatch_bin: Path, tmp_path: Path, untrusted: dict[str, str], command: tuple[str, ...]
) -> None:
    """Not with 75, which asks for another try."""
    write_config(tmp_path, {"web": SLEEPER})
    refused = run_longwatch(longwatch_bin, tmp_path, *command, env=untrusted)
    assert 2 == refused.returncode
    assert PROBLEM in refused.stderr.splitlines()[-1]
