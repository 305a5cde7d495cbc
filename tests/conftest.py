from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import wheel_env
from chaos_plan import ChaosPlan
from guardian_fixture import GuardianFixture, require_cgroups, running_guardian
from leaks import Snapshot

# A slow machine is no fault of the code under test.
settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "chaos", settings.get_profile("default"), derandomize=False, max_examples=1000, print_blob=True
)
# For the other Pythons: the first examples of those that the main one runs.
settings.register_profile("few", settings.get_profile("default"), max_examples=20)
settings.load_profile("default")

# Tests send these signals to programs they start. A shell may have had them ignored (nohup, `make
# test &` in a script), and children inherit that; so the tests set what a terminal would.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No status page beside each `longwatch up` of a test; the tests of the page set their own port.
os.environ.setdefault("LONGWATCH_PAGE_PORT", "off")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("longwatch")
    group.addoption("--chaos-seed", type=int, default=1, help="the seed of tests marked chaos")
    group.addoption(
        "--chaos-seconds", type=float, default=4.0, help="how long a test marked chaos runs"
    )
    group.addoption(
        "--wheel-python",
        type=Path,
        help="the Python of another environment with the built wheel, for the acceptance tests",
    )


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, which many tests force."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> ChaosPlan:
    """Seed and length of a chaos test."""
    return ChaosPlan(
        request.config.getoption("--chaos-seed"), request.config.getoption("--chaos-seconds")
    )


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def guardian(request: pytest.FixtureRequest) -> Iterator[GuardianFixture]:
    """A guardian and a loop, with each way to know one's children."""
    if request.param:
        require_cgroups()
    with running_guardian(cgroups=request.param) as opened:
        yield opened


@pytest.fixture
def guardian_without_cgroups() -> Iterator[GuardianFixture]:
    """A guardian that knows its children by their marks only."""
    with running_guardian(cgroups=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_leaked_processes() -> Iterator[None]:
    """Fails a test that leaves a child process or a thread that would keep the process alive."""
    before = Snapshot.take()
    yield
    if left := before.left_behind():
        pytest.fail("left running: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def wheel_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment that holds the built wheel and nothing else."""
    other: Path | None = request.config.getoption("--wheel-python")
    if other is not None:
        return other
    if problem := wheel_env.stale_reason():
        pytest.fail(problem, pytrace=False)
    return wheel_env.PYTHON


@pytest.fixture(scope="session")
def longwatch_bin(wheel_python: Path) -> Path:
    """The `longwatch` command of the built wheel."""
    return wheel_python.with_name("longwatch")
