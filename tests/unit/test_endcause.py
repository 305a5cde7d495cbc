from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.end_cause import NUMBERED_KINDS, EndCause, EndKind

plain = st.sampled_from([kind for kind in EndKind if kind not in NUMBERED_KINDS]).map(EndCause)
causes = st.one_of(
    st.integers(0, 255).map(EndCause.exit), st.integers(1, 64).map(EndCause.signal), plain
)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (EndCause.exit(0), "exit 0"),
        (EndCause.exit(127), "exit 127"),
        (EndCause.signal(9), "signal 9"),
        (EndCause(EndKind.MEMORY), "memory"),
        (EndCause(EndKind.SPAWN_ERROR), "spawn_error"),
    ],
)
def test_an_end_is_written_with_its_kind_and_its_number(cause: EndCause, text: str) -> None:
    assert text == str(cause)


def test_the_kinds_are_the_words_of_the_product() -> None:
    assert ["exit", "signal", "memory", "spawn_error"] == [kind.value for kind in EndKind]


@given(cause=causes)
def test_what_was_written_can_be_read(cause: EndCause) -> None:
    assert cause == EndCause.parse(str(cause))


@given(cause=causes)
def test_the_text_is_a_plain_string(cause: EndCause) -> None:
    assert str is type(str(cause))


@pytest.mark.parametrize("text", ["", "exit", "signal ", "exit x", "memory 3", "gone", "exit 1 2"])
def test_what_is_no_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - int and Enum word it in their own ways
        EndCause.parse(text)


@pytest.mark.parametrize("kind", EndKind)
def test_only_exits_and_signals_have_a_number_and_they_always_do(kind: EndKind) -> None:
    wrong = None if kind in NUMBERED_KINDS else 1

    with pytest.raises(ValueError, match=f"an end cause of kind {kind} (needs a|has no) number"):
        EndCause(kind, wrong)


@given(code=st.integers(0, 255))
def test_a_wait_status_with_a_code_is_an_exit(code: int) -> None:
    assert EndCause.exit(code) == EndCause.from_wait_status(code << 8)


@given(number=st.integers(1, 64), core=st.sampled_from([0, 0x80]))
def test_a_wait_status_with_a_signal_is_a_signal_with_or_without_a_core_dump(
    number: int, core: int
) -> None:
    assert EndCause.signal(number) == EndCause.from_wait_status(number | core)


def test_the_status_of_a_process_that_only_stopped_is_refused() -> None:
    with pytest.raises(ValueError, match="stopped by delivery of signal"):
        EndCause.from_wait_status((signal.SIGSTOP << 8) | 0x7F)


@given(cause=causes)
def test_the_exit_code_is_what_a_shell_would_report(cause: EndCause) -> None:
    expected = {EndKind.EXIT: cause.number, EndKind.SIGNAL: 128 + (cause.number or 0)}.get(
        cause.kind, 1
    )

    assert expected == cause.exit_code


def test_the_helpers_agree_with_the_standard_library() -> None:
    assert 3 == os.waitstatus_to_exitcode(3 << 8) == EndCause.from_wait_status(3 << 8).exit_code


@pytest.mark.parametrize(
    ("cause", "spoken"),
    [
        (EndCause.signal(signal.SIGKILL), "SIGKILL"),
        (EndCause.signal(63), "signal 63"),
        (EndCause.exit(1), "exit 1"),
        (EndCause(EndKind.SPAWN_ERROR), "spawn_error"),
    ],
)
def test_people_are_told_a_signal_by_its_name_if_it_has_one(cause: EndCause, spoken: str) -> None:
    assert spoken == cause.display_name
