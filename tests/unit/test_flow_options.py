"""What may be said about how a node is computed, and what is refused where it is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.backoff import BackoffPolicy
from longwatch.flow import Graph, GraphError
from longwatch.flow.node_options import Isolation, NodeOptions, validate_options

SECONDS = (
    "abandon_after_seconds",
    "heartbeat_interval_seconds",
    "heartbeat_timeout_seconds",
    "progress_timeout_seconds",
)
MOST_IN_A_COLUMN = 2**31 - 1


def refused(**options: Any) -> str:
    with pytest.raises(GraphError) as caught:
        validate_options("pages", options)
    return str(caught.value)


def test_the_defaults_are_those_of_the_contract() -> None:
    made = validate_options("pages", {})
    assert NodeOptions() == made
    assert (3600.0, 70.0, 240.0, None, 3) == (
        made.abandon_after_seconds,
        made.heartbeat_interval_seconds,
        made.heartbeat_timeout_seconds,
        made.progress_timeout_seconds,
        made.max_attempts,
    )
    assert Isolation.THREAD is made.isolation


class TestHeartbeat:
    def test_an_interval_above_half_the_timeout_is_refused_in_the_words_of_the_contract(
        self,
    ) -> None:
        expected = (
            "Node :pages has unsafe heartbeat config. Interval (60s) must be <= half of timeout "
            "(100s) to prevent false positives."
        )
        assert expected == refused(heartbeat_interval_seconds=60, heartbeat_timeout_seconds=100)

    def test_it_is_refused_where_the_node_is_defined(self) -> None:
        graph = Graph("scrape", version="1")
        graph.input("url")
        decorate = graph.compute(
            after="url", heartbeat_interval_seconds=60, heartbeat_timeout_seconds=100
        )
        with pytest.raises(GraphError, match=r"Node :pages has unsafe heartbeat config"):
            decorate(pages)
        assert ["url"] == list(graph.nodes)

    def test_either_alone_is_held_against_the_default_of_the_other(self) -> None:
        assert "Interval (121s) must be <= half of timeout (240s)" in refused(
            heartbeat_interval_seconds=121
        )
        assert "Interval (70s) must be <= half of timeout (139s)" in refused(
            heartbeat_timeout_seconds=139
        )

    @given(st.floats(min_value=1e-3, max_value=1e9), st.floats(min_value=1e-3, max_value=1e9))
    def test_exactly_those_up_to_half_are_taken(self, interval: float, timeout: float) -> None:
        options = {"heartbeat_interval_seconds": interval, "heartbeat_timeout_seconds": timeout}
        if interval <= timeout / 2:
            assert interval == validate_options("pages", options).heartbeat_interval_seconds
        else:
            assert refused(**options).startswith("Node :pages has unsafe heartbeat config.")

    def test_a_deadline_shorter_than_the_interval_is_taken(self) -> None:
        assert 1 == validate_options("pages", {"abandon_after_seconds": 1}).abandon_after_seconds


class TestBounds:
    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize(
        "value",
        [0, -1, float("nan"), float("inf"), "60", True, [], pytest.param(10**400, id="huge")],
    )
    def test_durations_are_numbers_above_zero(self, name: str, value: Any) -> None:
        assert (
            f"node 'pages': {name} must be a number of seconds above 0, not {value!r}"
            == refused(**{name: value})
        )

    @pytest.mark.parametrize("name", SECONDS[:3])
    def test_a_limit_cannot_be_left_out(self, name: str) -> None:
        assert f"{name} must be a number of seconds above 0, not None" in refused(**{name: None})

    @pytest.mark.parametrize("name", ["max_attempts", "max_running", "max_memory"])
    @pytest.mark.parametrize("value", [0, -1, 1.0, "1", True])
    def test_counts_are_whole_numbers_from_one_up(self, name: str, value: Any) -> None:
        assert (
            f"node 'pages': {name} must be a whole number of 1 or more, not {value!r}"
            == refused(**{name: value})
        )

    @pytest.mark.parametrize("name", ["max_attempts", "max_running"])
    def test_counts_that_no_store_could_keep_are_refused(self, name: str) -> None:
        assert MOST_IN_A_COLUMN == getattr(
            validate_options("pages", {name: MOST_IN_A_COLUMN}), name
        )
        assert f"{name} must be no more than {MOST_IN_A_COLUMN}, not {2**31}" in refused(
            **{name: 2**31}
        )

    def test_attempts_are_always_bounded(self) -> None:
        assert "max_attempts must be a whole number of 1 or more, not None" in refused(
            max_attempts=None
        )

    def test_retry_is_a_policy(self) -> None:
        policy = BackoffPolicy(initial=1.0)
        assert policy is validate_options("pages", {"retry": policy}).retry
        assert "retry must be a BackoffPolicy, not 3" in refused(retry=3)


class TestIsolation:
    def test_is_one_of_two_words(self) -> None:
        assert Isolation.PROCESS is validate_options("pages", {"isolation": "process"}).isolation
        assert "isolation must be 'thread' or 'process', not 'fork'" in refused(isolation="fork")
        assert "isolation must be 'thread' or 'process', not None" in refused(isolation=None)

    def test_a_memory_limit_needs_a_process(self) -> None:
        assert 1 == validate_options("pages", {"isolation": "process", "max_memory": 1}).max_memory
        assert "max_memory needs isolation='process'" in refused(max_memory=1)


class TestUnknown:
    def test_the_nearest_is_named(self) -> None:
        text = refused(abandon_after_second=1)
        assert text.startswith("node 'pages' has an unknown option 'abandon_after_second'; ")
        assert text.endswith("did you mean abandon_after_seconds?")

    def test_without_a_near_one_all_are_named(self) -> None:
        assert "known options are abandon_after_seconds, heartbeat_interval_seconds" in refused(
            zzz=1
        )


def pages(url: str) -> int:
    return len(url)
