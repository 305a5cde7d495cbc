"""What a person is told to install when a package of an extra is missing."""

from __future__ import annotations

import shlex
import tomllib
from importlib import metadata
from typing import Any

import pytest

from longwatch.core.extras import install_command
from markdown_files import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("extra", ["postgres", "redis", "runner", "containers", "otel"])
def test_the_command_names_the_packages_of_the_extra_as_declared(extra: str) -> None:
    assert ["pip", "install", *EXTRAS[extra]] == shlex.split(install_command(extra))


def test_an_extra_that_needs_another_one_of_ours_names_the_packages_of_both() -> None:
    """The product itself is on no registry, so the command must not ask for it."""
    assert "longwatch[runner]" in EXTRAS["mcp"]
    assert {*EXTRAS["runner"], "mcp>=2"} == {*shlex.split(install_command("mcp"))[2:]}


def test_without_metadata_the_command_is_that_of_a_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert "pip install '.[redis]'" == install_command("redis")
