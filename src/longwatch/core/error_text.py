"""Exceptions as text, for rows, events, logs and replies.

The text of an exception is made by the code of users: it can be endless, hold secrets or characters
that no store takes, or raise while it is made. `describe_error` and `error_text` return text that
every store takes, with secrets masked, never longer than `MAX_ERROR_LENGTH`, and never raise.
`os_reason` is for messages to users about files, sockets and processes.
"""

from __future__ import annotations

from longwatch.core.masking import mask_text
from longwatch.core.sanitize import sanitize

MAX_ERROR_LENGTH = 4000
"""Characters of an error that are kept."""


def describe_error(error: BaseException) -> str:
    """Type and text: `ValueError: not a number`."""
    return sanitize(f"{type(error).__name__}: {error_text(error)}", max_length=MAX_ERROR_LENGTH)


def error_text(error: BaseException) -> str:
    """The text alone; a fixed sentence if `str(error)` raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - code of users made it, and an error without a text is still an error
        return "(its text could not be made)"
    # Masked before it is cut: the cut may take away what makes a secret one.
    return sanitize(mask_text(text[: 2 * MAX_ERROR_LENGTH]), max_length=MAX_ERROR_LENGTH)


def os_reason(error: OSError) -> str:
    """Why the operating system refused, in lower case: `permission denied`."""
    return (error.strerror or str(error) or "unknown reason").lower()
