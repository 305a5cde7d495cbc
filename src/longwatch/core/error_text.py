"""Exceptions as text, for rows, events, logs and replies.

The user's code makes the text of an exception. It can be endless, contain secrets or characters
that no store accepts, or raise while it is made. `describe_error` and `error_text` never raise.
They return text that every store accepts, with secrets masked, of at most `MAX_ERROR_LENGTH`.
`os_reason` is for messages to users about files, sockets and processes, `json_reason` for those
about text that is not JSON.
"""

from __future__ import annotations

from longwatch.core.masking import mask_text
from longwatch.core.sanitize import sanitize

MAX_ERROR_LENGTH = 4000
"""Longest text of an error that is kept, in characters."""


def describe_error(error: BaseException) -> str:
    """Return the type and text of an error: `ValueError: not a number`."""
    return sanitize(f"{type(error).__name__}: {error_text(error)}", max_length=MAX_ERROR_LENGTH)


def error_text(error: BaseException) -> str:
    """Return the text of an error; a fixed sentence if `str(error)` raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the user's code may raise anything here
        return "(its text could not be made)"
    # Masked before it is cut, because a cut can remove the name by which a secret is recognised.
    return sanitize(mask_text(text[: 2 * MAX_ERROR_LENGTH]), max_length=MAX_ERROR_LENGTH)


def os_reason(error: OSError) -> str:
    """Return why the operating system refused, in lower case: `permission denied`."""
    return (error.strerror or str(error) or "unknown reason").lower()


def json_reason(message: str) -> str:
    """Return why a text is not JSON, from the message of the decoder: `trailing characters (byte
    5)`.
    """
    reason = message.removeprefix("JSON is malformed: ")
    if reason == "Input data was truncated":
        return "it ends too early"
    return reason[:1].lower() + reason[1:]
