"""The token, the address and the link of the status page, and when `longwatch up` plans one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from longwatch.app import page_plan
from longwatch.app.page_plan import (
    PageLinkPrinter,
    page_link,
    page_token,
    plan_page,
    publish_address,
    published_address,
)
from longwatch.config.discovery import load_config
from longwatch.core.clock import SystemClock
from longwatch.errors import TryAgainError, UsageError
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_listener import ProgramStart

ADDRESS = "http://127.0.0.1:8087/"


def test_every_caller_gets_the_same_token_from_a_file_for_its_user_alone(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(page_token(tmp_path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (8, 1) == (len(found), len(set(found)))
    assert 0o600 == (tmp_path / "page.token").stat().st_mode & 0o777
    assert ["page.token"] == [path.name for path in tmp_path.iterdir()]
    assert page_token(None) != page_token(None)


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o640, "a-token-of-some-length", "can be used by other users"),
        (0o600, "", "holds no token"),
        (0o600, "short", "holds no token"),
        (0o600, "two words of a token", "holds no token"),
    ],
)
def test_a_token_that_others_may_know_or_that_is_none_is_refused(
    tmp_path: Path, mode: int, text: str, said: str
) -> None:
    (tmp_path / "page.token").write_text(text)
    (tmp_path / "page.token").chmod(mode)

    with pytest.raises(UsageError, match=said):
        page_token(tmp_path)


def test_a_link_to_a_token_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-token-of-some-length")
    (tmp_path / "page.token").symlink_to(tmp_path / "secret")

    with pytest.raises(UsageError, match="cannot use"):
        page_token(tmp_path)


def test_an_address_counts_as_long_as_its_page_holds_it(tmp_path: Path) -> None:
    assert "" == published_address(tmp_path)
    held = publish_address(tmp_path, ADDRESS)
    assert held is not None
    assert ADDRESS == published_address(tmp_path)
    assert publish_address(tmp_path, "http://127.0.0.1:9/") is None
    assert f"{ADDRESS}?token={page_token(tmp_path)}" == page_link(tmp_path)

    os.close(held)
    assert "" == published_address(tmp_path)
    with pytest.raises(TryAgainError, match="no status page runs"):
        page_link(tmp_path)


def test_the_link_is_printed_when_the_page_has_started_and_for_no_other_program(
    tmp_path: Path,
) -> None:
    held = publish_address(tmp_path, ADDRESS)
    written: list[bytes] = []
    printed = threading.Event()

    def write(line: bytes) -> None:
        written.append(line)
        printed.set()

    printer = PageLinkPrinter(tmp_path, write, clock=SystemClock())
    for kind in (ProgramKind.COMMAND, ProgramKind.PAGE):
        printer.program_started(ProgramStart(program="page", kind=kind, pid=1, on_demand=False))

    assert printed.wait(30)
    assert [f"status page: {page_link(tmp_path)}\n".encode()] == written
    assert held is not None
    os.close(held)


@pytest.mark.parametrize(
    ("is_planned", "page", "taken", "missing"),
    [
        (True, "", [], []),
        (True, "port = 9000", ["web"], []),
        (False, 'port = "off"', [], []),
        (False, "", ["page"], []),
        (False, "", [], ["jinja2"]),
    ],
)
def test_a_page_is_planned_where_it_is_wanted_possible_and_its_name_is_free(  # noqa: PLR0913, PLR0917 - a table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_planned: bool,  # noqa: FBT001 - a table
    page: str,
    taken: list[str],
    missing: list[str],
) -> None:
    monkeypatch.setattr(page_plan, "missing_libraries", lambda: missing)
    (tmp_path / "longwatch.toml").write_text(f'[page]\n{page}\n[program.web]\ncommand = ["true"]\n')
    loaded = load_config(tmp_path / "longwatch.toml", {})
    plan, problem = plan_page(loaded, {"PATH": "/bin"}, taken=taken)

    assert is_planned == (plan is not None)
    assert ("page" in taken) == (problem is not None)
    if plan is not None:
        assert (ProgramKind.PAGE, False) == (plan.kind, plan.critical)
        assert "token" not in " ".join([*plan.process.argv, *plan.process.env])


def test_other_settings_of_the_page_change_its_plan_so_that_a_reload_restarts_it(
    tmp_path: Path,
) -> None:
    plans = []
    for stores in ("[]", '["sqlite:///a.db"]'):
        (tmp_path / "longwatch.toml").write_text(
            f'[page]\nstores = {stores}\n[program.web]\ncommand = ["true"]\n'
        )
        plan, _ = plan_page(load_config(tmp_path / "longwatch.toml", {}), {}, taken=[])
        plans.append(plan)

    assert plans[0] != plans[1]


def test_an_address_that_is_no_file_counts_as_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / page_plan.ADDRESS_FILE)

    assert not page_plan.published_address(tmp_path)
