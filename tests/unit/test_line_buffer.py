from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.capture import CUT_MARK, LineSplitter

LIMIT = 8

short_lines = st.lists(st.binary(max_size=LIMIT).map(lambda line: line.replace(b"\n", b"_")))
any_lines = st.lists(st.binary(max_size=4 * LIMIT).map(lambda line: line.replace(b"\n", b"_")))
cuts = st.lists(st.integers(0, 400), max_size=12)


def chunked(data: bytes, places: list[int]) -> list[bytes]:
    """The data torn at these places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def fed(data: bytes, places: list[int], *, max_line: int = LIMIT) -> list[bytes]:
    """Every block that comes out, the rest last."""
    lines = LineSplitter(max_line)
    return [*(lines.feed(chunk) for chunk in chunked(data, places)), lines.flush()]


def shortened(line: bytes) -> bytes:
    return line + b"\n" if len(line) <= LIMIT else line[:LIMIT] + CUT_MARK


@given(lines=short_lines, places=cuts)
def test_lines_within_the_limit_come_out_as_they_went_in(
    lines: list[bytes], places: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert data == b"".join(fed(data, places))


@given(lines=any_lines, places=cuts)
def test_every_longer_line_is_cut_and_marked_however_it_arrives(
    lines: list[bytes], places: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert b"".join(shortened(line) for line in lines) == b"".join(fed(data, places))


@given(data=st.binary(max_size=60), places=cuts)
def test_every_block_ends_with_a_line_end(data: bytes, places: list[int]) -> None:
    assert all(block.endswith(b"\n") for block in fed(data, places) if block)


@given(
    lines=any_lines,
    last=st.binary(min_size=1, max_size=LIMIT).filter(lambda text: b"\n" not in text),
    places=cuts,
)
def test_what_comes_after_the_last_line_end_is_made_a_line(
    lines: list[bytes], last: bytes, places: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in lines) + last
    assert last + b"\n" == fed(data, places)[-1]


def test_a_line_comes_out_with_the_chunk_that_completes_it() -> None:
    lines = LineSplitter()
    assert b"" == lines.feed(b"on")
    assert b"one\n" == lines.feed(b"e\ntw")
    assert b"two\nthree\n" == lines.feed(b"o\nthree\n")
    assert b"" == lines.flush()


def test_a_long_line_is_told_before_it_ends_and_its_rest_is_skipped() -> None:
    lines = LineSplitter(4)
    assert b"1234" + CUT_MARK == lines.feed(b"12345")
    assert b"" == lines.feed(b"6789")
    assert b"next\n" == lines.feed(b"0\nnext\n")


def test_nothing_is_left_of_a_long_line_without_an_end() -> None:
    lines = LineSplitter(4)
    lines.feed(b"123456")
    assert b"" == lines.flush()


def test_the_rest_is_told_once() -> None:
    lines = LineSplitter()
    lines.feed(b"tail")
    assert b"tail\n" == lines.flush()
    assert b"" == lines.flush()


def test_no_more_than_the_limit_is_kept_of_a_line_that_never_ends() -> None:
    lines = LineSplitter(100)
    told = b"".join(lines.feed(b"x" * 50) for _ in range(1000))
    assert b"x" * 100 + CUT_MARK == told
    assert b"" == lines._pending
