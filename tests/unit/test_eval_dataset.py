"""Samples and datasets: what is read and written as JSON lines, and what is refused, with the
line it stands in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import ConfigError, UsageError
from longwatch.evals import Dataset, Sample
from longwatch.evals.dataset import MAX_ID_LENGTH

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
IDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=MAX_ID_LENGTH,
)


def written(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    )
    return path


def problems(path: Path) -> list[str]:
    """What is told of a file, without its directory."""
    with pytest.raises(ConfigError) as refused:
        Dataset.load(path)
    return [str(fault).removeprefix(f"{path.parent}/") for fault in refused.value.faults]


# --- what is read ---


def test_every_line_is_a_sample_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"id": "a", "input": {"q": 1}, "expected": [2]}',
        "",
        '{"id": "b", "input": null}',
        "  ",
    )
    dataset = Dataset.load(path)
    assert [Sample("a", {"q": 1}, [2]), Sample("b", None, None)] == list(dataset)
    assert (["a", "b"], 2, str(path)) == (dataset.ids, len(dataset), dataset.name)


def test_lines_may_end_as_other_systems_end_them(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "a", "input": 1}\r', '{"id": "b", "input": 2}\r', "")
    assert ["a", "b"] == Dataset.load(path).ids


def test_a_whole_number_is_an_id_too(tmp_path: Path) -> None:
    assert ["7", "-1"] == Dataset.load(
        written(tmp_path, '{"id": 7, "input": 1}', '{"id": -1, "input": 1}')
    ).ids


@given(
    st.lists(
        st.builds(Sample, IDS, PLAIN, PLAIN),
        min_size=1,
        max_size=5,
        unique_by=lambda sample: sample.id,
    )
)
def test_what_is_saved_is_loaded_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    path = tmp_path_factory.mktemp("saved") / "samples.jsonl"
    Dataset(samples).save(path)
    again = Dataset.load(path)
    assert samples == list(again)
    assert Dataset(samples).digest == again.digest


def test_a_dataset_is_a_sequence() -> None:
    first, second = Sample("a", 1), Sample("b", 2)
    dataset = Dataset([first, second], name="small")
    assert (second, (first,), True) == (dataset[-1], dataset[:1], first in dataset)
    assert "<Dataset small of 2 samples>" == repr(dataset)


# --- which datasets are one ---


def test_the_digest_is_of_the_samples_not_of_their_order_file_or_spelling(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"expected": 3, "id": "b", "input": {"y": 2, "x": 1}}', '{"id": "a", "input": 1}'
    )
    same = Dataset([Sample("a", 1), Sample("b", {"x": 1, "y": 2}, 3)], name="another name")
    assert same.digest == Dataset.load(path).digest


@pytest.mark.parametrize(
    "other",
    [
        [Sample("a", 1, 2)],
        [Sample("a", 1, 2), Sample("b", 3, 4), Sample("c", 5)],
        [Sample("a", 1, 2), Sample("c", 3, 4)],
        [Sample("a", 1, 2), Sample("b", 0, 4)],
        [Sample("a", 1, 2), Sample("b", 3, 0)],
    ],
    ids=["fewer", "more", "another id", "another input", "another expectation"],
)
def test_other_samples_have_another_digest(other: list[Sample]) -> None:
    assert Dataset([Sample("a", 1, 2), Sample("b", 3, 4)]).digest != Dataset(other).digest


# --- what is refused ---


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nope", "is not JSON: "),
        ('{"id": "a", "input": 1', "is not JSON: "),
        (b'{"id": "\xff", "input": 1}', "is not JSON: "),
        ('{"id": "a", "input": NaN}', "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("[1]", 'is not an object; write {"id": …, "input": …, "expected": …}'),
        ('"id"', 'is not an object; write {"id": …, "input": …, "expected": …}'),
        ("{}", "has no id and no input"),
        ('{"input": 1}', "has no id"),
        ('{"id": "a"}', "has no input"),
        (
            '{"id": "a", "input": 1, "label": 1, "expect": 2}',
            "has unknown keys: expect, label; put them into input",
        ),
        (
            '{"id": "", "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            '{"id": null, "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            '{"id": true, "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            '{"id": 1.5, "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            '{"id": ["a"], "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            f'{{"id": "{"x" * 201}", "input": 1}}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
        (
            '{"id": "a\\u0000", "input": 1}',
            "has an id that is not text of 1 to 200 characters, nor a whole number",
        ),
    ],
)
def test_a_line_that_is_no_sample_is_told_with_its_number(
    tmp_path: Path, line: str | bytes, problem: str
) -> None:
    [told] = problems(written(tmp_path, '{"id": "1", "input": 1}', "", line))
    assert f"samples.jsonl:3: {problem}" == told[: len(f"samples.jsonl:3: {problem}")]


def test_the_longest_id_is_one(tmp_path: Path) -> None:
    assert ["x" * MAX_ID_LENGTH] == Dataset.load(
        written(tmp_path, json.dumps({"id": "x" * MAX_ID_LENGTH, "input": 1}))
    ).ids


def test_all_faults_are_told_at_once_and_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"id": "a", "input": 1}', "{", '{"id": "a", "input": 2}', '{"input": 3}'
    )
    assert [
        "samples.jsonl:2: is not JSON: it ends too early",
        "samples.jsonl:3: has the id 'a', which line 1 has too; give each its own",
        "samples.jsonl:4: has no id",
    ] == problems(path)


def test_a_number_and_the_same_digits_are_one_id(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": 1, "input": 1}', '{"id": "1", "input": 2}')
    assert ["samples.jsonl:2: has the id '1', which line 1 has too; give each its own"] == problems(
        path
    )


def test_of_very_many_faults_twenty_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    told = problems(written(tmp_path, *["nope"] * 25))
    assert (21, "samples.jsonl: and 5 more") == (len(told), told[-1])


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_a_file_without_samples_is_refused(tmp_path: Path, text: str) -> None:
    cure = 'write at least one: {"id": "1", "input": "…", "expected": "…"}'
    assert [f"samples.jsonl: has no samples; {cure}"] == problems(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"^the dataset \S+/none.jsonl cannot be read: no such file or directory; name ",
    ):
        Dataset.load(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"^the dataset \S+ cannot be read: is a directory; name "):
        Dataset.load(tmp_path)


def test_samples_of_code_are_held_to_the_same_rules() -> None:
    with pytest.raises(ConfigError, match=r"^mine: has no samples; "):
        Dataset([], name="mine")
    with pytest.raises(
        ConfigError, match=r"^mine: has 2 samples with the id 'a'; give each its own$"
    ):
        Dataset([Sample("a", 1), Sample("b", 1), Sample("a", 2)], name="mine")


@pytest.mark.parametrize("wrong", [Sample("", 1), Sample(None, 1), Sample(5, 1), {"id": "b"}, "b"])  # type: ignore[arg-type] # so
def test_what_has_no_id_is_named_by_its_place(wrong: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^mine: number 2 is no Sample with an id: .+; an id is text of 1 to 200 "
        r"characters$",
    ):
        Dataset([Sample("a", 1), wrong], name="mine")
