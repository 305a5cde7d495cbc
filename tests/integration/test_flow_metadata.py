"""Metadata beside the values of an execution."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    BackgroundCall,
    ManualWorker,
    database_fixture,
    scrape_graph,
    url_fixture,
)
from longwatch.errors import UnknownExecutionError, UsageError
from longwatch.flow import Graph, input  # noqa: A004 - the contract's word
from longwatch.flow.execution_metadata import MAX_METADATA_BYTES
from longwatch.store.database import Database


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(
        database, scrape_graph(), Graph("tagged", version="1", nodes=[input("metadata")])
    )


class TestStart:
    def test_keeps_the_metadata_beside_the_values(self, worker: ManualWorker) -> None:
        given = {"owner": "ada", "tags": ["x", {"y": 1}], "ü": 1.5}
        execution = worker.flow.start("scrape", url="abc", metadata=given)
        assert given == execution.metadata == worker.flow.execution(execution.id).metadata
        assert {"url": "abc"} == execution.values()

    @pytest.mark.parametrize("given", [None, {}, {"owner": None}])
    def test_without_metadata_has_none(self, worker: ManualWorker, given: Any) -> None:
        execution = worker.flow.start("scrape", metadata=given)
        assert {} == execution.metadata
        assert [(None,)] == worker.rows("SELECT metadata FROM longwatch_executions")

    def test_sets_an_input_that_is_named_metadata_from_the_mapping(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("tagged", {"metadata": 5}, metadata={"owner": "ada"})
        assert ({"metadata": 5}, {"owner": "ada"}) == (execution.values(), execution.metadata)

    def test_with_a_known_key_leaves_the_metadata_of_the_first(self, worker: ManualWorker) -> None:
        worker.flow.start("scrape", idempotency_key="a", metadata={"owner": "ada"})
        again = worker.flow.start("scrape", idempotency_key="a", metadata={"owner": "bob"})
        assert {"owner": "ada"} == again.metadata

    def test_with_many_inputs_and_a_key_keeps_it_as_well(self, worker: ManualWorker) -> None:
        execution = worker.flow.start(
            "scrape", {"url": "a", "depth": 1}, idempotency_key="a", metadata={"n": 1}
        )
        assert {"n": 1} == execution.metadata

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ([1], "metadata must be a JSON object, such as {'owner': 'ada'}, not list"),
            ("owner", "metadata must be a JSON object, such as {'owner': 'ada'}, not str"),
            ({1: "a"}, "a key of metadata must be text, not 1"),
            ({"a": object()}, "metadata of type dict cannot be kept: "),
            ({"a": float("nan")}, "metadata of type dict cannot be kept: JSON has no NaN"),
            (
                {"a": "x" * MAX_METADATA_BYTES},
                f"metadata of {MAX_METADATA_BYTES + 8} bytes is larger than {MAX_METADATA_BYTES}; ",
            ),
        ],
    )
    def test_refuses_what_is_no_small_json_object(
        self, worker: ManualWorker, given: Any, text: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            worker.flow.start("scrape", metadata=given)
        assert text == str(caught.value)[: len(text)]
        assert [] == worker.flow.executions()


class TestSetMetadata:
    def test_merges_keys_and_removes_those_that_are_none(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", metadata={"owner": "ada", "n": 1})
        expected = {"n": 2, "tag": "x"}
        assert expected == execution.set_metadata({"n": 2, "tag": "x", "owner": None, "no": None})
        assert expected == execution.metadata

    def test_makes_no_revision_and_opens_no_attempt(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        before = worker.rows("SELECT revision, changes, updated_at FROM longwatch_executions")
        execution.set_metadata({"owner": "ada"})
        after = worker.rows("SELECT revision, changes, updated_at FROM longwatch_executions")
        assert before == after
        assert [] == worker.claim()

    def test_is_kept_by_the_results_that_come_later(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc", metadata={"n": 1})
        leased = worker.claim_one()
        execution.set_metadata({"owner": "ada"})
        assert worker.succeed(leased, 3)
        worker.run_all()
        assert {"n": 1, "owner": "ada"} == execution.metadata
        assert ["title"] * 3 == execution.get("titles", wait=False)

    def test_that_removes_the_last_key_leaves_none(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", metadata={"n": 1})
        assert {} == execution.set_metadata({"n": None})
        assert [(None,)] == worker.rows("SELECT metadata FROM longwatch_executions")

    def test_works_on_a_cancelled_execution(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        execution.cancel()
        assert {"why": "obsolete"} == execution.set_metadata({"why": "obsolete"})

    def test_refuses_more_than_64_kib_in_all_and_keeps_what_there_was(
        self, worker: ManualWorker
    ) -> None:
        half = "x" * (MAX_METADATA_BYTES // 2)
        execution = worker.flow.start("scrape", metadata={"a": half})
        with pytest.raises(UsageError, match="is larger than 65536"):
            execution.set_metadata({"b": half})
        assert {"a": half} == execution.metadata
        assert {"b": half} == execution.set_metadata({"a": None, "b": half})

    @pytest.mark.parametrize("given", [[1], "x", {1: 2}, {"a": object()}])
    def test_refuses_what_is_no_json_object(self, worker: ManualWorker, given: Any) -> None:
        execution = worker.flow.start("scrape", metadata={"n": 1})
        with pytest.raises(UsageError, match="metadata"):
            execution.set_metadata(given)
        assert {"n": 1} == execution.metadata

    def test_of_several_threads_keeps_all_keys(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        calls = [BackgroundCall(partial(execution.set_metadata, {key: 1})) for key in "abcdefgh"]
        for call in calls:
            assert isinstance(call.wait(), dict)
        assert dict.fromkeys("abcdefgh", 1) == execution.metadata

    def test_refuses_a_removed_execution(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        worker.write("DELETE FROM longwatch_executions")
        with pytest.raises(UnknownExecutionError, match="does not exist any more"):
            execution.set_metadata({"n": 1})
        with pytest.raises(UnknownExecutionError, match="does not exist any more"):
            _ = execution.metadata
