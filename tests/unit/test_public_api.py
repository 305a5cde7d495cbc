from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import public_api
from longwatch.lazy import read_exports

PACKAGES = list(public_api.lazy_packages())
RECORD = Path(__file__).with_name("public_api.txt")
NEWLY_LOADED = """
import json, sys
before = set(sys.modules)
__import__(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - before)))
"""

every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)


def loaded_by_importing(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", NEWLY_LOADED, name], check=True, stdout=subprocess.PIPE, text=True
    )
    modules: list[str] = json.loads(done.stdout)
    return modules


@every_package
def test_all_lists_the_stub_in_order(package: ModuleType) -> None:
    own = {"__version__"} if hasattr(package, "__version__") else set()
    exports = read_exports(package.__name__)
    names = {name for name, module in exports.items() if module != package.__name__}
    assert sorted(names | own) == package.__all__


@every_package
def test_dir_shows_the_public_names(package: ModuleType) -> None:
    assert package.__all__ == dir(package)


@pytest.mark.parametrize("name", public_api.names())
def test_a_public_name_resolves_and_lives_where_the_stub_says(name: str) -> None:
    package_name, _, attribute = name.rpartition(".")
    [package] = [each for each in PACKAGES if each.__name__ == package_name]
    value = getattr(package, attribute)
    if home := read_exports(package_name).get(attribute):
        assert home == getattr(value, "__module__", home)


@every_package
def test_an_unknown_name_is_refused_by_name(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'"):
        _ = package.no_such_name


@every_package
def test_importing_a_lazy_package_loads_nothing_but_the_standard_library_and_no_event_loop(
    package: ModuleType,
) -> None:
    tops = {module.partition(".")[0] for module in loaded_by_importing(package.__name__)}
    assert {"longwatch"} == tops - sys.stdlib_module_names
    assert "asyncio" not in tops


def test_the_public_names_are_the_recorded_ones() -> None:
    recorded = RECORD.read_text(encoding="utf-8").split()
    assert recorded == public_api.names(), (
        "a wanted change of the public surface is recorded with `make api`"
    )
