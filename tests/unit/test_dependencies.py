from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.dependencies import (
    Condition,
    DependencyMap,
    dependency_problems,
    start_waves,
)

READY = Condition.READY


def wishes(**depends_on: str) -> DependencyMap:
    """`web="db cache"` is a program that waits for two others."""
    return {name: dict.fromkeys(wanted.split(), READY) for name, wanted in depends_on.items()}


def test_programs_without_wishes_are_one_wave_in_their_order() -> None:
    assert [["c", "a", "b"]] == start_waves(wishes(c="", a="", b=""))


def test_each_wave_waits_only_for_waves_before_it() -> None:
    assert [["db", "cache"], ["web"], ["proxy"]] == start_waves(
        wishes(proxy="web", web="db cache", db="", cache="")
    )


def test_an_unknown_name_gets_the_nearest_one() -> None:
    [found] = dependency_problems(wishes(web="databse", database=""))
    assert ("web", "waits for 'databse', which is not a program", "did you mean database?") == found


def test_a_name_like_no_other_gets_another_cure() -> None:
    [found] = dependency_problems(wishes(web="zzz"))
    assert "declare it, or remove it here" == found.cure


@pytest.mark.parametrize(
    ("depends_on", "path"),
    [
        ({"a": "a"}, "a → a"),
        ({"a": "b", "b": "a"}, "a → b → a"),
        ({"x": "a", "a": "b", "b": "c", "c": "a"}, "a → b → c → a"),
    ],
)
def test_a_cycle_is_reported_once_with_its_path(depends_on: dict[str, str], path: str) -> None:
    [found] = dependency_problems(wishes(**depends_on))
    assert f"waits for itself: {path}" == found.problem


def test_two_cycles_are_two_problems() -> None:
    assert 2 == len(dependency_problems(wishes(a="b", b="a", c="d", d="c")))


def test_start_waves_refuses_a_cycle() -> None:
    with pytest.raises(ValueError, match="cycle: a, b"):
        start_waves(wishes(a="b", b="a"))


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.sampled_from("abcdef"), max_size=3, unique=True),
        min_size=1,
        max_size=6,
    )
)
def test_every_graph_has_problems_or_waves_that_hold_everyone_once(
    drawn: dict[str, list[str]],
) -> None:
    graph: DependencyMap = {name: dict.fromkeys(wanted, READY) for name, wanted in drawn.items()}
    if dependency_problems(graph):
        return
    found = start_waves(graph)
    assert sorted(graph) == sorted(name for wave in found for name in wave)
    for number, wave in enumerate(found):
        before = {name for earlier in found[:number] for name in earlier}
        assert all(set(graph[name]) <= before for name in wave)
