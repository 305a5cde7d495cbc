"""Encodes values to JSON for a store and decodes them, to a declared type where there is one.

A value whose readers could not decode it is refused when it is encoded: its sender can still
correct it. The check decodes the encoded value, so it accepts exactly what a reader accepts. Values
of plain JSON types in a store without a declared type skip it.
"""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from functools import lru_cache
from math import isfinite
from types import NoneType
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
_PLAIN_TYPES = frozenset({str, int, float, bool, NoneType, dict, list, tuple})
"""Types without fields. A value of such a type is readable as that type."""
_LOCATED_REASON = re.compile(r"(.+) - at `\$\.?([^`]+)`", re.DOTALL)
"""A reason of msgspec, and the path of the field that it is about."""


class Codec(Generic[BodyT]):
    """Encodes any plain JSON type, dataclass, Struct or TypedDict; decodes to `body_type`.

    Without a `body_type`, the fields of a dataclass, Struct, attrs class or named tuple are
    checked against their own annotations, unless `checks_fields` is False.
    """

    def __init__(
        self,
        body_type: type[BodyT] | Any = Any,
        *,
        max_bytes: int = MAX_BYTES,
        wording: CodecWording = _BODY_WORDING,
        checks_fields: bool = True,
    ) -> None:
        self.max_bytes = max_bytes
        self._checks_fields = checks_fields
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
        """Raise SerializationError for a value that readers could not decode."""
        if (
            b"null" in data
            and not isinstance(body, msgspec.Raw)
            and _has_nonfinite(msgspec.to_builtins(body))
        ):
            raise self._encode_error(body, "JSON has no NaN and no infinity")
        if self._body_type is not Any:
            self._require_body_type(body, data)
        elif self._checks_fields and type(body) not in _PLAIN_TYPES:
            self._require_field_types(body, data)

    def _require_body_type(self, body: BodyT, data: bytes) -> None:
        if type(body) is self._body_type and type(body) in _PLAIN_TYPES:
            return
        try:
            self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - the body type's own code runs here, and may raise anything
            expectation = f"{self._wording.expectation} {_type_name(self._body_type)}"
            raise self._encode_error(body, f"{_field_reason(error)}; {expectation}") from None

    def _require_field_types(self, body: Any, data: bytes) -> None:
        """Check a typed object against its own annotations. What its `__post_init__` raises is
        ignored: readers without a type do not call it.
        """
        kind: Any = type(body)
        if (decoder := _decoder_of_fields(kind)) is None:
            return
        try:
            decoder.decode(data)
        except msgspec.ValidationError as error:
            if error.__cause__ is None:
                cure = f"give it what {_type_name(kind)} declares"
                raise self._encode_error(body, f"{_field_reason(error)}; {cure}") from None
        except Exception:  # noqa: BLE001, S110 - the code of the body's type raised
            pass

    def _encode_error(self, body: object, reason: str) -> SerializationError:
        return SerializationError(
            f"{self._wording.thing} of type {type(body).__name__} cannot be "
            f"{self._wording.action}: {reason}"
        )


def _field_reason(error: Exception) -> str:
    """Why a value cannot be decoded, with the field first: `field page: expected int, got str`."""
    text = str(error) or type(error).__name__
    located = _LOCATED_REASON.fullmatch(text)
    reason = (located[1] if located else text).replace("`", "")
    reason = reason[:1].lower() + reason[1:]
    return f"field {located[2]}: {reason}" if located else reason


def _type_name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


@lru_cache(maxsize=1024)
def _decoder_of_fields(kind: Any) -> msgspec.json.Decoder[Any] | None:
    """The decoder that checks the fields of a type; None for a type without fields to check."""
    has_fields = (
        issubclass(kind, msgspec.Struct)
        or is_dataclass(kind)
        or hasattr(kind, "__attrs_attrs__")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    return msgspec.json.Decoder(kind) if has_fields and is_checkable(kind) else None


def is_checkable(kind: Any) -> bool:
    """Whether JSON can hold every value of a type: no other type is anywhere in it."""
    try:
        return not _has_custom_type(msgspec.inspect.type_info(kind), set())
    except Exception:  # noqa: BLE001 - annotations that msgspec cannot resolve or does not support
        return False


def _has_custom_type(node: Any, seen: set[int]) -> bool:
    """Whether msgspec's description of a type contains a type that JSON alone cannot produce."""
    if isinstance(node, tuple):
        return any(_has_custom_type(item, seen) for item in node)
    if not isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) or id(node) in seen:
        return False
    seen.add(id(node))
    return isinstance(node, msgspec.inspect.CustomType) or any(
        _has_custom_type(getattr(node, name), seen) for name in node.__struct_fields__
    )


def _has_nonfinite(value: Any) -> bool:
    """Return whether the value contains a NaN or an infinity."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_nonfinite, value))
