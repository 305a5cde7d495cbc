"""Long texts of stores as a page shows them: cut, masked, and readable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longwatch.core.masking import MASK, looks_secret, mask_text

MAX_SHOWN_CHARS = 16 * 1024
MAX_LINE_CHARS = 120
_MAX_PARSED_BYTES = 256 * 1024
"""JSON of more bytes is shown as it is, not parsed and indented."""
_READ_AHEAD = 4
"""A text is masked before it is cut, in so many times the length that is shown: a secret may begin
just before the cut.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """The beginning of a text. `size`: its bytes or characters in full. `is_json`: it was valid
    JSON, and is indented.
    """

    text: str
    size: int
    is_cut: bool
    is_json: bool = False


def show_body(data: bytes, *, limit: int = MAX_SHOWN_CHARS) -> ShownText:
    """A body that should be JSON: indented if it is. Other bytes are escaped."""
    if len(data) <= _MAX_PARSED_BYTES:
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            pass
        else:
            text = _dump(parsed)
            cut = text[:limit]
            return ShownText(text=cut, size=len(data), is_cut=cut != text, is_json=True)
    return show_text(
        data[: limit * _READ_AHEAD].decode(errors="backslashreplace"), len(data), limit
    )


def show_text(text: str, size: int | None = None, limit: int = MAX_SHOWN_CHARS) -> ShownText:
    """The beginning of a text, masked. `size`: that of the text in full, if this is a part."""
    masked = mask_text(text[: limit * _READ_AHEAD])
    full = len(text) if size is None else size
    return ShownText(text=masked[:limit], size=full, is_cut=len(masked) > limit or full > len(text))


def show_line(data: bytes, *, limit: int = MAX_LINE_CHARS) -> str:
    """The beginning of a body in one line, masked."""
    start = data[: limit * _READ_AHEAD].decode(errors="backslashreplace")
    masked = mask_text(" ".join(start.split()))
    return masked if len(masked) <= limit and len(data) <= len(start) else f"{masked[:limit]}…"


def error_line(text: str | None, *, limit: int = 200) -> str:
    """The last line of an error that has text, masked: the one that names the error."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return ""
    masked = mask_text(lines[-1][: limit * _READ_AHEAD])
    return masked if len(masked) <= limit else f"{masked[:limit]}…"


def _dump(value: Any) -> str:
    try:
        return json.dumps(_masked(value), indent=2, ensure_ascii=False)
    except RecursionError:
        return mask_text(str(value))


def _masked(value: Any) -> Any:
    match value:
        case str():
            return mask_text(value)
        case Mapping():
            return {
                key: MASK if looks_secret(key) and _may_be_secret(each) else _masked(each)
                for key, each in value.items()
            }
        case list():
            return [_masked(each) for each in value]
        case _:
            return value


def _may_be_secret(value: Any) -> bool:
    return not (value is None or isinstance(value, bool) or value == "")
