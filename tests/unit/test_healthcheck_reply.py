from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.http_response import MAX_RESPONSE_BYTES, HttpHealthResponse

HEALTHY = b'{"status": "healthy"}'
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def fed(*pieces: bytes) -> HttpHealthResponse:
    answer = HttpHealthResponse()
    for piece in pieces:
        answer.feed(piece)
    return answer


def verdict(whole: bytes) -> str | None:
    return fed(whole).failure()


def answer(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 "
        + status.encode()
        + b"\r\nContent-Type: application/json\r\n"
        + headers
        + b"\r\n"
        + body
    )


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def length(number: object) -> bytes:
    return f"Content-Length: {number}\r\n".encode()


@pytest.mark.parametrize(
    "good",
    [
        answer(HEALTHY),
        answer(HEALTHY, headers=length(len(HEALTHY))),
        answer(HEALTHY, headers=b"content-length :  21  \r\n"),
        answer(b' {"uptime": 3, "status": "healthy"}\n'),
        answer(HEALTHY, headers=b"Content-Length: soon\r\n"),
        b"HTTP/1.0 200 \r\n\r\n" + HEALTHY,
        b"HTTP/1.0 200\r\n\r\n" + HEALTHY,
        b"HTTP/1.1 200\r\nServer: terse\r\n\r\n" + HEALTHY,
        answer(HEALTHY + b"HTTP/1.1 408 Request Timeout", headers=length(21)),
        answer(chunks(HEALTHY), headers=CHUNKED),
        answer(chunks(HEALTHY[:5], HEALTHY[5:]), headers=CHUNKED),
        answer(chunks(HEALTHY, end=b"0\r\nExpires: never\r\n\r\n"), headers=CHUNKED),
        answer(b'15 ;name="value"\r\n' + HEALTHY + b"\r\n0;last\r\n", headers=CHUNKED),
        answer(
            b"00000015\r\n" + HEALTHY + b"\r\n000\r\n", headers=b"transfer-encoding: Chunked\r\n"
        ),
        answer(chunks(HEALTHY), headers=length(3) + CHUNKED),
        answer(HEALTHY.ljust(1_000_000), headers=length(1_000_000)),
        answer(HEALTHY.ljust(1_000_000)),
        answer(chunks(*[b" " * 10_000] * 100, HEALTHY), headers=CHUNKED),
    ],
)
def test_status_200_and_json_that_says_healthy_is_healthy(good: bytes) -> None:
    assert None is verdict(good)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n", "not an HTTP answer"),
        (b"220 mail.example ESMTP\r\n\r\n", "not an HTTP answer"),
        (b"\r\n\r\n" + HEALTHY, "not an HTTP answer"),
        (answer(HEALTHY, status="2OO OK"), "not an HTTP answer"),
        (answer(HEALTHY, status="2000 OK"), "not an HTTP answer"),
        (answer(HEALTHY, status="503 Service Unavailable"), "status 503"),
        (answer(HEALTHY, status="204 No Content"), "status 204"),
        (answer(HEALTHY, status="302 Found"), "status 302"),
        (answer(HEALTHY, headers=length(22)), "the answer was cut short"),
        (answer(HEALTHY[:-1]), "the body is not JSON"),
        (answer(b""), "the body is not JSON"),
        (answer(b"healthy"), "the body is not JSON"),
        (answer(b"\xff\xfe\xfa"), "the body is not JSON"),
        (answer(b'"healthy"'), '"status" is null, not "healthy"'),
        (answer(b'[{"status": "healthy"}]'), '"status" is null, not "healthy"'),
        (answer(b"{}"), '"status" is null, not "healthy"'),
        (answer(b'{"status": "Healthy"}'), '"status" is "Healthy", not "healthy"'),
        (answer(b'{"status": true}'), '"status" is true, not "healthy"'),
        (answer(chunks(HEALTHY, end=b""), headers=CHUNKED), "the answer was cut short"),
        (answer(chunks(HEALTHY)[:-6], headers=CHUNKED), "the answer was cut short"),
        (answer(b"", headers=CHUNKED), "the answer was cut short"),
        (answer(HEALTHY, headers=CHUNKED), "the answer was cut short"),
        (answer(HEALTHY + b"\r\n", headers=CHUNKED), "the chunks of the answer are malformed"),
        (
            answer(b"-15\r\n" + HEALTHY + b"\r\n", headers=CHUNKED),
            "the chunks of the answer are malformed",
        ),
        (
            answer(b"14\r\n" + HEALTHY + b"\r\n", headers=CHUNKED),
            "the chunks of the answer are malformed",
        ),
        (answer(b"1" * 5000, headers=CHUNKED), "the chunks of the answer are malformed"),
        (answer(chunks(), headers=CHUNKED), "the body is not JSON"),
        (answer(HEALTHY.ljust(MAX_RESPONSE_BYTES)), "the answer is longer than 1 MiB"),
        (
            answer(b" " * MAX_RESPONSE_BYTES, headers=length(MAX_RESPONSE_BYTES + 1)),
            "the answer is longer than 1 MiB",
        ),
        (
            answer(b"200000\r\n" + b" " * MAX_RESPONSE_BYTES, headers=CHUNKED),
            "the answer is longer than 1 MiB",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * MAX_RESPONSE_BYTES, "the answer is longer than 1 MiB"),
        (answer(b'{"status": ["healthy"]}'), '"status" is ["healthy"], not "healthy"'),
    ],
)
def test_anything_else_is_a_failure_with_its_reason(bad: bytes, reason: str) -> None:
    assert reason == verdict(bad)


