"""Tracebacks as text, for log lines, dead letters and attempts.

The user's code makes a traceback. Its messages may be endless, contain secrets or control
characters, or raise while they are made. Its stack may have thousands of frames.
`describe_traceback` returns text that is safe to store and to print, and never raises:

    frames      those of Longwatch above the first frame of the user are left out; of a stack with
                more than twice `_END_FRAMES` frames, the first and the last are kept
    causes      `__cause__`, `__context__`, notes and exception groups are included; all stacks
                together have at most about `_MAX_FRAMES` frames
    secrets     masked as in log lines, before a cut can remove the name of a secret
    characters  each line is printable; only newlines separate lines
    size        at most `MAX_TRACEBACK_BYTES` in UTF-8: first and last lines are kept

Source lines come from `linecache` and are left out where the file is missing. Columns are not
marked: finding them costs more than everything else together.
"""

from __future__ import annotations

import linecache
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType

from longwatch.core.error_text import describe_error
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import printable, shorten

MAX_TRACEBACK_BYTES = 16 * 1024
"""Longest traceback that is kept, in bytes."""

_MAX_LINE = 4000
_MAX_MASKED_BYTES = 128 * 1024
"""Bytes that are masked: far more than are kept, so that no cut separates a secret from
its name.
"""
_END_FRAMES = 50
_MAX_FRAMES = 400
_PACKAGE = str(Path(__file__).parents[1]) + "/"
_CARRIERS = (
    "<frozen importlib.",
    *(
        f"{Path(linecache.__file__).parent}/{name}/"
        for name in ("asyncio", "concurrent", "importlib")
    ),
)
"""Files whose frames are between Longwatch and the user: they await coroutines and import."""


def describe_traceback(error: BaseException) -> str:
    """Return the traceback of an exception with its causes; its type and text if that fails.

    An exception from another process may carry its text as `remote_traceback`.
    """
    try:
        remote = getattr(error, "remote_traceback", None)
        return bound_traceback(remote if isinstance(remote, str) else "".join(_format(error)))
    except BaseException:  # noqa: BLE001 - the user's code may raise anything here
        return bound_traceback(describe_error(error))


def bound_traceback(text: str) -> str:
    """Return the text of a traceback masked, printable and cut to the largest size."""
    lines = _without_middle(text).rstrip("\n").split("\n")
    kept = _keep_ends([shorten(line, 2 * _MAX_LINE) for line in lines], _MAX_MASKED_BYTES)
    masked = mask_text("\n".join(kept)).split("\n")
    return "\n".join(_keep_ends([_cut(printable(line)) for line in masked], MAX_TRACEBACK_BYTES))


def _without_middle(text: str) -> str:
    """Return both ends of a text that is far too long; the second one begins with a whole line."""
    if len(text) <= 4 * _MAX_MASKED_BYTES:
        return text
    _, _, end = text[-_MAX_MASKED_BYTES:].partition("\n")
    return f"{text[: 2 * _MAX_MASKED_BYTES]}\n  … (more text left out)\n{end}"


def _cut(line: str) -> str:
    data = line.encode()
    return line if len(data) <= _MAX_LINE else data[:_MAX_LINE].decode(errors="ignore") + "…"


def _keep_ends(lines: Sequence[str], max_bytes: int) -> list[str]:
    """Return the lines, or as many of the first and of the last as fit."""
    sizes = [len(line.encode(errors="replace")) + 1 for line in lines]
    if sum(sizes) <= max_bytes:
        return list(lines)
    half = (max_bytes - 100) // 2  # leaves room for the line in between
    head, tail = _count_fitting(sizes, half), _count_fitting(reversed(sizes), half)
    left_out = len(lines) - head - tail
    return [*lines[:head], f"  … ({left_out} lines left out)", *lines[len(lines) - tail :]]


def _count_fitting(sizes: Iterable[int], max_bytes: int) -> int:
    count = 0
    for size in sizes:
        max_bytes -= size
        if max_bytes < 0:
            break
        count += 1
    return count


# --- formatting ---


class _FormattedStack:
    """Takes the place of the stack of a TracebackException, with lines made before."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def format(self, **_: object) -> list[str]:
        return self._lines


def _format(error: BaseException) -> Iterator[str]:
    """Return the lines of an exception and its causes; Python orders and labels them."""
    root = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=0, compact=True
    )
    frames_left = _MAX_FRAMES
    pending = deque([(root, error)])
    while pending:
        formatted, raised = pending.popleft()
        tb = raised.__traceback__
        lines, count = _stack_lines(
            _skip_own(tb) if raised is error else tb, max(min(_END_FRAMES, frames_left // 2), 1)
        )
        frames_left -= count
        formatted.stack = _FormattedStack(lines)  # type: ignore[assignment] # only `format` is called
        pending.extend(_causes(formatted, raised))
    return root.format()


def _causes(
    formatted: traceback.TracebackException, raised: BaseException
) -> Iterator[tuple[traceback.TracebackException, BaseException]]:
    for known, cause in (
        (formatted.__cause__, raised.__cause__),
        (formatted.__context__, raised.__context__),
    ):
        if known is not None and cause is not None:
            yield known, cause
    if isinstance(raised, BaseExceptionGroup):
        yield from zip(formatted.exceptions or (), raised.exceptions, strict=False)


def _skip_own(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the user on; all of it if there is none."""
    first = tb
    while first is not None and _is_own(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or tb


def _is_own(filename: str) -> bool:
    return filename.startswith(_PACKAGE) or filename.startswith(_CARRIERS)


def _stack_lines(tb: TracebackType | None, end_frames: int) -> tuple[list[str], int]:
    """Return the first and the last frames as lines, and how many frames these are."""
    frames = _walk(tb)
    head = list(islice(frames, end_frames))
    tail: deque[TracebackType] = deque(maxlen=end_frames)
    beyond = 0
    for each in frames:
        tail.append(each)
        beyond += 1
    lines = _format_frames(head)
    if beyond > len(tail):
        lines.append(f"  … ({beyond - len(tail)} frames left out)\n")
    return lines + _format_frames(tail), len(head) + len(tail)


def _walk(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _format_frames(frames: Iterable[TracebackType]) -> list[str]:
    summary = traceback.StackSummary()
    for each in frames:
        code = each.tb_frame.f_code
        linecache.lazycache(code.co_filename, each.tb_frame.f_globals)
        summary.append(
            traceback.FrameSummary(
                code.co_filename, each.tb_lineno, code.co_name, lookup_line=False
            )
        )
    return summary.format()
