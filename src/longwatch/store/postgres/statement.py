"""Translates `:named` SQL and Python values into what the server expects: `$1`, types, bytes.

A statement's text is translated once. `:lease_now` and `:wall_now` become the server's own clock,
so no client sends a time. A test's clock jump is added as one more parameter. Values are sent as
binary, with a type that follows from the Python type, so that a statement has few prepared forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - the name `error` is too general
from typing import Any, NamedTuple

from psycopg.abc import Transformer
from psycopg.adapt import PyFormat

from longwatch.errors import InvalidParameterError
from longwatch.store.database import ClockJump, Parameters

SERVER_CLOCK = "extract(epoch from statement_timestamp())::float8"
MAX_CHUNK_BYTES = 32 << 20
"""Bytes of texts and bodies in one statement of `execute_many`. The server accepts no array above 1
GiB.
"""
MAX_CHUNK_ROWS = 20_000

_TOKEN = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|::"""
    r"""|:(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)
_CLOCKS = {"lease_now": "lease", "wall_now": "wall"}

Encoded = tuple[int, bytes | None, int]
"""The oid of the type (0: the server infers it), the value, and 1 if it is binary."""


class Statement(NamedTuple):
    """The text for the server and the names of its parameters, in order. `jump.lease` and
    `jump.wall` are a test's.
    """

    text: bytes
    names: tuple[str, ...]


@lru_cache(maxsize=1024)
def translate(sql: str, *, jumped: bool) -> Statement:
    """Translate SQL with `:names`. Leaves casts, strings, comments and quoted names alone."""
    numbers: dict[str, int] = {}

    def placeholder(name: str) -> str:
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        if name in _CLOCKS:
            return (
                f"({SERVER_CLOCK} + {placeholder('jump.' + _CLOCKS[name])})"
                if jumped
                else f"({SERVER_CLOCK})"
            )
        return placeholder(name)

    text = _TOKEN.sub(replace, sql).encode()
    return Statement(text, tuple(numbers))


def bind(sql: str, parameters: Parameters, jump: ClockJump) -> tuple[bytes, list[Any]]:
    """Return the translated text and the values of its parameters."""
    jumped = bool(jump.lease or jump.wall)
    text, names = translate(sql, jumped=jumped)
    values = (
        {**parameters, "jump.lease": jump.lease, "jump.wall": jump.wall} if jumped else parameters
    )
    return text, [values[name] for name in names]


def column_arrays(rows: Sequence[Parameters]) -> Iterator[dict[str, object]]:
    """Yield several sets of parameters as arrays, one for each name, in chunks that the server
    accepts.
    """
    for chunk in _chunks(rows):
        yield {name: [row[name] for row in chunk] for name in chunk[0]}


def _chunks(rows: Sequence[Parameters]) -> Iterator[list[Parameters]]:
    chunk: list[Parameters] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        if chunk and (size + length > MAX_CHUNK_BYTES or len(chunk) == MAX_CHUNK_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += length
    if chunk:
        yield chunk


# --- values ---


class _TypeCodec(NamedTuple):
    """How a Python type is encoded: its oid, the oid of its arrays, and its bytes."""

    oid: int
    array_oid: int
    dump: Callable[[Any], bytes]


def _write_text(value: str) -> bytes:
    if "\0" in value:
        raise InvalidParameterError(
            f"PostgreSQL stores no zero bytes in text; remove them from {value!r}"
        )
    return value.encode()


_ARRAY_HEAD = Struct("!iiiii")
_LENGTH = Struct("!i")
_NULL = _LENGTH.pack(-1)
_TEXT = _TypeCodec(25, 1009, _write_text)
_TYPE_CODECS: dict[type, _TypeCodec] = {
    bool: _TypeCodec(16, 1000, Struct("!?").pack),
    int: _TypeCodec(20, 1016, Struct("!q").pack),
    float: _TypeCodec(701, 1022, Struct("!d").pack),
    str: _TEXT,
    bytes: _TypeCodec(17, 1001, bytes),
}


def encode(value: Any, transformer: Transformer) -> Encoded:
    """Encode a value for the server. psycopg encodes the types that are unknown here."""
    if value is None:
        return 0, None, 0
    if type(value) is list:
        return _encode_array(value, transformer)
    codec = _codec_for(value)
    try:
        if codec is _TEXT:
            return 0, _write_text(value), 0  # untyped: the server may need a date or a uuid
        if codec is not None:
            return codec.oid, codec.dump(value), 1
    except StructError:
        pass  # an integer that is too large for eight bytes
    return _encode_by_psycopg(value, transformer)


def _codec_for(value: Any) -> _TypeCodec | None:
    return _TYPE_CODECS.get(type(value)) or next(
        (kind for known, kind in _TYPE_CODECS.items() if isinstance(value, known)), None
    )


def _encode_array(values: list[Any], transformer: Transformer) -> Encoded:
    """Encode a one-dimensional array. Without a value that shows the type, the statement's cast
    decides it.
    """
    present = [value for value in values if value is not None]
    if not present:
        return 0, b"{" + b",".join(repeat(b"NULL", len(values))) + b"}", 0
    codec = _common_codec([_codec_for(value) for value in _one_per_type(present)])
    if codec is None:
        return _encode_by_psycopg(values, transformer)
    head = _ARRAY_HEAD.pack(1, int(len(present) < len(values)), codec.oid, len(values), 1)
    return codec.array_oid, b"".join(chain((head,), _elements(values, codec.dump))), 1


def _one_per_type(values: Iterable[Any]) -> Iterable[Any]:
    return {type(value): value for value in values}.values()


def _common_codec(codecs: list[_TypeCodec | None]) -> _TypeCodec | None:
    """Return the codec that fits all values, or None. Integers among floats become floats."""
    if set(codecs) == {_TYPE_CODECS[int], _TYPE_CODECS[float]}:
        return _TYPE_CODECS[float]
    return codecs[0] if len(codecs) == 1 else None


def _elements(values: list[Any], dump: Callable[[Any], bytes]) -> Iterator[bytes]:
    for value in values:
        if value is None:
            yield _NULL
        else:
            data = dump(value)
            yield _LENGTH.pack(len(data))
            yield data


def _encode_by_psycopg(value: Any, transformer: Transformer) -> Encoded:
    dumper = transformer.get_dumper(value, PyFormat.AUTO)
    data = dumper.dump(value)
    return dumper.oid, None if data is None else bytes(data), int(dumper.format)
