"""Other people's texts in a form that every store takes."""

from __future__ import annotations


def sanitize(text: str, *, max_length: int) -> str:
    """The beginning of a text, with lone surrogates and zero bytes written out: neither can be
    stored everywhere.
    """
    return (
        text[:max_length]
        .encode("utf-8", "backslashreplace")
        .decode()
        .replace("\0", "\\x00")[:max_length]
    )


def is_storable(text: str) -> bool:
    """Whether every store takes it as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
