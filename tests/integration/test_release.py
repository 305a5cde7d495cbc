"""What `make release` refuses, and what the documentation tells people to install."""

from __future__ import annotations

import re
import shlex
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import longwatch
import release
from markdown_files import ROOT, pages

METADATA = """\
Metadata-Version: 2.4
Name: longwatch
Version: 1.2.3
Summary: Keeps workers alive
Requires-Python: >=3.11
License-Expression: Apache-2.0
License-File: LICENSE
Keywords: worker
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

# Longwatch

## Parts

| a | b |
|---|---|
| 1 | 2 |

```sh
pip install longwatch
```
"""


def metadata(*changes: tuple[str, str]) -> Message:
    text = METADATA
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Parser().parsestr(text)


def test_good_metadata_has_no_fault() -> None:
    assert [] == list(release.metadata_faults(metadata(), "1.2.3"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("Summary: Keeps workers alive\n", ""), "the metadata has no Summary"),
        (
            ("Version: 1.2.3", "Version: 1.2.4"),
            "the metadata has the version 1.2.4, the package 1.2.3",
        ),
        (("text/markdown", "text/x-rst"), "the description is text/markdown, got text/x-rst"),
        (("longwatch\n```", "longwatch\n"), "a block of code in the README is not closed"),
        (("|---|---|\n", ""), "the README renders without <table>"),
    ],
    ids=["no summary", "another version", "another format", "open block", "broken table"],
)
def test_faulty_metadata_is_refused(change: tuple[str, str], fault: str) -> None:
    assert fault in list(release.metadata_faults(metadata(change), "1.2.3"))


@pytest.mark.parametrize(
    ("heading", "faults"),
    [
        ("## 1.2.3 (2031-05-06)", 0),
        ("## 1.2.3 (unreleased)", 1),
        ("## 1.2.2 (2031-05-06)", 1),
        ("nothing", 1),
    ],
)
def test_a_changelog_has_the_version_and_its_date(heading: str, faults: int) -> None:
    text = f"# Changelog\n\n{heading}\n\n- It works.\n"
    assert faults == len(list(release.changelog_faults("1.2.3", text)))


def test_the_changelog_is_that_of_the_package() -> None:
    assert [] == list(release.changelog_faults(longwatch.__version__))


def test_the_readme_is_rendered_as_it_is_meant() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [] == list(release.description_faults(text))


def install_commands() -> list[tuple[Path, list[str]]]:
    """The names behind each `pip install` and `pip download` of Longwatch, by page."""
    found = []
    for page in pages("README.md", "docs/**/*.md"):
        text = page.path.read_text(encoding="utf-8")
        for words in re.findall(r"pip (?:install|download)((?: '[^']+'| [\w.\[\],=/-]+)+)", text):
            named = [word for word in shlex.split(words) if word.startswith("longwatch")]
            found += [(page.path, named)] if named else []
    return found


def test_every_install_command_names_the_package_and_extras_that_it_has() -> None:
    """No index has this package here, so `make release` installs the built wheel by that name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys()
    commands = install_commands()
    assert {ROOT / "README.md", ROOT / "docs" / "quickstart.md"} <= {path for path, _ in commands}
    for path, [word] in commands:
        name, _, wanted = word.removesuffix("]").partition("[")
        assert (project["name"], set()) == (name, {*filter(None, wanted.split(","))} - extras), path


def test_no_page_says_that_there_is_no_release() -> None:
    for page in pages("README.md", "docs/**/*.md"):
        text = page.path.read_text(encoding="utf-8")
        assert "no release" not in text
        assert "PATH_TO_CHECKOUT" not in text
