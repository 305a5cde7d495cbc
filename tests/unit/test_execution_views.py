"""How executions are shown: the errors of attempts."""

from __future__ import annotations

from typing import Any, NamedTuple

from longwatch.cli.execution_views import choose_attempts, error_lines


class FailedAttempt(NamedTuple):
    node: str = "page"
    attempt: int = 1
    end_cause: str = "raised"
    error: str | None = "ValueError: no"
    traceback: str | None = 'Traceback …\n  File "app.py", line 3\nValueError: no'
    element: int | None = None
    number: int = 1


def test_the_error_of_an_attempt_is_followed_by_the_lines_of_its_traceback() -> None:
    attempts: Any = [FailedAttempt(), FailedAttempt(error=None), FailedAttempt(traceback=None)]
    assert [
        "",
        "page, attempt 1, raised: ValueError: no",
        "Traceback …",
        '  File "app.py", line 3',
        "ValueError: no",
        "",
        "page, attempt 1, raised: ValueError: no",
    ] == error_lines(attempts)


def test_the_attempt_of_an_element_has_the_index_of_the_element() -> None:
    attempts: Any = [FailedAttempt(element=3), FailedAttempt(element=-1)]
    assert ["page[3]", "page[removed]"] == [
        line.partition(",")[0] for line in error_lines(attempts) if line.startswith("page")
    ]


def test_errors_are_not_hidden_behind_the_newest_attempts() -> None:
    failed = FailedAttempt(element=0, number=1)
    attempts: Any = [
        failed,
        *(FailedAttempt(element=index, number=index + 1, error=None) for index in (1, 2)),
    ]
    assert [2, 3] == [each.number for each in choose_attempts(attempts, 2, errors_first=False)]
    assert [1, 3] == [each.number for each in choose_attempts(attempts, 2, errors_first=True)]
