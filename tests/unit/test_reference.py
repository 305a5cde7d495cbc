"""The pages below docs/reference have what the code says, and keep what was written by hand."""

from __future__ import annotations

import re

import pytest

import make_reference
from longwatch.core.events.base import Event
from markdown_files import Page
from reference import events, settings
from reference.parts import Part, ReferencePage, fill

BY_HAND = """# Page

Before.

<!-- generated one -->
| old |
<!-- end of generated -->

Between.
"""
ONE = {"one": Part("| new |")}


@pytest.mark.parametrize("page", make_reference.PAGES, ids=lambda page: page.file)
def test_a_page_is_as_the_code_says(page: ReferencePage) -> None:
    assert page.render() == page.path.read_text(encoding="utf-8"), "run `make reference`"


def test_a_part_is_replaced_and_the_rest_of_the_page_is_kept() -> None:
    assert BY_HAND.replace("old", "new") == fill(BY_HAND, ONE)
    assert fill(BY_HAND, ONE) == fill(fill(BY_HAND, ONE), ONE)


def test_a_part_that_the_code_no_longer_has_is_removed() -> None:
    assert "# Page\n\nBefore.\n\nBetween.\n" == fill(BY_HAND, {})


def test_a_new_part_gets_a_section_at_the_end_of_the_page() -> None:
    two = Part("| two |", heading="## Two", intro="What two is.")
    filled = fill(BY_HAND, ONE | {"two": two})

    end = "<!-- generated two -->\n| two |\n<!-- end of generated -->\n"
    assert filled.endswith(f"Between.\n\n## Two\n\nWhat two is.\n\n{end}")
    assert filled == fill(filled, ONE | {"two": two})


def test_a_new_part_replaces_the_table_of_options_of_a_section_that_was_written_by_hand() -> None:
    page = (
        "# Page\n\n### `two`\n\nIt does.\n\n| option | meaning |\n|---|---|\n| a | b |\n\nMore.\n"
    )
    filled = fill(page, {"two": Part("| two |", heading="## `two`")})

    part = "<!-- generated two -->\n| two |\n<!-- end of generated -->"
    assert f"# Page\n\n### `two`\n\nIt does.\n\n{part}\n\nMore.\n" == filled


def event_classes() -> list[type[Event]]:
    return [each for _, module in events.modules() for each in events.event_classes(module)]


@pytest.mark.parametrize("event", event_classes(), ids=lambda event: event.__name__)
def test_an_event_says_what_it_means(event: type[Event]) -> None:
    """In the docstring of its class; one whose level depends on its fields says how."""
    assert event.__doc__
    assert not event.__doc__.startswith(f"{event.__name__}(")
    assert event.level is Event.level or event.level.__doc__


def test_every_key_of_the_settings_says_what_it_means() -> None:
    rows = [(each.name, *row) for each in settings.tables() for row in settings.rows_of(each)]
    assert len(rows) > 100
    assert [] == [row for row in rows if not row[-1].strip()]


def test_the_anchors_of_the_pages_are_unique() -> None:
    for page in make_reference.PAGES:
        assert [] == [
            anchor for anchor in Page.read(page.path).anchors() if re.search(r"-\d+$", anchor)
        ]
