"""What the HTTP library may log."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


def http_logger() -> logging.Logger:
    """The logger of the HTTP library. It leaves out malformed requests: every process of this
    machine can send them, and their first lines may contain the token.
    """
    logger = logging.getLogger("longwatch.page.http")
    logger.addFilter(_is_no_malformed_request)
    return logger


def _is_no_malformed_request(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
