"""The examples of the page about tracing, with the SDK, which the wheel's environment has not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from markdown_files import Block, pages

BLOCKS = [
    block
    for page in pages("docs/how-to/trace-messages.md")
    for block in page.blocks
    if block.info[:1] == ("python",)
]
SPANS = [
    "send orders",
    "POST /orders",
    "charge the card",
    "send receipts",
    "process orders",
    "process receipts",
]


def output_of(block: Block, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (0, "") == (done.returncode, done.stderr), block.location
    return done.stdout.splitlines()


def test_the_example_prints_the_spans_that_the_page_names(tmp_path: Path) -> None:
    lines = output_of(BLOCKS[0], tmp_path)
    assert [*SPANS[:5], "paid", SPANS[5]] == [line.partition(":")[0] for line in lines]


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.location)
def test_the_other_examples_run(block: Block, tmp_path: Path) -> None:
    assert [] == output_of(block, tmp_path)
