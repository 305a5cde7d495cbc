from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.sanitize import is_storable
from longwatch.runner.policy import Severity
from longwatch.runner.severity import RANKS, parse_severity
from longwatch.runner.stream_event import MAX_DEPTH, StreamEvent, event_document, parse_event

MAX_BYTES = 10_000
GOOD = {"severity": "error", "resource": "pod/web-1"}


def parsed(fields: object) -> StreamEvent:
    return parse_event(json.dumps(fields), max_bytes=MAX_BYTES)


@pytest.mark.parametrize(
    ("severity", "words"),
    [
        (Severity.DEBUG, ["debug", "TRACE", "verbose", 7, "7", 10]),
        (Severity.INFO, ["info", "notice", "Normal", "low", 6, 5, "P4", "p5", "SEV-4", "20"]),
        (Severity.WARNING, ["warning", "WARN", "medium", 4, "P3", "sev3"]),
        (Severity.ERROR, ["error", "err", "high", "Major", 3, "P2", "S2", 40]),
        (Severity.CRITICAL, ["critical", "CRIT", "fatal", "emergency", "alert", 0, 1, 2, "P1"]),
        (Severity.OTHER, ["purple", "", " ", -1, 8, 99, 10**30, "p9", "p", "p0", "sevsev1", "²"]),
    ],
)
def test_words_of_many_vocabularies_are_mapped(severity: Severity, words: list[str | int]) -> None:
    """Words, syslog numbers and priorities have a severity; an unknown one is `other`."""
    assert [severity] * len(words) == [parse_severity(word) for word in words]


def test_other_counts_as_info() -> None:
    """A severity that no vocabulary has ranks as info."""
    assert RANKS[Severity.OTHER] == RANKS[Severity.INFO]
    assert min(Severity, key=RANKS.__getitem__) is Severity.DEBUG
    assert max(Severity, key=RANKS.__getitem__) is Severity.CRITICAL


def test_an_event_is_read() -> None:
    """An event with the two required fields has a severity, a fault key and no problem."""
    event = parsed(GOOD)
    assert (Severity.ERROR, "") == (event.severity, event.problem)
    assert event.fault_key


@pytest.mark.parametrize(
    "resource", ["pod/web-1", {"kind": "Pod", "name": "web-1"}, {"name": "web-1"}]
)
def test_a_resource_is_a_text_or_an_object(resource: object) -> None:
    assert not parsed({**GOOD, "resource": resource}).problem


def test_events_of_one_fault_have_one_key() -> None:
    """A faultId names the fault, whatever else differs; without it resource and type."""
    by_id = [parsed({**GOOD, "resource": name, "faultId": "f1"}) for name in ("a", "b")]
    assert by_id[0].fault_key == by_id[1].fault_key
    objects: list[object] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    by_resource = [
        parsed({**GOOD, "resource": each, "context": n}) for n, each in enumerate(objects)
    ]
    assert by_resource[0].fault_key == by_resource[1].fault_key
    different = [
        GOOD,
        {**GOOD, "faultType": "CrashLoop"},
        {**GOOD, "resource": "pod/web-2"},
        {**GOOD, "faultId": "f1"},
        {**GOOD, "faultId": 0},
    ]
    assert len(different) == len({parsed(each).fault_key for each in different})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "truncated"),
        ("nonsense", "malformed"),
        ("{", "truncated"),
        ("[]", "object"),
        ("null", "object"),
        ("{}", "severity"),
        ('{"severity": "info"}', "resource"),
        ('{"resource": "a"}', "severity"),
        ('{"severity": null, "resource": "a"}', "severity"),
        ('{"severity": "", "resource": "a"}', "severity"),
        ('{"severity": true, "resource": "a"}', "severity"),
        ('{"severity": [], "resource": "a"}', "severity"),
        ('{"severity": "info", "resource": ""}', "resource"),
        ('{"severity": "info", "resource": {}}', "resource"),
        ('{"severity": "info", "resource": 5}', "resource"),
        ('{"severity": "info", "resource": "a", "x": NaN}', "malformed"),
        ('{"severity": "info", "resource": "a\0"}', "malformed"),
        ("\ud800", "surrogates"),
        ('{"severity": ' + "[" * 4900 + "]" * 4900 + ', "resource": "a"}', ""),  # by its Python
        ('{"severity": ' + "[" * 900 + "]" * 900 + ', "resource": "a"}', "deeper"),
        ('{"severity":"info","resource":"a","x":' + "[" * 65 + "]" * 65 + "}", "deeper"),
    ],
)
def test_a_text_that_is_no_event_gives_the_reason(data: str, reason: str) -> None:
    """What is no stream event has a problem that names the fault, and text that a store takes."""
    event = parse_event(data, max_bytes=MAX_BYTES)
    assert event.problem
    assert reason in event.problem
    assert is_storable(event.data)
    assert event.fault_key is None
    assert event.severity is Severity.OTHER


def test_brackets_in_texts_are_no_depth() -> None:
    """Depth counts arrays and objects, not characters of texts, and not neighbours."""
    flat = {**GOOD, "a": '\\"' + "[{" * 200, "b": [[] for _ in range(200)]}
    assert not parsed(flat).problem
    deep: object = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert not parsed({**GOOD, "x": deep}).problem
    assert "deeper" in parsed({**GOOD, "x": [deep]}).problem


def test_an_event_that_is_too_large_keeps_its_beginning() -> None:
    """An event above the limit is oversize, and only the first characters of it are kept."""
    event = parsed({**GOOD, "context": "x" * MAX_BYTES})
    assert event.is_oversize
    assert str(MAX_BYTES) in event.problem
    assert len(event.data) <= 200


def test_the_document_has_every_field() -> None:
    """Unknown fields are kept, and the cluster is the source's name where it is left out."""
    data = json.dumps({**GOOD, "extra": {"a": [1, None]}})
    assert {**GOOD, "extra": {"a": [1, None]}, "cluster": "eu"} == event_document(data, source="eu")
    named = json.dumps({**GOOD, "cluster": "us"})
    assert event_document(named, source="eu")["cluster"] == "us"


@given(data=st.text(max_size=200) | st.from_regex(r'\{"severity":.*\}', fullmatch=True))
def test_reading_never_raises(data: str) -> None:
    """Any text is an event, or has a problem."""
    event = parse_event(data, max_bytes=MAX_BYTES)
    assert is_storable(event.data)
    assert bool(event.problem) == (event.fault_key is None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(
        st.sampled_from(
            ["severity", "resource", "cluster", "faultId", "faultType", "context", "x"]
        ),
        json_values,
    )
)
def test_fields_of_any_type_are_survived(fields: dict[str, object]) -> None:
    """Whatever the fields hold, the event is read or has a problem, and its text is kept."""
    event = parsed(fields)
    assert event.problem or event.fault_key
    assert json.loads(event.data) == fields


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 5000])
def test_a_number_that_no_agent_can_read_makes_an_event_malformed(number: str) -> None:
    """Also in a field that the runner does not read: the whole event goes to the agent."""
    event = parse_event(f'{{"severity":"info","resource":"r","z":{number}}}', max_bytes=10_000)
    assert "range" in event.problem


def test_a_long_text_beside_many_brackets_is_parsed_in_little_memory() -> None:
    text = f'{{"severity":"info","resource":"x","a":"{"y" * 3_500_000}","b":{[[]] * 70}}}'
    tracemalloc.start()
    try:
        assert not parse_event(text, max_bytes=4 << 20).problem
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
