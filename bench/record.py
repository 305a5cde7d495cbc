"""Run benchmarks and put what they print into bench/RESULTS.md: `record.py` runs all, `record.py
startup` one.

A benchmark is a script beside this one: the first line of its docstring is `Title: what it
measures.`, and it prints Markdown. It is run by the interpreter that has the built wheel. Its
section stands between two markers that carry its name, and only that section is replaced.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
PYTHON = HERE.parent / "build" / "wheel-env" / "bin" / "python"
INTRODUCTION = """\
# Benchmark results

Written by `make bench`. Machines are noisy: compare the ratios within one table, \
not the times of two.
"""


def benches() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem != Path(__file__).stem)


def headline(name: str) -> tuple[str, str]:
    """Title and claim of a benchmark, from its docstring."""
    documentation = (
        ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or name
    )
    title, _, claim = documentation.splitlines()[0].partition(": ")
    return title, claim


def circumstances(name: str) -> str:
    """Versions, command and machine size: what a reader needs to judge or repeat the numbers."""
    version = "import longwatch, platform; print(longwatch.__version__, platform.python_version())"
    longwatch, python = subprocess.run(
        [PYTHON, "-c", version], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB"
    return f"Longwatch {longwatch}, Python {python}, {machine}; `{command(name)}`."


def command(name: str) -> str:
    """What was called, with the settings that leave parts out or repeat them less."""
    settings = sorted(
        f"{key}={value}" for key, value in os.environ.items() if key.startswith("BENCH_")
    )
    return " ".join(["make bench", f"BENCH={name}", *settings])


def section(name: str) -> str:
    title, claim = headline(name)
    printed = subprocess.run(
        [PYTHON, HERE / f"{name}.py"],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return (
        f"## "
        f"{title}\n\n{claim[:1].upper()}{claim[1:]}\n\n{printed.strip()}\n\n{circumstances(name)}"
    )


def placed(document: str, name: str, text: str) -> str:
    """The document with this section in place of its older self, or at the end."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    fresh = f"{start}\n{text}\n{end}"
    if start in document:
        return re.sub(
            f"{re.escape(start)}.*?{re.escape(end)}", lambda _: fresh, document, flags=re.DOTALL
        )
    return f"{document.rstrip()}\n\n{fresh}\n"


def main(wanted: list[str]) -> None:
    if unknown := sorted(set(wanted) - set(benches())):
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(benches())}")
    for name in wanted or benches():
        print(f"── {name}", flush=True)
        text = section(name)
        print(text)
        document = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else INTRODUCTION
        RESULTS.write_text(placed(document, name, text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
