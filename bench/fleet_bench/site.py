"""Where a part measures: the server, an empty database of its own, a folder, and the length of a
window.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Site:
    """`url` is the empty database of this part, `admin` another one of the same server."""

    url: str
    admin: str
    server_pid: int
    folder: str
    seconds: float
    """The length of one window of measurement."""

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def dumps(self) -> str:
        return json.dumps(asdict(self))


def site_of_this_process() -> Site:
    return Site(**json.loads(sys.argv[2]))
