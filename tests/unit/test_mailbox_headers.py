from __future__ import annotations

from typing import Any

import pytest

from longwatch.errors import InvalidParameterError
from longwatch.mailbox.headers import (
    MAX_HEADERS_BYTES,
    add_headers,
    decode_headers,
    encode_headers,
)


@pytest.mark.parametrize("headers", [None, {}])
def test_no_headers_are_null(headers: Any) -> None:
    assert encode_headers(headers) is None
    assert {} == decode_headers(None)


@pytest.mark.parametrize("name", ["traceparent", "x-tenant_1", "a.b", "x" * 200, "!#$%&'*+.^_`|~-"])
def test_tokens_in_lower_case_are_names(name: str) -> None:
    assert {name: "1"} == decode_headers(encode_headers({name: "1"}))


@pytest.mark.parametrize("name", ["", "Tenant", "a b", "a:b", "ü", "a\n", "x" * 201, 1, None])
def test_another_name_is_refused_with_what_is_allowed(name: Any) -> None:
    with pytest.raises(InvalidParameterError, match="the name of a header has 1 to 200 lower-case"):
        encode_headers({name: "1"})


@pytest.mark.parametrize("value", [1, None, b"1", ["a"], "\0", "\ud800"])
def test_a_value_that_is_no_storable_text_is_refused_with_the_cure(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"value of header 'a' must be text.*str\("):
        encode_headers({"a": value})


@pytest.mark.parametrize("headers", [[("a", "1")], "a=1", 7, [], ""])
def test_what_is_no_mapping_is_refused(headers: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"headers must be a mapping.*not of type"):
        encode_headers(headers)


def test_8_kib_as_json_are_the_most() -> None:
    room = MAX_HEADERS_BYTES - len('{"a":""}')
    assert MAX_HEADERS_BYTES == len(encode_headers({"a": "x" * room}) or "")
    for value in ("x" * (room + 1), "ü" * (room // 2 + 1)):
        with pytest.raises(InvalidParameterError, match=r"at most 8192 bytes as JSON, not 819\d"):
            encode_headers({"a": value})


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"a":1}', "null"])
def test_headers_that_another_program_has_damaged_read_as_none(damaged: str) -> None:
    assert {} == decode_headers(damaged)


def test_headers_of_a_trace_replace_those_of_an_older_one() -> None:
    given = encode_headers({"tenant": "acme", "traceparent": "old"})
    added = add_headers(given, {"traceparent": "new", "tracestate": "a=1"})
    assert {"tenant": "acme", "traceparent": "new", "tracestate": "a=1"} == decode_headers(added)


def test_the_state_of_an_older_trace_goes_with_it() -> None:
    given = encode_headers({"traceparent": "old", "tracestate": "a=1", "baggage": "b=2"})
    assert {"traceparent": "new", "baggage": "b=2"} == decode_headers(
        add_headers(given, {"traceparent": "new"})
    )
    assert decode_headers(given) == decode_headers(add_headers(given, {"traceparent": "old"}))


def test_headers_of_a_trace_that_do_not_fit_are_left_out() -> None:
    given = encode_headers({"a": "x" * (MAX_HEADERS_BYTES - 100)})
    added = add_headers(given, {"traceparent": "t" * 55, "baggage": "b" * 200})
    assert ["a", "traceparent"] == list(decode_headers(added))
    assert add_headers(None, {}) is None
