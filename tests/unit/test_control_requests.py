"""What the supervisor accepts on its control socket, and what it refuses before it acts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from longwatch.core.fake_clock import FakeClock
from longwatch.errors import UsageError
from longwatch.supervisor.commands import START_TIMEOUT, ProgramCommands
from longwatch.supervisor.control_requests import ControlRequests

Facts = dict[str, Any]


class RecordedCommands:
    """Stands for `ProgramCommands`; records each call and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[str, ...], Facts]] = []

    def __getattr__(self, command: str) -> Any:
        async def record(*names: str, **options: Any) -> list[Facts]:
            self.calls.append((command, names, options))
            return [{"name": name} for name in names]

        return record


class Rig:
    def __init__(self) -> None:
        self.commands = RecordedCommands()
        self._requests = ControlRequests(
            cast("ProgramCommands", self.commands),
            self.commands.reload,
            Path("/state"),
            cast("Any", SimpleNamespace(pid=os.getpid())),
            clock=FakeClock(),
            extra_status={},
            extra_requests={"greet": lambda: {"greeting": "hello"}, "wait": self._wait},
        )

    async def _wait(self) -> Facts:
        await asyncio.sleep(0)
        return {"waited": True}

    def handle(self, request: Facts) -> Facts:
        return asyncio.run(self._requests.handle(request))

    def refusal(self, request: Facts) -> str:
        """The error of a refused request, of which nothing was done."""
        with pytest.raises(UsageError) as refused:
            self.handle(request)
        assert [] == self.commands.calls
        return str(refused.value)


@pytest.mark.parametrize("command", ["stop", "start", "restart", "reset", "clear-liveness"])
def test_a_misspelled_key_is_refused_with_the_nearest_and_nothing_is_done(command: str) -> None:
    assert (
        f'unknown key "program" in a {command} request; did you mean programs?'
    ) == Rig().refusal({"do": command, "program": ["x"]})


@pytest.mark.parametrize("command", ["stop", "start", "restart", "reset", "clear-liveness"])
@pytest.mark.parametrize("selection", [{}, {"programs": []}, {"all": False}])
def test_a_command_that_names_nothing_is_refused(command: str, selection: Facts) -> None:
    assert (f'a {command} request needs "programs" or "all": true, got neither') == Rig().refusal(
        {"do": command, **selection}
    )


@pytest.mark.parametrize(
    ("request_keys", "error"),
    [
        ({"programs": "web"}, '"programs" must be a list of names, not "web"'),
        ({"programs": ["web", 7]}, '"programs" must be a list of names, not ["web", 7]'),
        ({"programs": None}, '"programs" must be a list of names, not null'),
        ({"all": 1}, '"all" must be true or false, not 1'),
        ({"all": "true"}, '"all" must be true or false, not "true"'),
        (
            {"programs": ["web"], "all": True},
            'expected "programs" or "all": true, got both; remove one',
        ),
        ({"all": True, "ready": "yes"}, '"ready" must be true or false, not "yes"'),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(request_keys: Facts, error: str) -> None:
    assert error == Rig().refusal({"do": "start", **request_keys})


@pytest.mark.parametrize("seconds", [None, True, "7", 0, -1, 86_401, float("nan")])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(seconds: object) -> None:
    error = Rig().refusal({"do": "start", "all": True, "timeout": seconds})
    assert error.startswith('"timeout" must be a number of seconds, more than 0 and a day at most')


def test_a_key_of_another_command_is_refused() -> None:
    assert 'unknown key "ready" in a stop request; it takes "do", "programs", "all"' == (
        Rig().refusal({"do": "stop", "programs": ["web"], "ready": True})
    )
    assert 'unknown key "all" in a reload request; it takes "do"' == (
        Rig().refusal({"do": "reload", "all": True})
    )


@pytest.mark.parametrize(
    ("request_keys", "error"),
    [
        ({"do": "stopp", "all": True}, 'unknown command "stopp"; did you mean stop?'),
        ({"do": ["stop"]}, 'unknown command ["stop"]; did you mean stop?'),
        ({"do": "x" * 500}, f'unknown command "{"x" * 58}…; there are: status, start, stop, '),
        ({}, 'a request names its command with "do"; there are: status, start, stop, '),
    ],
)
def test_an_unknown_command_is_refused(request_keys: Facts, error: str) -> None:
    assert Rig().refusal(request_keys).startswith(error)


def test_a_command_for_all_programs_says_so() -> None:
    rig = Rig()
    rig.handle({"do": "stop", "all": True})
    rig.handle({"do": "restart", "programs": ["web"], "ready": True, "timeout": 5})
    rig.handle({"do": "start", "programs": ["web", "job"], "all": False})
    assert [
        ("stop", (), {}),
        ("restart", ("web",), {"ready": True, "timeout": 5.0}),
        ("start", ("web", "job"), {"ready": False, "timeout": START_TIMEOUT}),
    ] == rig.commands.calls


def test_a_status_may_name_nothing() -> None:
    rig = Rig()
    assert [] == rig.handle({"do": "status"})["programs"]
    assert ["web"] == [
        each["name"] for each in rig.handle({"do": "status", "programs": ["web"]})["programs"]
    ]


def test_the_code_around_the_supervisor_answers_its_own_commands() -> None:
    rig = Rig()
    assert {"greeting": "hello"} == rig.handle({"do": "greet"})
    assert {"waited": True} == rig.handle({"do": "wait"})
    assert 'unknown command "greeet"; did you mean greet?' == rig.refusal({"do": "greeet"})
    assert 'unknown key "all" in a greet request; it takes "do"' == rig.refusal(
        {"do": "greet", "all": True}
    )
