"""How long functions and files of `src` are. A function counts from `def` to its last line,
without its docstring.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG_FUNCTION, LONGEST_FUNCTION, LONGEST_FILE = 50, 80, 500

# "path::function" or "path" -> why it has to be that long. An entry that is not needed any more
# fails as well.
REASONS: dict[str, str] = {}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Measured:
    """A function or a file, and its length in lines."""

    name: str
    lines: int


def functions(path: Path, name: str) -> Iterator[Measured]:
    """Every function of one file, nested ones and methods too; a nested one counts in its outer
    one as well.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, _Function):
            yield Measured(f"{name}::{node.name}", _lines(node))


def measure(source: Path) -> tuple[list[Measured], list[Measured]]:
    """All functions and all files below a folder."""
    paths = {
        path.relative_to(source.parent).as_posix(): path for path in sorted(source.rglob("*.py"))
    }
    files = [
        Measured(name, len(path.read_text(encoding="utf-8").splitlines()))
        for name, path in paths.items()
    ]
    return [each for name, path in paths.items() for each in functions(path, name)], files


def report(found: list[Measured], files: list[Measured]) -> Iterator[str]:
    sizes = sorted(each.lines for each in found) or [0]
    ninth = sizes[min(len(sizes) - 1, len(sizes) * 9 // 10)]
    spread = (
        f"median {statistics.median(sizes):g} lines, nine in ten up to {ninth}, longest {sizes[-1]}"
    )
    yield f"{len(found)} functions in {len(files)} files: {spread}"
    yield from _listing(
        f"functions over {LONG_FUNCTION} lines",
        [each for each in found if each.lines > LONG_FUNCTION],
    )
    yield from _listing(
        f"files over {LONGEST_FILE} lines", [each for each in files if each.lines > LONGEST_FILE]
    )


def violations(found: list[Measured], files: list[Measured], reasons: dict[str, str]) -> list[str]:
    """What is too long without a reason, and reasons that nothing needs."""
    too_long = [each for each in found if each.lines > LONGEST_FUNCTION] + [
        each for each in files if each.lines > LONGEST_FILE
    ]
    unexplained = [
        f"{each.name} has {each.lines} lines: split it"
        for each in too_long
        if each.name not in reasons
    ]
    idle = sorted(set(reasons) - {each.name for each in too_long})
    return unexplained + [
        f"{name} is short enough now: drop its reason from tools/size_limits.py" for name in idle
    ]


def main() -> None:
    found, files = measure(ROOT / "src")
    print(*report(found, files), sep="\n")
    if problems := violations(found, files, REASONS):
        sys.exit("\n".join(problems))


def _lines(node: _Function) -> int:
    first = node.body[0]
    documented = ast.get_docstring(node, clean=False) is not None
    return _span(node) - (_span(first) if documented else 0)


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _listing(title: str, items: list[Measured]) -> Iterator[str]:
    yield f"{title}: {len(items)}"
    yield from (
        f"  {each.lines:4} {each.name}" for each in sorted(items, key=lambda each: -each.lines)
    )


if __name__ == "__main__":
    main()
