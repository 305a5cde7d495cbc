"""Tracebacks as text: what is in them, what is not, and that nothing breaks them."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.masking import mask_mapping
from longwatch.core.traceback_text import (
    MAX_TRACEBACK_BYTES,
    bound_traceback,
    describe_traceback,
)


def raised_by(code: Callable[[], object]) -> BaseException:
    try:
        code()
    except BaseException as error:  # noqa: BLE001 - tests raise all kinds
        return error
    raise AssertionError("it did not raise")


def look_up() -> object:
    empty: dict[str, object] = {}
    return empty["missing"]


def wrap() -> None:
    try:
        look_up()
    except KeyError as error:
        raise ValueError("no such order") from error


def test_it_names_files_lines_functions_source_and_the_cause_first() -> None:
    text = describe_traceback(raised_by(wrap))
    assert f'File "{__file__}", line ' in text
    assert "in look_up\n    return empty[\"missing\"]\nKeyError: 'missing'\n" in text
    assert "direct cause of the following exception" in text
    assert text.index("KeyError: 'missing'") < text.index("in wrap\n    raise ValueError")
    assert text.endswith("ValueError: no such order")


def test_the_context_and_every_exception_of_a_group_are_in_it() -> None:
    def several() -> None:
        try:
            look_up()
        except KeyError:
            raise BaseExceptionGroup("several", [raised_by(wrap), OSError("full")])  # noqa: B904 - the context is the point

    text = describe_traceback(raised_by(several))
    for part in ("During handling of", "several (2 sub-exc", "no such order", "OSError: full"):
        assert part in text


class BrokenMapping(dict[str, object]):
    def items(self) -> Any:
        return look_up()


def test_frames_of_longwatch_before_those_of_the_user_are_left_out() -> None:
    """A reader looks for the own code. An error of Longwatch alone keeps its frames."""
    error = raised_by(lambda: mask_mapping(BrokenMapping()))
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    from_longwatch = error.with_traceback(error.__traceback__.tb_next.tb_next)
    text = describe_traceback(from_longwatch)
    assert "masking.py" not in text
    assert "in items\n    return look_up()" in text
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    error.__traceback__.tb_next = None
    assert "masking.py" in describe_traceback(error)


def test_a_secret_in_a_message_and_in_a_source_line_is_masked() -> None:
    def connect() -> None:
        raise OSError("postgresql://shop:hunter2@db refused; password=hunter2")

    text = describe_traceback(raised_by(connect))
    assert "hunter2" not in text
    assert "postgresql://***@db" in text


@pytest.mark.parametrize("before", range(0, 40_000, 1999))
def test_no_cut_shows_a_secret_that_lost_its_name(before: int) -> None:
    """Wherever a long text is cut, the name that makes a value a secret goes before the value."""
    text = "x" * before + "\n" + "y " * 8000 + "password=hunter2 " + "z" * 30_000 + "\nend"
    assert "hunter2" not in bound_traceback(text)
    lines = "line\n" * (before // 5) + "password=hunter2\n" + "line\n" * 20_000
    assert "hunter2" not in bound_traceback(lines)


class UnprintableError(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __str__(self) -> str:
        raise self.error


def recurse() -> None:
    recurse()


def chain(depth: int) -> None:
    try:
        if depth:
            chain(depth - 1)
        else:
            look_up()
    except (KeyError, ValueError):
        raise ValueError(depth)  # noqa: B904 - a chain of contexts is the point


def fail(error: BaseException) -> Callable[[], None]:
    def code() -> None:
        raise error

    return code


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (fail(UnprintableError(SystemExit(1))), "UnprintableError: "),
        (fail(UnprintableError(RecursionError())), "UnprintableError: "),
        (recurse, "frames left out"),
        (recurse, "RecursionError: maximum recursion depth"),
        (lambda: chain(200), "KeyError: 'missing'"),
        (lambda: chain(200), "ValueError: 200"),
        (fail(ValueError("é" * 10_000_000)), "ValueError: é"),
        (fail(ValueError("é\n" * 1_000_000)), "left out)"),
        (fail(ValueError("half \udc80 pair")), "half \\udc80 pair"),
        (fail(ValueError("a\0b\x1b[31mc\rd\u2028e")), "a\\x00b\\x1b[31mc\\rd\\u2028e"),
        (fail(ValueError("two\nlines")), "ValueError: two\nlines"),
        (lambda: compile("a b", "<typed>", "exec"), "SyntaxError: invalid syntax"),
        (fail(SystemExit(3)), "SystemExit: 3"),
    ],
)
def test_whatever_is_raised_its_text_is_printable_bounded_and_has_what_matters(
    code: Callable[[], object], shown: str
) -> None:
    text = describe_traceback(raised_by(code))
    assert shown in text
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.startswith("Traceback (most recent call last):\n")


def test_of_a_long_one_both_ends_are_kept() -> None:
    text = describe_traceback(raised_by(lambda: chain(200)))
    assert len(text.encode()) > MAX_TRACEBACK_BYTES // 2
    head, tail = text.split("lines left out)")
    assert "in look_up" in head
    assert tail.endswith("ValueError: 200")


def test_a_frame_whose_file_is_gone_is_named_without_its_source(tmp_path: Path) -> None:
    path = tmp_path / "gone.py"
    path.write_text("def work():\n    raise ValueError('no')\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    path.unlink()
    linecache.clearcache()
    text = describe_traceback(raised_by(names["work"]))
    assert f'File "{path}", line 2, in work\nValueError: no' in text


def test_an_exception_of_another_process_brings_its_own_text() -> None:
    error = ValueError("no")
    error.remote_traceback = "Traceback …\nValueError: token=abc"  # type: ignore[attr-defined]
    assert "Traceback …\nValueError: token=***" == describe_traceback(error)
