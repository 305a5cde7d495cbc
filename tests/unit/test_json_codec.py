from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

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


WRONG: Any = "x"
T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Place(NamedTuple):
    x: int


@dataclass
class Order:
    """Fields of every kind that a body may have."""

    job: Job = field(default_factory=lambda: Job("a"))
    jobs: list[Job] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    maybe: int | None = None
    either: int | str = 0
    at: datetime = datetime(2031, 5, 6, tzinfo=UTC)
    price: float = 1.5
    count: int = 1
    colour: Colour = Colour.RED
    place: Place = field(default_factory=lambda: Place(1))
    positive: Annotated[int, msgspec.Meta(gt=0)] = 1


@dataclass
class RushOrder(Order):
    hours: int = 1


@pytest.mark.parametrize("kind", [Order, Any])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"job": Job(WRONG, tries=WRONG)}, "field job.tries: expected int, got str"),
        ({"jobs": [Job("a"), Job("b", WRONG)]}, "field jobs[1].tries: expected int, got str"),
        ({"counts": {"a": WRONG}}, "field counts[...]: expected int, got str"),
        ({"maybe": WRONG}, "field maybe: expected int | null, got str"),
        ({"either": 1.5}, "field either: expected int | str, got float"),
        ({"at": 5}, "field at: expected datetime, got int"),
        ({"at": date(2031, 5, 6)}, "field at: invalid RFC3339 encoded datetime"),
        ({"price": WRONG}, "field price: expected float, got str"),
        ({"count": 1.5}, "field count: expected int, got float"),
        ({"count": True}, "field count: expected int, got bool"),
        ({"colour": "blue"}, "field colour: invalid enum value 'blue'"),
        ({"place": Place(WRONG)}, "field place[0]: expected int, got str"),
        ({"positive": 0}, "field positive: expected int >= 1"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_name_and_both_types(
    kind: Any, values: dict[str, Any], reason: str
) -> None:
    """Also where no type is declared for the mailbox: the body declares its own."""
    cure = "give it what Order declares" if kind is Any else "this mailbox was opened for Order"
    with pytest.raises(SerializationError) as refused:
        Codec(kind).encode(Order(**values))
    assert f"a body of type Order cannot be sent: {reason}; {cure}" == str(refused.value)


@pytest.mark.parametrize("kind", [Order, Any])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"price": 2},
        {"maybe": 3},
        {"either": "text"},
        {"at": datetime(2031, 5, 6)},  # noqa: DTZ001 - naive datetimes are readable
        {"at": "2031-05-06T00:00:00Z"},
        {"colour": "red"},
        {"job": {"name": "a"}},
        {"jobs": (Job("a"),)},
    ],
)
def test_fields_that_readers_can_decode_are_sent(kind: Any, values: dict[str, Any]) -> None:
    data = Codec(kind).encode(Order(**values))
    Codec(Order).decode(data)


def test_a_subclass_of_the_declared_type_is_sent() -> None:
    codec: Codec[Any] = Codec(Order)
    assert Order() == codec.decode(codec.encode(RushOrder()))


@pytest.mark.parametrize("body", [Place(WRONG), Shape(WRONG)])
def test_structs_and_named_tuples_without_a_declared_type_are_checked_too(body: Any) -> None:
    with pytest.raises(SerializationError, match="got str; give it what"):
        Codec().encode(body)


class Unknown:
    """A type that JSON cannot hold."""


@dataclass
class Holder:
    value: Unknown


@dataclass
class Unresolved:
    value: Missing  # type: ignore[name-defined] # noqa: F821 - the point of it


@dataclass
class WithInitVar:
    value: int
    seed: InitVar[int]


@dataclass
class Once:
    """Its own JSON form cannot be made into one again."""

    value: Any

    def __post_init__(self) -> None:
        if not isinstance(self.value, set):
            raise TypeError("a set, please")


class Box(msgspec.Struct, Generic[T]):
    value: T


@pytest.mark.parametrize(
    "body",
    [
        Holder({"a": 1}),  # type: ignore[arg-type]
        Unresolved(1),
        WithInitVar(WRONG, 1),
        Once({1}),
        Box("x"),
    ],
)
def test_a_body_whose_fields_cannot_be_checked_is_sent_where_no_type_is_declared(body: Any) -> None:
    assert Codec().encode(body)
