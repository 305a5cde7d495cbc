from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from markdown_files import ROOT, Block, Page, pages, section

TREE = Path(__file__).with_name("cli_tree.py")
REFERENCE = ROOT / "docs" / "reference" / "cli.md"
INTERNALS = ROOT / "docs" / "internals.md"
GUARANTEES = ROOT / "docs" / "discussions" / "guarantees.md"
TIME_LIMIT = 120
MOST_FILES = 40
MOST_README_LINES = 90

EXAMPLES = pages("README.md", "docs/**/*.md", "examples/*.md")
EVERYTHING = pages("*.md", "docs/**/*.md", "bench/*.md", "examples/*.md")
PYTHON = [
    block
    for page in EXAMPLES
    for block in page.blocks
    if block.info[:1] == ("python",) and "no-run" not in block.info
]
WITH_PYTHON = [page for page in EXAMPLES if any(block.path == page.path for block in PYTHON)]
SHELL = [
    block for page in EXAMPLES for block in page.blocks if block.info[:1] in {("console",), ("sh",)}
]
TOML = [block for page in EXAMPLES for block in page.blocks if block.info[:1] == ("toml",)]
LOADS = (
    "import sys, pathlib, longwatch.config.settings as s; "
    "s.load_settings(path=pathlib.Path(sys.argv[1]), environ={}, flags={})"
)
COMMAND_LINES = [
    (block.location, line)
    for block in SHELL
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.startswith("$ longwatch")
]


def named(page: Page) -> str:
    return str(page.path.relative_to(ROOT))


def mentions(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def cli_tree(python: Path, *lines: str) -> Any:
    done = subprocess.run(
        [python, TREE, *lines], check=False, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def arguments(line: str) -> list[str]:
    """The words behind `longwatch`, up to a pipe, a redirection or the next command of the
    shell.
    """
    lexer = shlex.shlex(line.removeprefix("$ longwatch"), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [index for index, word in enumerate(words) if re.fullmatch(r"[|&;<>]+", word)]
    return words[: ends[0]] if ends else words


@pytest.fixture(scope="module")
def commands(wheel_python: Path) -> list[dict[str, Any]]:
    """Every command that the installed product has, with its options."""
    found: list[dict[str, Any]] = cli_tree(wheel_python)
    return found


def run_example(block: Block, python: Path, directory: Path) -> None:
    script = directory / "example.py"
    script.write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [python, script],
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert 0 == done.returncode, block.location + "\n" + done.stdout + done.stderr


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.location)
def test_a_python_example_runs(block: Block, wheel_python: Path, tmp_path: Path) -> None:
    run_example(block, wheel_python, tmp_path)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=named)
def test_a_page_read_from_top_to_bottom_runs_in_one_directory_and_a_second_time(
    page: Page, wheel_python: Path, tmp_path: Path
) -> None:
    for block in 2 * [block for block in PYTHON if block.path == page.path]:
        run_example(block, wheel_python, tmp_path)


def test_every_command_line_in_the_docs_parses(wheel_python: Path) -> None:
    faults = (
        cli_tree(wheel_python, *(json.dumps(arguments(line)) for _, line in COMMAND_LINES))
        if COMMAND_LINES
        else []
    )
    assert [] == [
        (*told, fault)
        for told, fault in zip(COMMAND_LINES, faults, strict=True)
        if fault is not None
    ]


@pytest.mark.parametrize("block", TOML, ids=lambda block: block.location)
def test_a_file_of_settings_in_the_docs_has_no_faults(
    block: Block, wheel_python: Path, tmp_path: Path
) -> None:
    file = tmp_path / "longwatch.toml"
    file.write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [wheel_python, "-c", LOADS, file],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert 0 == done.returncode, block.location + "\n" + done.stderr


def test_every_command_is_documented(commands: list[dict[str, Any]]) -> None:
    text = "\n".join(page.path.read_text(encoding="utf-8") for page in pages("docs/**/*.md"))
    assert [] == [command["path"] for command in commands if not mentions(text, command["path"])]


def test_every_option_stands_in_the_reference_below_its_command(
    commands: list[dict[str, Any]],
) -> None:
    reference = Page.read(REFERENCE)
    texts = {command["path"]: section(reference, command["path"]) or "" for command in commands}
    texts["longwatch"] = REFERENCE.read_text(encoding="utf-8")
    wanted = [(command["path"], option) for command in commands for option in command["options"]]
    missing = [f"{path} {option}" for path, option in wanted if not mentions(texts[path], option)]
    assert [] == missing, (
        "each command has a heading of its own in docs/reference/cli.md, and its options below it"
    )


@pytest.mark.parametrize("page", EVERYTHING, ids=named)
def test_links_between_pages_resolve(page: Page) -> None:
    broken = []
    for link in page.links():
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        path = (page.path.parent / target).resolve() if target else page.path
        lacks_anchor = (
            anchor
            and path.suffix == ".md"
            and path.exists()
            and anchor not in Page.read(path).anchors()
        )
        if not path.exists() or lacks_anchor:
            broken.append(link)
    assert [] == broken


def test_the_page_about_the_inside_names_at_most_40_files_and_all_of_them_exist() -> None:
    """Paths are below the package or the repository. A reader can open every file of five flows."""
    text = INTERNALS.read_text(encoding="utf-8")
    words = set(re.findall(r"`([^`\s]+)`", text))
    paths = {word for word in words if re.search(r"\.(py|sql|lua|md)$|/$", word)}
    package = ROOT / "src" / "longwatch"
    missing = [path for path in paths if not any((top / path).exists() for top in (package, ROOT))]
    assert [] == sorted(missing)
    files = {path for path in paths if not path.endswith("/")}
    assert 20 < len(files) <= MOST_FILES
    flows = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [f"{number}" for number in range(1, 6)] == [flow.split(".")[0] for flow in flows]


def test_the_readme_fits_on_one_page() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_README_LINES


def test_the_index_of_the_docs_links_to_every_page() -> None:
    index = Page.read(ROOT / "docs" / "README.md")
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links()}
    assert [] == [
        named(page) for page in pages("docs/**/*.md") if page.path not in linked | {index.path}
    ]


@pytest.mark.parametrize("page", pages("README.md", "docs/**/*.md", "examples/*.md"), ids=named)
def test_prose_fits_in_100_columns(page: Page) -> None:
    """Not the output of programs in blocks, which is shown as it comes; nor rows of tables."""
    assert [] == [line for line in page.prose if len(line) > 100 and not line.startswith("|")]


@pytest.mark.parametrize("page", EXAMPLES, ids=named)
def test_no_example_signals_processes_by_name(page: Page) -> None:
    """`pkill` and `pgrep -f` hit every Longwatch of a machine; examples use a pid."""
    assert [] == [
        block.location
        for block in page.blocks
        if re.search(r"\b(pkill|killall|pgrep)\b", block.text)
    ]


def test_the_page_of_guarantees_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text(encoding="utf-8")
    names = set(re.findall(r"`(test_\w+\.py)`", text))
    assert len(names) > 30
    assert set() == names - {path.name for path in (ROOT / "tests").rglob("test_*.py")}
