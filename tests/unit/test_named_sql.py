from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import longwatch
from longwatch.store.named_sql import load_queries, parse_queries

ROOT = Path(longwatch.__file__).parent
SCHEMA = ROOT / "store" / "schema"
FILES = sorted(path for path in ROOT.rglob("*.sql") if SCHEMA not in path.parents)
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package to put SQL files in."""
    folder = tmp_path / "some_sql"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sys.modules.pop("some_sql", None)


def test_a_file_is_split_into_its_queries_without_their_comments() -> None:
    text = (
        "-- About the file.\n\n-- name: one\n-- Says one.\nSELECT 1\n\n-- name: two\n-- Says "
        "two.\nSELECT\n    -- inside\n    2;\n"
    )
    assert {"one": "SELECT 1", "two": "SELECT\n    2"} == parse_queries(text)


def test_what_stands_before_the_first_name_is_no_query() -> None:
    assert {} == parse_queries("-- name of nothing\nSELECT 1\n")


def test_the_engine_s_own_query_wins_over_the_common_one(package: Path) -> None:
    (package / "q.sql").write_text("-- name: a\n-- A.\nSELECT 1\n-- name: b\n-- B.\nSELECT 2\n")
    (package / "q.sqlite.sql").write_text("-- name: b\n-- B.\nSELECT 3\n")
    assert {"a": "SELECT 1", "b": "SELECT 3"} == load_queries("some_sql", "q", "sqlite")
    assert {"a": "SELECT 1", "b": "SELECT 2"} == load_queries("some_sql", "q", "postgresql")


def test_constants_are_filled_in(package: Path) -> None:
    (package / "q.sql").write_text("-- name: a\n-- A.\nSELECT {columns} FROM {table}\n")
    assert {"a": "SELECT x, y FROM t"} == load_queries(
        "some_sql", "q", "sqlite", table="t", columns="x, y"
    )


def test_an_unknown_file_is_named(package: Path) -> None:
    with pytest.raises(LookupError, match="no SQL named 'nothing' for sqlite in some_sql"):
        load_queries("some_sql", "nothing", "sqlite")


def test_an_unknown_query_is_named() -> None:
    with pytest.raises(KeyError, match="no_such_query"):
        load_queries(
            "longwatch.store", "claims", "sqlite", table="longwatch_messages", columns="seq"
        )["no_such_query"]


def test_there_are_sql_files_to_check() -> None:
    assert {"claims.sqlite.sql", "queries.sqlite.sql"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
class TestEverySqlFileOfTheProduct:
    def test_describes_each_query_in_a_comment_below_its_name(self, path: Path) -> None:
        lines = path.read_text().splitlines()
        undescribed = [
            line
            for line, below in zip(lines, [*lines[1:], ""], strict=True)
            if NAME.match(line) and not re.match(r"-- \S", below)
        ]
        assert [] == undescribed

    def test_names_each_query_once(self, path: Path) -> None:
        names = NAME.findall(path.read_text())
        assert sorted(set(names)) == sorted(names)

    def test_leaves_no_query_empty(self, path: Path) -> None:
        assert [] == [
            name for name, sql in parse_queries(path.read_text()).items() if not sql.strip()
        ]

    def test_takes_data_only_as_named_parameters(self, path: Path) -> None:
        for name, sql in parse_queries(path.read_text()).items():
            bare = re.sub(r"'[^']*'", "''", sql)
            assert not re.search(r"[?%$@]|:\d", bare), name

    def test_is_filled_in_with_nothing_but_names_conditions_and_how_a_lease_is_written(
        self, path: Path
    ) -> None:
        lease = {
            "on_claim",
            "on_renew",
            "on_release",
            "lapsed",
            "next_term",
            "leased_columns",
            "leased_values",
            "for_update",
            "execution",
        }
        conditions = {
            "claim_condition",
            "selected",
            "is_suspect",
            "among_queues",
            "among_seqs",
            "in_elements",
            "in_executions",
            "of_executions",
            "of_numbers",
            "skip_locked",
            "keys",
            "n",  # the number of a parameter
        }
        assert {"table", "columns", *conditions, *lease} >= set(
            re.findall(r"\{(.*?)\}", path.read_text())
        )


def sql_in_f_strings(path: Path) -> list[str]:
    verbs = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE)\b")
    found = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr)
    ]
    return [f"{path.name}:{node.lineno}" for node in found if verbs.search(ast.unparse(node))]


def test_no_sql_of_the_product_is_put_together_from_strings() -> None:
    assert [] == [place for path in ROOT.rglob("*.py") for place in sql_in_f_strings(path)]
