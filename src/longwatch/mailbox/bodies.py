"""Bodies on their way in and out: msgspec JSON, typed by what the mailbox was opened with."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from longwatch.errors import InvalidParameterError, SerializationError
from longwatch.mailbox.bounds import LARGEST_BODY

BodyT = TypeVar("BodyT")


class Codec(Generic[BodyT]):
    """Encodes any plain JSON type, dataclass, Struct or TypedDict; decodes to `body_type`."""

    def __init__(self, body_type: type[BodyT] | Any = Any, *, largest: int = LARGEST_BODY) -> None:
        self.largest = largest
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[BodyT] = msgspec.json.Decoder(body_type)

    def encode(self, body: BodyT) -> bytes:
        try:
            data = self._encoder.encode(body)
        except (TypeError, ValueError, RecursionError, UnicodeError) as error:
            raise SerializationError(f"a body of type {type(body).__name__} cannot be written as JSON: {error}") from None
        if len(data) > self.largest:
            raise InvalidParameterError(
                f"a body of {len(data)} bytes is larger than {self.largest}; send where it is stored instead, or raise largest_body"
            )
        return data

    def decode(self, data: bytes) -> BodyT:
        try:
            return self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - the body type's own code runs here, and may raise anything
            raise SerializationError(f"a body cannot be read: {error}") from None
