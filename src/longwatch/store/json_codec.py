"""Encodes and decodes the JSON values of a store with msgspec, typed if the reader gives a type."""

from __future__ import annotations

from math import isfinite
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from longwatch.errors import InvalidParameterError, SerializationError

BodyT = TypeVar("BodyT")


MAX_BYTES = 1 << 20
"""The default for the most bytes that an encoded value may have."""


class CodecWording(NamedTuple):
    """The words of a codec's error messages."""

    thing: str = "a body"
    expectation: str = "this mailbox was opened for"
    cure: str = "store the data elsewhere and send a reference, or raise max_body_bytes"
    action: str = "sent"


_BODY_WORDING = CodecWording()


class Codec(Generic[BodyT]):
    """Encodes any plain JSON type, dataclass, Struct or TypedDict; decodes to `body_type`."""

    def __init__(
        self,
        body_type: type[BodyT] | Any = Any,
        *,
        max_bytes: int = MAX_BYTES,
        wording: CodecWording = _BODY_WORDING,
    ) -> None:
        self.max_bytes = max_bytes
        self._wording = wording
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[BodyT] = msgspec.json.Decoder(body_type)
        self._body_type = body_type

    def encode(self, body: BodyT) -> bytes:
        try:
            data = self._encoder.encode(body)
        except (TypeError, ValueError, RecursionError, UnicodeError) as error:
            raise self._encode_error(body, str(error)) from None
        try:
            self._require_decodable(body, data)
        except RecursionError as error:
            raise self._encode_error(body, str(error)) from None
        if len(data) > self.max_bytes:
            raise InvalidParameterError(
                f"{self._wording.thing} of {len(data)} bytes is larger than {self.max_bytes}; "
                f"{self._wording.cure}"
            )
        return data

    def decode(self, data: bytes) -> BodyT:
        try:
            return self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - code of the body type runs here and may raise any error
            raise SerializationError(f"{self._wording.thing} cannot be read: {error}") from None

    def _require_decodable(self, body: BodyT, data: bytes) -> None:
        """Raise SerializationError in the sender for a body that no receiver could decode. The
        usual body costs two cheap checks.
        """
        if (
            b"null" in data
            and not isinstance(body, msgspec.Raw)
            and _has_nonfinite(msgspec.to_builtins(body))
        ):
            raise self._encode_error(body, "JSON has no NaN and no infinity")
        if self._body_type is not Any and type(body) is not self._body_type:
            try:
                self.decode(data)
            except SerializationError as error:
                raise self._encode_error(
                    body, f"{self._wording.expectation} {self._body_type!r}; {error}"
                ) from None

    def _encode_error(self, body: object, reason: str) -> SerializationError:
        return SerializationError(
            f"{self._wording.thing} of type {type(body).__name__} cannot be "
            f"{self._wording.action}: {reason}"
        )


def _has_nonfinite(value: Any) -> bool:
    """Return whether the value contains a NaN or an infinity."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_nonfinite, value))
