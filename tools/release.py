"""`make release`: builds wheel and sdist from a clean tree, and checks that they can be uploaded.

In order: tree and changelog → build → metadata → a new environment with every extra → contents and
the first pages of the documentation, in that environment → what to upload. It uploads nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import wheel_env

ROOT = wheel_env.ROOT
ENVIRONMENT = ROOT / "build" / "release-env"
TESTS = ROOT / "tests" / "acceptance"
FOLLOWED = (
    TESTS / "test_wheel.py",
    TESTS / "test_first_pages.py",
    TESTS / "follow_quickstart.py",
)
"""What the built wheel has to pass in a new environment. The last is too slow for `make test`."""
LARGEST_WHEEL = 5_000_000
_HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]*)\)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_REQUIRED_FIELDS = (
    *("Name", "Version", "Summary", "Requires-Python", "License-Expression", "License-File"),
    *("Keywords", "Classifier", "Description-Content-Type"),
)
_RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dirty", action="store_true", help="go on with uncommitted changes")
    asked = parser.parse_args(arguments)
    version = _version()
    _stop_on(*tree_faults(allow_changes=asked.dirty, tag=f"v{version}"), *changelog_faults(version))
    print(f"building longwatch {version}", flush=True)
    wheel_env.build()
    wheel, sdist = wheel_env.built_wheel(), wheel_env.built_sdist()
    _stop_on(*metadata_faults(wheel_metadata(wheel), version), *sdist_faults(sdist, wheel, version))
    print("installing the wheel with every extra in a new environment", flush=True)
    python = wheel_env.install(ENVIRONMENT, extras="[all]")
    print("checking the contents and following the first pages", flush=True)
    if not _tests_pass(python):
        return 1
    _report(version, wheel, sdist)
    return 0


def tree_faults(*, allow_changes: bool, tag: str) -> Iterator[str]:
    """Yield what keeps the tree from being that of a release."""
    changed = _git("status", "--porcelain")
    if changed and not allow_changes:
        yield f"the tree has changes; commit them first:\n{changed}"
    if _git("tag", "--list", tag) and _git("rev-list", "-n", "1", tag) != _git("rev-parse", "HEAD"):
        yield f"the tag {tag} is on another commit; raise __version__ in src/longwatch/__init__.py"


def changelog_faults(version: str, text: str | None = None) -> Iterator[str]:
    """Yield what is wrong with the newest heading of the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") if text is None else text
    newest = _HEADING.search(changelog)
    if newest is None or newest["version"] != version:
        found = "none" if newest is None else newest[0]
        yield f"the newest heading of CHANGELOG.md is for {version}, got {found}"
    elif not _DATE.fullmatch(newest["date"]):
        yield f"the heading for {version} in CHANGELOG.md has a date, got {newest['date']!r}"


def metadata_faults(metadata: Message, version: str) -> Iterator[str]:
    """Yield what an index would refuse or could not show."""
    for field in _REQUIRED_FIELDS:
        if not metadata.get_all(field):
            yield f"the metadata has no {field}"
    if metadata["Version"] != version:
        yield f"the metadata has the version {metadata['Version']}, the package {version}"
    kind = str(metadata["Description-Content-Type"]).partition(";")[0]
    if kind != "text/markdown":
        yield f"the description is text/markdown, got {kind}"
    yield from description_faults(str(metadata.get_payload()))


def description_faults(text: str) -> Iterator[str]:
    """Yield what keeps the long description from being rendered as it is meant."""
    import markdown  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with mkdocs

    html = markdown.markdown(text, extensions=["fenced_code", "tables"])
    for element in ("<h1>", "<h2>", "<table>", "<code"):
        if element not in html:
            yield f"the README renders without {element}"
    if "```" in html:
        yield "a block of code in the README is not closed"


def sdist_faults(sdist: Path, wheel: Path, version: str) -> Iterator[str]:
    """Yield tracked files that the sdist lacks, and files that it has too many."""
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()} - {"", "PKG-INFO"}
    tracked = {line for line in _git("ls-files").splitlines() if (ROOT / line).is_file()}
    missing, extra = sorted(tracked - inside), sorted(inside - tracked)
    if missing:
        yield f"the sdist lacks {', '.join(missing)}; see [tool.hatch.build.targets.sdist]"
    if extra:
        yield f"the sdist has files that are not tracked: {', '.join(extra)}"
    if {wheel.name, sdist.name} != {path.name for path in wheel_env.DIST.iterdir()}:
        yield "dist has other files, too"
    if wheel.stat().st_size > LARGEST_WHEEL:
        yield f"the wheel is larger than {LARGEST_WHEEL} bytes"
    if sdist.name != f"longwatch-{version}.tar.gz":
        yield f"the sdist is called {sdist.name}"


def wheel_metadata(wheel: Path) -> Message:
    """The METADATA of a wheel; its payload is the long description."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def relative_links(text: str) -> list[str]:
    """The links of the README that work in the repository and not on a page of an index."""
    return _RELATIVE_LINK.findall(text)


def _tests_pass(python: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run([*command, f"--wheel-python={python}", *FOLLOWED], check=False, cwd=ROOT)
    return done.returncode == 0


def _report(version: str, wheel: Path, sdist: Path) -> None:
    if links := relative_links((ROOT / "README.md").read_text(encoding="utf-8")):
        print(f"note: {len(links)} links of the README work in the repository only")
    print(f"\nlongwatch {version} is ready. Upload these two files:")
    for path in (wheel, sdist):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"  {path.relative_to(ROOT)}  {path.stat().st_size} bytes  sha256 {digest}")
    names = " ".join(str(path.relative_to(ROOT)) for path in (wheel, sdist))
    print(f"\n  git tag v{version}\n  twine upload {names}")


def _version() -> str:
    text = (ROOT / "src" / "longwatch" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return found[1] if found else sys.exit("src/longwatch/__init__.py has no __version__")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=True, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _stop_on(*faults: str) -> None:
    if faults:
        sys.exit("\n".join(f"release: {fault}" for fault in faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
