from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import size_limits
from size_limits import Measured

SAMPLE = '''
@decorated
def outer(a,
          b):
    """Two lines of
    documentation."""
    def inner():
        return 1
    return inner


class Thing:
    async def method(self): ...
'''


def test_a_function_counts_from_def_to_its_last_line_without_docstring(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(SAMPLE)
    expected = {
        Measured("sample.py::outer", 5),
        Measured("sample.py::inner", 2),
        Measured("sample.py::method", 1),
    }
    assert expected == set(size_limits.functions(path, "sample.py"))


def test_a_folder_is_measured_with_names_that_begin_at_it(tmp_path: Path) -> None:
    (tmp_path / "src" / "package").mkdir(parents=True)
    (tmp_path / "src" / "package" / "module.py").write_text("def f(): ...\n\n\nx = 1\n")
    found, files = size_limits.measure(tmp_path / "src")
    assert [Measured("src/package/module.py::f", 1)] == found
    assert [Measured("src/package/module.py", 4)] == files


@given(lines=st.integers(min_value=1, max_value=200))
def test_a_function_is_refused_exactly_above_the_limit(lines: int) -> None:
    assert (lines > 80) == bool(size_limits.violations([Measured("src/a.py::f", lines)], [], {}))


@given(lines=st.integers(min_value=1, max_value=1000))
def test_a_file_is_refused_exactly_above_the_limit(lines: int) -> None:
    assert (lines > 500) == bool(size_limits.violations([], [Measured("src/a.py", lines)], {}))


def test_a_reason_excuses_what_it_names() -> None:
    assert [] == size_limits.violations(
        [Measured("src/a.py::f", 90)], [], {"src/a.py::f": "a table"}
    )


def test_a_reason_that_nothing_needs_is_a_fault() -> None:
    [fault] = size_limits.violations([Measured("src/a.py::f", 9)], [], {"src/a.py::f": "a table"})
    assert "src/a.py::f is short enough now" in fault


def test_the_report_names_long_functions_and_the_spread() -> None:
    found = [Measured(f"src/a.py::f{n}", n) for n in range(1, 11)] + [
        Measured("src/a.py::long", 60)
    ]
    first, *rest = size_limits.report(found, [Measured("src/a.py", 115)])
    assert "11 functions in 1 files: median 6 lines, nine in ten up to 10, longest 60" == first
    assert [
        "functions over 50 lines: 1",
        "    60 src/a.py::long",
        "files over 500 lines: 0",
    ] == rest
