from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longwatch"

STDLIB_ONLY = ("core", "errors", "lazy", "sse")
FREE_OF_LIBRARIES = ("host", "supervisor")
LIBRARIES = {"aiohttp", "click", "msgspec", "prometheus_client", "psycopg", "redis", "rich"}


def modules_of(layer: str) -> list[Path]:
    """The files of a layer; a layer that is not written yet has none."""
    return [*PACKAGE.glob(f"{layer}.py"), *PACKAGE.glob(f"{layer}/**/*.py")]


def imported_tops(path: Path) -> Iterator[str]:
    """The first part of every absolute import, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    command = [
        f"{Path(sys.executable).with_name('lint-imports')}",
        "--no-cache",
        "--no-logo",
        "--config",
        str(ROOT / ".importlinter"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"}
    return subprocess.run(
        command, check=False, cwd=source, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of `src` that a test may spoil."""
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize("layer", STDLIB_ONLY)
def test_pure_layers_import_only_the_standard_library_and_longwatch(layer: str) -> None:
    used = {top for path in modules_of(layer) for top in imported_tops(path)}
    assert set() == used - sys.stdlib_module_names - {"longwatch"}


@pytest.mark.parametrize("layer", FREE_OF_LIBRARIES)
def test_host_and_supervisor_import_no_library_of_the_edges(layer: str) -> None:
    used = {
        (path.name, top)
        for path in modules_of(layer)
        for top in imported_tops(path)
        if top in LIBRARIES
    }
    assert set() == used - {("engine_api.py", "aiohttp")}, "only the Engine API loads aiohttp"


def test_the_layers_hold(source: Path) -> None:
    done = lint_imports(source)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "statement", "contract"),
    [
        ("core", "import longwatch.host.loop", "A layer uses only the layers below it"),
        ("core", "import msgspec", "Decisions stand on the standard library alone"),
        (
            "host",
            "import click",
            "Life inside a process knows no wire format, command line or metric library",
        ),
        ("host", "import longwatch.mailbox", "A layer uses only the layers below it"),
        (
            "observe",
            "import longwatch.mailbox",
            "Observers know events, not the features that emit them",
        ),
        ("supervisor", "import longwatch.mailbox", "The supervisor knows no queue, loop or graph"),
        ("flow", "import longwatch.mailbox", "Graphs know neither mailboxes nor their loops"),
        (
            "runner",
            "import longwatch.runtime",
            "The runner uses mailboxes, not the loops over them",
        ),
        ("no_layer", "import longwatch.core", "A layer uses only the layers below it"),
    ],
)
def test_an_import_against_the_layers_breaks_the_contract(
    source: Path, package: str, statement: str, contract: str
) -> None:
    for name in (package, "mailbox", "runtime"):
        (source / "longwatch" / name).mkdir(exist_ok=True)
        (source / "longwatch" / name / "__init__.py").touch()
    (source / "longwatch" / package / "against_the_layers.py").write_text(statement + "\n")
    done = lint_imports(source)
    assert 1 == done.returncode, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout
