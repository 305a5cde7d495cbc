"""The packages of an extra, and the command that installs them.

The command names the packages themselves, so it works for a checkout and for a wheel, with or
without a published release.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_DISTRIBUTION = "longwatch"
_OWN_EXTRAS = re.compile(rf"{_DISTRIBUTION}\[([\w,\s-]+)\]")
_MARKER = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra: `pip install 'aiodocker>=0.24'`.

    Reads the metadata of the installed package. Without metadata, as in a bare copy of the source,
    the command names the extra of a checkout.
    """
    packages = list(dict.fromkeys(_packages(extra, _requirements())))
    return f"pip install {shlex.join(packages or [f'.[{extra}]'])}"


def _requirements() -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - only a missing package needs it

    try:
        return requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def _packages(extra: str, requirements: list[str]) -> Iterator[str]:
    """Yield the requirements of an extra, and of the other extras that it includes."""
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        named = _MARKER.search(marker)
        if named is None or named[1] != extra:
            continue
        own = _OWN_EXTRAS.fullmatch(package.strip())
        if own is None:
            yield package.strip()
            continue
        for other in own[1].split(","):
            yield from _packages(other.strip(), requirements)
