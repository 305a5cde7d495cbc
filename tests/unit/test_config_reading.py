from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from longwatch.config.settings_reader import (
    UNSET,
    EnvironmentVariable,
    Override,
    from_environment,
    from_flags,
    read_settings,
)
from longwatch.config.tomlfile import MAX_BYTES, read_toml
from longwatch.errors import ConfigError, Fault

Seconds = Annotated[float, Meta(ge=0, description="a number of seconds")]


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    every: Seconds = 10.0


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: list[str] | dict[str, Colour] = []
    size: Annotated[int | str, Meta(description="a size")] | None = None

    def faults(self) -> Iterator[Fault]:
        if self.size == 0:
            yield Fault("size", "is nothing")

    @classmethod
    def faults_among(cls, steps: Mapping[str, Step | None]) -> Iterator[tuple[str, Fault]]:
        for name, step in steps.items():
            if name == "none":
                yield name, Fault("", "is no name")
            for wanted in set(step.after if step else ()) - steps.keys():
                yield name, Fault("after", f"has {wanted}, which is not there", "add it")


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    low: int = 0
    high: Annotated[int, Meta(ge=0, le=100)] = 10

    def faults(self) -> Iterator[Fault]:
        if self.low > self.high:
            yield Fault("low", f"must not be more than high ({self.high})", "lower it")


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "x"
    wait: Seconds | Literal["off"] = 1.0
    colour: Colour = Colour.RED
    on: bool = False
    codes: list[Annotated[int, Meta(ge=0)]] = []
    words: tuple[str, ...] = ()
    env: dict[str, str] = {}
    maybe: int | None = None
    inner: Inner = Inner()
    probe: Probe | None = None
    program: dict[str, Probe] = {}
    step: dict[str, Step] = {}
    token: str = ""


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `longwatch.toml` in the working directory, named as a person would name it."""
    monkeypatch.chdir(tmp_path)
    path = Path("longwatch.toml")
    path.touch()
    return path


def faults_of(path: Path | None, overrides: list[Override] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_settings(Outer, path=path, overrides=overrides or [])
    return [str(fault) for fault in caught.value.faults]


def environment(path: str, value: str, **options: Any) -> list[Override]:
    return from_environment([EnvironmentVariable(name="VAR", path=path, **options)], {"VAR": value})


def flag(path: str, value: object) -> list[Override]:
    return from_flags({path: value}, flag_name=lambda path: f"--{path}")


def test_without_any_layer_the_settings_are_the_defaults(toml: Path) -> None:
    assert Outer() == read_settings(Outer) == read_settings(Outer, path=toml)


def test_every_kind_of_value_is_read_from_a_file(toml: Path) -> None:
    toml.write_text("""
        name = "web"
        wait = "off"
        colour = "green"
        on = true
        codes = [1, 2]
        words = ["a"]
        env.A = "1"
        maybe = 3
        inner.low = 5
        probe.url = "u"
        [program.web-1]
        url = "v"
        every = 5
    """)

    assert Outer(
        name="web", wait="off", colour=Colour.GREEN, on=True, codes=[1, 2], words=("a",),
        env={"A": "1"}, maybe=3,
        inner=Inner(low=5), probe=Probe(url="u"), program={"web-1": Probe(url="v", every=5.0)},
    ) == read_settings(Outer, path=toml)  # fmt: skip


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(toml: Path) -> None:
    toml.write_text("wait = 2")
    from_env, from_flag = environment("wait", "3"), flag("wait", 4)

    layers: list[list[Override]] = [[], from_env, [*from_env, *from_flag], from_flag]
    assert [2.0, 3.0, 4.0, 4.0] == [
        read_settings(Outer, path=toml, overrides=over).wait for over in layers
    ]


def test_a_flag_that_was_not_given_says_nothing() -> None:
    assert [] == flag("wait", None)


def test_an_empty_variable_and_one_that_is_parsed_to_nothing_count_as_not_set() -> None:
    assert [] == environment("wait", "")
    assert [] == environment("wait", "x", parse=lambda _: UNSET)


def test_tables_of_plain_values_are_merged_over_the_layers(toml: Path) -> None:
    toml.write_text('env = {A = "1", B = "1"}')

    assert {"A": "1", "B": "2", "C": "2"} == read_settings(
        Outer, path=toml, overrides=flag("env", {"B": "2", "C": "2"})
    ).env


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("maybe", " 8080 ", 8080),
        ("wait", "1.5", 1.5),
        ("wait", "off", "off"),
        ("on", "YES", True),
        ("on", "0", False),
        ("name", "5", "5"),
    ],
)
def test_text_from_the_environment_is_read_as_the_settings_type_has_it(
    path: str, text: str, value: object
) -> None:
    assert value == getattr(read_settings(Outer, overrides=environment(path, text)), path)


def test_an_optional_table_comes_to_life_when_only_the_environment_speaks_of_it() -> None:
    assert Probe(url="u") == read_settings(Outer, overrides=environment("probe.url", "u")).probe


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nmae = 1", "nmae: unknown key; did you mean name?"),
        (
            "zzz = 1",
            (
                "zzz: unknown key; valid here: codes, colour, env, inner, maybe, name, on, probe, "
                "program, step, token, wait, words"
            ),
        ),
        ("inner.lwo = 1", "inner.lwo: unknown key; did you mean low?"),
        ("name = 5", "name: must be text, not 5; put it in quotes"),
        ("wait = -1", 'wait: must be a number of seconds or "off", not -1'),
        ("wait = nan", 'wait: must be a number of seconds or "off", not nan'),
        ("wait = inf", 'wait: must be a number of seconds or "off", not inf'),
        ("wait = true", 'wait: must be a number of seconds or "off", not true'),
        (
            "wait = '5'",
            'wait: must be a number of seconds or "off", not "5"; write it without quotes',
        ),
        ("wait = 'of'", 'wait: must be a number of seconds or "off", not "of"; did you mean off?'),
        ("colour = 'gren'", 'colour: must be "red" or "green", not "gren"; did you mean green?'),
        ("on = 1", "on: must be true or false, not 1"),
        ("codes = 1", "codes: must be a list (a whole number, 0 or more each), not 1"),
        ("codes = [1, -2]", "codes[1]: must be a whole number, 0 or more, not -2"),
        ("env = []", "env: must be a table, not a list"),
        ("env.A = 5", "env.A: must be text, not 5; put it in quotes"),
        ("env.'a b' = {}", 'env."a b": must be text, not a table'),
        ("maybe = 1.5", "maybe: must be a whole number, not 1.5"),
        ("maybe = 2020-01-01", "maybe: must be a whole number, not a date"),
        ("inner = 5", "inner: must be a table, not 5"),
        ("inner.high = 101", "inner.high: must be a whole number from 0 to 100, not 101"),
        ("inner.low = 11", "inner.low: must not be more than high (10); lower it"),
        ("probe = {}", "probe.url: is missing; set it to text"),
        ("program.web.every = 1", "program.web.url: is missing; set it to text"),
        (
            "program.web = {url = 'u', evry = 1}",
            "program.web.evry: unknown key; did you mean every?",
        ),
        ("step.a.after = 5", "step.a.after: must be a list (text each) or a table, not 5"),
        (
            "step.a.after = {b = 'rde'}",
            'step.a.after.b: must be "red" or "green", not "rde"; did you mean red?',
        ),
        ("step.a.size = []", "step.a.size: must be a size, not a list"),
        ("token = 12345", "token: must be text, not ***; put it in quotes"),
        (
            "wait = 'http://u:s3cret@h'",
            'wait: must be a number of seconds or "off", not "http://***@h"',
        ),
        (r"maybe = 'a\nb'", r'maybe: must be a whole number, not "a\nb"'),
        ('maybe = "\\u001b[2J\\n"', r'maybe: must be a whole number, not "\x1b[2J\n"'),
        (
            '"a\\nb" = 1',
            (
                r'"a\nb": unknown key;'
                " valid here: codes, colour, env, inner, maybe, name, on, probe, program, "
                "step, token, wait, words"
            ),
        ),
    ],
)
def test_a_wrong_entry_is_named_with_its_place_what_it_must_be_and_the_cure(
    toml: Path, text: str, fault: str
) -> None:
    toml.write_text(text)

    assert [f"longwatch.toml: {fault}"] == faults_of(toml)


def test_every_fault_of_every_layer_is_reported_at_once(toml: Path) -> None:
    toml.write_text(
        "wait = -1\nnmae = 1\ncodes = [-1, 'x']\ninner = {low = 'a', high = 'b'}\nprobe = "
        "{every = -1}"
    )
    faults = faults_of(toml, [*environment("wait", "soon"), *flag("maybe", "many")])

    assert [
        "longwatch.toml: nmae", "longwatch.toml: wait", "environment variable VAR",
        "longwatch.toml: codes[0]", "longwatch.toml: codes[1]", "--maybe",
        "longwatch.toml: inner.low", "longwatch.toml: inner.high",
        "longwatch.toml: probe.url", "longwatch.toml: probe.every",
    ] == [
        re.split(r": must|: is missing|: unknown| takes", fault)[0] for fault in faults
    ]  # fmt: skip


def test_entries_of_a_table_are_judged_side_by_side_the_faulty_ones_among_them(toml: Path) -> None:
    toml.write_text(
        "[step]\na = {after = ['b', 'c', 'd']}\nb.size = 0\nnone = {}\n'x y' = {after = "
        "['y']}\nd.size = 'k'"
    )

    assert [
        "longwatch.toml: step.b.size: is nothing",
        "longwatch.toml: step.a.after: has c, which is not there; add it",
        "longwatch.toml: step.none: is no name",
        'longwatch.toml: step."x y".after: has y, which is not there; add it',
    ] == faults_of(toml)


def test_one_wrong_variable_for_two_settings_is_one_fault() -> None:
    variables = [
        EnvironmentVariable(name="VAR", path="maybe"),
        EnvironmentVariable(name="VAR", path="inner.low"),
    ]

    assert 1 == len(faults_of(None, from_environment(variables, {"VAR": "x"})))


def test_a_value_is_checked_even_if_a_stronger_layer_overrides_it(toml: Path) -> None:
    toml.write_text("maybe = 'x'")

    assert 1 == len(faults_of(toml, flag("maybe", 5)))


def test_faults_below_a_table_that_is_none_are_reported_too(toml: Path) -> None:
    toml.write_text("inner = 5")

    faults = faults_of(toml, environment("inner.high", "x"))
    assert ["environment variable VAR", "longwatch.toml"] == [
        fault.split(":")[0] for fault in faults
    ]


def test_a_variable_is_named_with_its_value_and_what_it_must_be() -> None:
    (fault,) = faults_of(None, environment("inner.high", "abc"))

    assert (
        'environment variable VAR: must be a whole number from 0 to 100, not "abc"; correct '
        "it or unset it" == fault
    )


def test_a_fault_between_fields_names_the_layer_the_value_came_from() -> None:
    (fault,) = faults_of(None, flag("inner.low", 50))

    assert "--inner.low must not be more than high (10); lower it" == fault


def test_an_override_for_a_setting_that_does_not_exist_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match=r"inner\.hihg"):
        read_settings(Outer, overrides=flag("inner.hihg", 1))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            b"a = 1\nb = 2\nname == 3",
            "longwatch.toml:3:7: is not valid TOML: invalid value; text needs quotes",
        ),
        (b"name = ", "longwatch.toml:1:8: is not valid TOML: invalid value; text needs quotes"),
        (b"name = 'x", 'longwatch.toml:1:10: is not valid TOML: expected "\'"'),
        (
            b"[run\n",
            "longwatch.toml:1:5: is not valid TOML: expected ']' at the end of a table declaration",
        ),
        (b"name = 1\nname = 2", "longwatch.toml:2:9: is not valid TOML: cannot overwrite a value"),
        (
            b"[program.web]\n[program.'web']\n",
            (
                "longwatch.toml:2:15: there are two programs of the name web; rename one, or put "
                "their keys into one table"
            ),
        ),
        (
            b"[program.web.env]\n[program.web.env]",
            (
                "longwatch.toml:2:17: the table [program.web.env] is there twice; put its keys "
                "into one"
            ),
        ),
        (
            b"[run]\n[run]",
            "longwatch.toml:2:5: the table [run] is there twice; put its keys into one",
        ),
        (
            "é = 1\nä".encode() + b"\xff",
            "longwatch.toml:2:2: is not UTF-8 text; save the file as UTF-8",
        ),
        (b"\x00", "longwatch.toml:1:1: is not valid TOML: invalid statement"),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_line_and_column(
    toml: Path, content: bytes, fault: str
) -> None:
    toml.write_bytes(content)

    assert [fault] == faults_of(toml)


@pytest.mark.parametrize(
    "content", ["x = " + "[" * 20_000, "x = " + "9" * 5000], ids=["nested", "long number"]
)
def test_toml_that_would_exhaust_the_parser_is_a_fault(toml: Path, content: str) -> None:
    toml.write_text(content)

    assert faults_of(toml)[0].startswith("longwatch.toml: is not valid TOML")


def test_a_file_that_is_too_large_is_not_read(toml: Path) -> None:
    toml.write_text("#" * (MAX_BYTES + 1))

    assert "larger than 1 MiB" in faults_of(toml)[0]


def test_a_byte_order_mark_is_no_fault(toml: Path) -> None:
    toml.write_bytes(b"\xef\xbb\xbfname = 'web'")

    assert "web" == read_settings(Outer, path=toml).name


def test_a_file_that_cannot_be_read_is_named_with_the_reason(toml: Path) -> None:
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")

    reasons = [
        faults_of(Path(name))[0]
        for name in ("missing.toml", ".", "fifo", "longwatch.toml/x", "loop")
    ]
    assert [
        (
            "missing.toml: cannot be read: no such file or directory; name a TOML file that you "
            "may read"
        ),
        ".: is a directory; name a TOML file",
        "fifo: is not a regular file; name a TOML file",
        "longwatch.toml/x: cannot be read: not a directory; name a TOML file that you may read",
        (
            "loop: cannot be read: too many levels of symbolic links; name a TOML file that you "
            "may read"
        ),
    ] == reasons


def test_the_other_layers_are_checked_even_if_the_file_cannot_be_read(toml: Path) -> None:
    toml.write_text("=")

    assert 2 == len(faults_of(toml, environment("maybe", "x")))


@given(content=st.binary() | st.text().map(str.encode))
def test_any_bytes_give_a_table_or_one_fault_on_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    table, faults = read_toml(path)

    assert not faults or ({} == table and 1 == len(faults) and str(faults[0]).isprintable())


toml_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(path=st.sampled_from(Outer.__struct_fields__), value=toml_values)
def test_any_value_anywhere_is_accepted_or_refused_in_one_printable_line_each(
    path: str, value: object
) -> None:
    from longwatch.config.settings_reader import _Location, _SettingsReader  # noqa: PLC0415 - the walk without a file

    walk = _SettingsReader([], source="longwatch.toml")
    kind: Any = msgspec.inspect.type_info(Outer)
    walk.struct(kind, _Location("", "longwatch.toml"), {path: value})

    assert all(str(fault).isprintable() for fault in walk.faults)
