"""`longwatch up` read without click: what is plain, and what is left to it."""

from __future__ import annotations

import pytest

from longwatch.cli.fast_up import OPTION_NAMES, parse_up_options
from longwatch.cli.up import up


def test_up_without_words_is_plain() -> None:
    assert {} == parse_up_options(["up"])


@pytest.mark.parametrize(
    "words",
    [["--config", "a.toml", "--log-level", "debug"], ["--config=a.toml", "--log-level=debug"]],
)
def test_options_are_plain_with_their_values_behind_them_or_joined(words: list[str]) -> None:
    assert {"config": "a.toml", "log_level": "debug"} == parse_up_options(["up", *words])


def test_the_last_of_two_values_counts_as_it_does_for_click() -> None:
    assert {"config": "b"} == parse_up_options(["up", "--config", "a", "--config", "b"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["status"],
        ["--debug", "up"],
        ["up", "--help"],
        ["up", "web"],
        ["up", "--config"],
        ["up", "--config", ""],
        ["up", "--config="],
        ["up", "--config", "--help"],
        ["up", "--conf", "a.toml"],
        ["up", "--state_dir", "a"],
        ["up", "config", "a.toml"],
        ["up", "-config", "a.toml"],
        ["up", "--", "a"],
        ["up", "--log-level", "debug", "--help"],
    ],
)
def test_everything_else_is_left_to_click(words: list[str]) -> None:
    assert parse_up_options(words) is None


def test_the_options_are_those_of_up() -> None:
    assert tuple(param.name for param in up.params) == OPTION_NAMES
