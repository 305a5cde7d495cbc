"""Files that other processes write while a test reads them."""

from __future__ import annotations

from pathlib import Path


def written_lines(path: Path) -> list[str]:
    """The whole lines of a file; the last one may just be written, and there may be no file yet."""
    try:
        whole, _, _ = path.read_text().rpartition("\n")
    except FileNotFoundError:
        return []
    return whole.splitlines()
