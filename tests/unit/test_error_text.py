from __future__ import annotations

import errno
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.error_text import (
    MAX_ERROR_LENGTH,
    describe_error,
    error_text,
    json_reason,
    os_reason,
)
from longwatch.core.traceback_text import describe_traceback


class UnspeakableError(Exception):
    def __init__(self, raised: BaseException) -> None:
        self._raised = raised

    def __str__(self) -> str:
        raise self._raised


@given(text=st.text(st.characters(codec=None)), kind=st.sampled_from([ValueError, SystemExit]))
def test_an_error_is_described_in_words_that_every_store_takes(
    text: str, kind: type[BaseException]
) -> None:
    words = describe_error(kind(text))
    assert words.startswith(f"{kind.__name__}: ")
    assert "\0" not in words
    assert words == words.encode("utf-8").decode("utf-8")


def test_an_error_is_described_in_few_words() -> None:
    assert MAX_ERROR_LENGTH == len(describe_error(ValueError("x" * 1_000_000)))


@pytest.mark.parametrize(
    "raised",
    [RuntimeError("no text"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=repr,
)
def test_an_error_that_has_no_words_is_named(raised: BaseException) -> None:
    assert "UnspeakableError: (its text could not be made)" == describe_error(
        UnspeakableError(raised)
    )


@given(text=st.text())
def test_the_text_alone_is_without_the_type(text: str) -> None:
    assert f"ValueError: {error_text(ValueError(text))}" == describe_error(ValueError(text))


def test_the_text_alone_is_bounded_and_made_for_an_error_that_has_none() -> None:
    assert MAX_ERROR_LENGTH == len(error_text(ValueError("x" * 1_000_000)))
    assert "(its text could not be made)" == error_text(UnspeakableError(SystemExit(3)))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EACCES, os.strerror(errno.EACCES), "/etc/shadow"), "permission denied"),
        (OSError("Name or service not known"), "name or service not known"),
        (OSError(), "unknown reason"),
    ],
)
def test_the_operating_system_is_quoted_in_lower_case_and_without_the_path(
    error: OSError, reason: str
) -> None:
    assert reason == os_reason(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{x", "object keys must be strings (byte 1)"),
        (b"2026-11-18", "trailing characters (byte 5)"),
        (b'{"a": 1', "it ends too early"),
    ],
)
def test_the_reason_why_a_text_is_not_json_does_not_say_so_again(text: bytes, reason: str) -> None:
    with pytest.raises(msgspec.DecodeError) as raised:
        msgspec.json.decode(text)
    assert reason == json_reason(str(raised.value))


@pytest.mark.parametrize("before", range(MAX_ERROR_LENGTH - 60, MAX_ERROR_LENGTH, 3))
def test_no_cut_shows_a_secret_that_lost_its_end(before: int) -> None:
    error = ValueError("x" * before + " postgresql://bob:hunter2@host/name")
    assert "hunt" not in describe_error(error)
    assert "hunt" not in describe_traceback(error)
