"""Pages are escaped, and live sections are compared without what changes by itself."""

from __future__ import annotations

import time

import pytest

from longwatch.page.access import AccessPolicy
from longwatch.page.program_facts import Problem
from longwatch.page.rendering import (
    NavigationEntry,
    PageRenderer,
    age,
    byte_size,
    clock_time,
    duration,
    moment,
    until,
    with_query,
)
from longwatch.page.view import View, match_path, path_to

MARKUP = '<img src=x onerror="alert(1)">&\''
ESCAPED = "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;&amp;&#39;"


def renderer() -> PageRenderer:
    policy = AccessPolicy("a-token-of-some-length")
    return PageRenderer(
        action_token=policy.action_token, navigation=[NavigationEntry("/", "Overview")]
    )


def problem_page(subject: str, *, why: str = "", since: float | None = None) -> View:
    problem = Problem(kind="bad", subject=subject, what="down", why=why, since=since)
    facts = {
        "control": _Control(),
        "has_state": True,
        "problems": [problem],
        "problem_count": 1,
        "tiles": [],
        "events": [],
        "is_read": True,
    }
    return View("Overview", "overview.html", facts)


class _Control:
    supervisors: tuple[object, ...] = ()
    error = ""
    at = 0.0


def test_markup_in_names_and_reasons_is_shown_as_text() -> None:
    html = renderer().render(problem_page(MARKUP, why=MARKUP), path="/").html

    assert MARKUP not in html
    assert 2 == html.count(ESCAPED)


def test_control_characters_and_bidirectional_controls_are_shown_as_escapes() -> None:
    html = renderer().render(problem_page("a\x1b[2Jb\u202ec\nd"), path="/").html

    assert "a\\x1b[2Jb\\u202ec\\nd" in html


def test_a_section_changes_with_its_facts_and_not_with_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, began = renderer(), time.time()
    first = page.render(problem_page("web", since=began), path="/").sections["problems"]
    monkeypatch.setattr(time, "time", lambda: began + 100)
    later = page.render(problem_page("web", since=began), path="/").sections["problems"]
    changed = page.render(problem_page("web", since=began - 5), path="/").sections["problems"]

    assert "1 min 40 s" in later.html
    assert first.html != later.html
    assert first.digest == later.digest
    assert first.digest != changed.digest


def test_a_page_without_a_fact_of_its_template_fails_instead_of_showing_nothing() -> None:
    page = renderer()
    with pytest.raises(Exception, match="is undefined"):
        page.render(View("Overview", "overview.html", {}), path="/")


@pytest.mark.parametrize(
    ("expected", "seconds"),
    [
        ("0 s", 0.0),
        ("0.4 s", 0.42),
        ("59 s", 59.9),
        ("1 min", 60.0),
        ("1 min 5 s", 65.0),
        ("1 h", 3601.0),
        ("2 h 3 min", 7390.0),
        ("3 d 4 h", 3 * 86400 + 4 * 3600 + 5),
        ("0 s", -5.0),
        ("", None),
    ],
)
def test_durations_have_two_units_at_most(expected: str, seconds: float | None) -> None:
    assert expected == duration(seconds)


def test_a_moment_that_has_come_is_now() -> None:
    assert ">now</time>" in until(time.time() - 1)
    assert ">in " in until(time.time() + 100)


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        ("", None),
        ("0 B", 0),
        ("1023 B", 1023),
        ("1.0 KiB", 1024),
        ("512 KiB", 512 * 1024),
        ("3.4 MiB", int(3.4 * (1 << 20))),
        ("2.0 GiB", 2 << 30),
        ("4096 TiB", 4 << 50),
    ],
)
def test_sizes_have_a_unit(expected: str, count: int | None) -> None:
    assert expected == byte_size(count)


@pytest.mark.parametrize("name", ["web", "a/b", "ä ö", "..", "%2F", "a?b#c", MARKUP])
def test_every_name_comes_back_from_its_path(name: str) -> None:
    assert {"name": name} == match_path("/programs/{name}", path_to("programs", name))


@pytest.mark.parametrize("path", ["/programs", "/programs/", "/programs/a/b", "/other/a", "/"])
def test_a_path_of_another_shape_does_not_match(path: str) -> None:
    assert match_path("/programs/{name}", path) is None


def test_a_query_keeps_what_is_not_changed() -> None:
    assert "/p?text=a+b&page=2" == with_query("/p", {"text": "a b", "page": "1"}, page=2)
    assert "/p" == with_query("/p", {"page": "1"}, page=None)


@pytest.mark.parametrize("moment_then", [1e18, -1e18, 253402343999.0, float("inf"), float("nan")])
def test_a_moment_without_a_date_is_shown_as_the_nearest_that_has_one(moment_then: float) -> None:
    for shown in (age(moment_then), until(moment_then), moment(moment_then)):
        assert shown.startswith("<time ")
    assert clock_time(moment_then).endswith(" UTC")
    assert duration(moment_then)
