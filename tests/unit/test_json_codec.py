from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import InvalidParameterError, SerializationError
from longwatch.store.json_codec import Codec

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@dataclass
class Job:
    name: str
    tries: int = 0


class Shape(msgspec.Struct):
    sides: list[int]


class Row(TypedDict):
    id: int


class Picky(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise KeyError(self.value)


@given(body=PLAIN)
def test_plain_json_comes_back_as_it_was(body: Any) -> None:
    codec: Codec[Any] = Codec()
    assert body == codec.decode(codec.encode(body))


@pytest.mark.parametrize(
    ("kind", "body"),
    [(Job, Job("a", 2)), (Shape, Shape([1])), (Row, Row(id=1)), (list[Job], [Job("b")])],
)
def test_a_typed_body_comes_back_as_its_type(kind: Any, body: Any) -> None:
    codec: Codec[Any] = Codec(kind)
    decoded = codec.decode(codec.encode(body))
    assert (type(body), body) == (type(decoded), decoded)


@pytest.mark.parametrize("body", [object(), {1: {2, object()}}, lambda: None, "\ud800"])
def test_a_body_that_is_no_json_is_refused(body: Any) -> None:
    with pytest.raises(SerializationError, match="cannot be sent"):
        Codec().encode(body)


def test_a_body_that_holds_itself_is_refused() -> None:
    body: list[Any] = []
    body.append(body)
    codec: Codec[Any] = Codec()
    with pytest.raises(SerializationError, match="cannot be sent"):
        codec.encode(body)


def test_a_body_is_measured_as_it_is_stored() -> None:
    codec: Codec[str] = Codec(str, max_bytes=10)
    assert b'"12345678"' == codec.encode("12345678")
    with pytest.raises(InvalidParameterError, match="11 bytes is larger than 10"):
        codec.encode("123456789")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nope", b"[1", b'"\\ud800"', b"[" * 100_000])
def test_bytes_that_are_no_json_cannot_be_read(data: bytes) -> None:
    with pytest.raises(SerializationError, match="a body cannot be read"):
        Codec().decode(data)


@pytest.mark.parametrize(
    ("kind", "data"), [(int, b'"text"'), (Job, b"{}"), (Shape, b'{"sides": ["x"]}'), (Row, b"[]")]
)
def test_a_body_of_another_type_cannot_be_read(kind: Any, data: bytes) -> None:
    with pytest.raises(SerializationError, match="a body cannot be read"):
        Codec(kind).decode(data)


def test_whatever_a_body_type_raises_means_that_it_cannot_be_read() -> None:
    with pytest.raises(SerializationError, match="-1"):
        Codec(Picky).decode(b'{"value": -1}')


@pytest.mark.parametrize(
    "body",
    [float("nan"), [1.0, float("inf")], {"a": {"b": (float("-inf"),)}}, Shape([float("nan")])],  # type: ignore[list-item]
)
def test_a_number_that_json_cannot_write_is_refused_and_not_sent_as_null(body: Any) -> None:
    with pytest.raises(SerializationError, match="JSON has no NaN and no infinity"):
        Codec().encode(body)


@pytest.mark.parametrize("body", [None, "null", {"a": None, "b": 1.5}, msgspec.Raw(b"null")])
def test_null_itself_is_written(body: Any) -> None:
    codec: Codec[Any] = Codec()
    assert b"null" in codec.encode(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Job, "wrong"),
        (Job, {"tries": 1}),
        (int, "1"),
        (int, True),
        (Row, {"id": "x"}),
        (list[int], ["a"]),
    ],
)
def test_a_body_that_its_readers_could_not_read_is_refused_where_it_is_sent(
    kind: Any, body: Any
) -> None:
    with pytest.raises(SerializationError, match="this mailbox was opened for"):
        Codec(kind).encode(body)


@pytest.mark.parametrize(
    ("kind", "body"), [(Job, {"name": "a"}), (float, 1), (Row, {"id": 1}), (int | None, None)]
)
def test_a_body_of_another_type_that_reads_the_same_is_sent(kind: Any, body: Any) -> None:
    codec: Codec[Any] = Codec(kind)
    codec.decode(codec.encode(body))
