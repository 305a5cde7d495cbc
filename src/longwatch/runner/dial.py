"""The headers, token and certificates of a request to an event source.

The files are read at each dial, so that a rotated token or certificate counts from the next
connection on.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from longwatch.core.error_text import os_reason
from longwatch.runner.policy import SourceSpec
from longwatch.runner.reconnect import Failure, FailureReason, StreamFailedError

CONNECT_TIMEOUT = 30.0
_MAX_TOKEN_BYTES = 1 << 16


def credential_headers(spec: SourceSpec) -> dict[str, str]:
    """Return the configured headers and the bearer token, which only the source's own server may
    see.
    """
    headers = dict(spec.headers)
    if spec.token_file is not None:
        for name in [name for name in headers if name.lower() == "authorization"]:
            del headers[name]
        headers["Authorization"] = f"Bearer {_read_token(spec.token_file)}"
    return headers


def tls_context(spec: SourceSpec, *, with_certificate: bool = True) -> ssl.SSLContext:
    """Return the TLS context with the trusted authorities and the client certificate."""
    try:
        context = ssl.create_default_context(cafile=spec.ca_file)
        if spec.cert_file is not None and with_certificate:
            context.load_cert_chain(spec.cert_file, spec.key_file)
    except OSError as error:  # an ssl.SSLError is one
        names = ", ".join(
            f"{name} {path}"
            for name, path in (
                ("ca_file", spec.ca_file),
                ("cert_file", spec.cert_file),
                ("key_file", spec.key_file),
            )
            if path is not None
        )
        raise StreamFailedError(
            Failure(reason=FailureReason.TLS, error=f"cannot use {names}: {os_reason(error)}")
        ) from error
    return context


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "it is not ASCII text"
        raise _bad_token(path, reason) from error
    if not token or not token.isprintable():
        raise _bad_token(path, "expected one line of text with a token")
    return token


def _bad_token(path: Path, reason: str) -> StreamFailedError:
    return StreamFailedError(
        Failure(
            reason=FailureReason.NETWORK_ERROR, error=f"cannot read token_file {path}: {reason}"
        )
    )