def test_a_long_status_is_told_short() -> None:
    told = verdict(answer(json.dumps({"status": "x" * 5000}).encode()))
    assert told is not None
    assert 70 > len(told)


@pytest.mark.parametrize(
    "nasty",
    [
        answer(b"[" * 60_000),
        answer(b'{"status":' * 10_000),
        answer(b"9" * 10_000),
        answer(HEALTHY, status="2" * 10_000),
        answer(HEALTHY, headers=length("9" * 10_000)),
    ],
)
def test_an_answer_made_to_harm_the_reader_is_a_failure_like_any_other(nasty: bytes) -> None:
    assert isinstance(verdict(nasty), str)


@given(noise=st.binary(max_size=200).filter(lambda noise: b"healthy" not in noise))
def test_noise_is_never_healthy_and_never_raises(noise: bytes) -> None:
    assert isinstance(verdict(noise), str)
    assert isinstance(verdict(answer(noise)), str)


@pytest.mark.parametrize(
    "enough",
    [
        answer(HEALTHY, headers=length(21)),
        answer(chunks(HEALTHY, end=b"0\r\n"), headers=CHUNKED),
        answer(b"nonsense\r\n", headers=CHUNKED),
        answer(b"", status="503 Service Unavailable", headers=length(100)),
        b"SSH-2.0\r\n\r\n",
    ],
)
def test_an_answer_is_whole_as_soon_as_nothing_more_would_change_its_verdict(enough: bytes) -> None:
    assert [False, True] == [fed(enough[:-1]).complete, fed(enough).complete]


def test_an_answer_without_length_is_whole_only_when_it_has_become_too_long() -> None:
    assert not fed(answer(HEALTHY)).complete
    assert fed(answer(b""), b" " * MAX_RESPONSE_BYTES).complete


@given(
    cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=10),
    whole=st.sampled_from(
        [
            answer(HEALTHY),
            answer(HEALTHY, headers=length(21)),
            answer(HEALTHY[:-1], headers=length(21)),
            answer(chunks(HEALTHY[:1], HEALTHY[1:3], HEALTHY[3:]), headers=CHUNKED),
            answer(chunks(HEALTHY[:1], HEALTHY[1:3]) + b"junk", headers=CHUNKED),
            answer(chunks(HEALTHY, end=b""), headers=CHUNKED),
            answer(HEALTHY, status="503 No"),
        ]
    ),
)
def test_the_pieces_an_answer_comes_in_make_no_difference(cuts: list[int], whole: bytes) -> None:
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[first:last] for first, last in itertools.pairwise(places)]
    assert verdict(whole) == fed(*pieces).failure()


@given(noise=st.binary(max_size=200), size=st.integers(min_value=1, max_value=50))
def test_noise_in_chunks_is_never_healthy_and_never_raises(noise: bytes, size: int) -> None:
    pieces = [noise[start : start + size] for start in range(0, len(noise), size)]
    assert isinstance(fed(answer(b"", headers=CHUNKED), *pieces).failure(), str)
