"""A /proc that a test makes up, to be looked at by a ProcTable."""

from __future__ import annotations

from pathlib import Path

from longwatch.host.guardian.proctable import ProcTable

OWN_PID = 100
EXECUTING = {"code": 0, "begin": 0, "end": 0}
NO_ARGUMENTS = {"code": 0, "begin": 5000, "end": 5000}
BARE = {"begin": 5000, "end": 5000}
DYING = {"memory": 0, "code": 0, "begin": 0, "end": 0}
KERNEL = {**DYING, "flags": 0x00200040}


class FakeProc:
    """The files of some processes; the one that looks is ME."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "self").symlink_to(str(OWN_PID))
        self.add(OWN_PID, parent=1)

    def add(
        self,
        key: int,
        memory: dict[str, int] | None = None,
        *,
        parent: int = OWN_PID,
        state: str = "S",
        session: int = 8,
    ) -> None:
        place = {
            "flags": 0x400000,
            "memory": 9000,
            "code": 1,
            "begin": 5000,
            "end": 5100,
            **(memory or {}),
        }
        fields = [0] * 50
        fields[1:4] = parent, 7, session
        fields[6], fields[19], fields[20] = place["flags"], 4711, place["memory"]
        fields[23], fields[47], fields[48] = place["code"], place["begin"], place["end"]
        folder = self.root / str(key)
        folder.mkdir()
        (folder / "stat").write_text(
            f"{key} (a) odd) name) {state} {' '.join(map(str, fields[1:]))}\n"
        )
        (folder / "environ").write_bytes(b"")
        self.write_namespaced_pids(key, key)

    def write_environment(self, key: int, *entries: str) -> None:
        (self.root / str(key) / "environ").write_bytes(
            b"".join(entry.encode() + b"\0" for entry in entries)
        )

    def write_namespaced_pids(self, key: int, *numbers: int) -> None:
        """Its pid in every namespace from that of /proc down to its own; its group and session
        too.
        """
        line = "\t".join(map(str, numbers))
        (self.root / str(key) / "status").write_text(
            f"Name:\tx\nNSpid:\t{line}\nNSpgid:\t{line}\nNSsid:\t{line}\n"
        )

    def remove(self, key: int) -> None:
        for file in (self.root / str(key)).iterdir():
            file.unlink()
        (self.root / str(key)).rmdir()

    def table(self) -> ProcTable:
        return ProcTable(str(self.root))
