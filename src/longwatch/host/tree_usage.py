"""What process trees use: CPU time and memory, read from /proc.

Memory is what is resident, summed over the processes of a tree: pages that they share count once
for each. CPU time is that of the processes that run and of those that they waited for. That of an
orphan is lost when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longwatch.host.guardian.proctable import ProcTable, descendants
from longwatch.host.guardian.tree import ProcessTree, TreeScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUsage:
    """What one tree uses now, and has used."""

    processes: int
    cpu_seconds: float
    memory_bytes: int


def usage_facts(usage: TreeUsage | None) -> dict[str, Any]:
    """As plain JSON types; None for each fact of a tree that cannot be seen."""
    if usage is None:
        return {"processes": None, "cpu_seconds": None, "memory_bytes": None}
    return asdict(usage)


def tree_usages(trees: Sequence[ProcessTree], *, guardian: int) -> dict[int, TreeUsage]:
    """The usage of each of these trees of a guardian, by the pid of its leader. Blocks on /proc.

    `trees` has to name all trees that the guardian holds, or a stranger may count as a member.
    """
    scanner = TreeScanner()
    members = scanner.members(trees, root=guardian)
    return {
        tree.leader: sum_usage((process.key for process in members[tree]), scanner.table)
        for tree in trees
        if tree.leader
    }


def own_usage(table: ProcTable | None = None) -> TreeUsage:
    """The usage of this process and of everything below it. Blocks on /proc."""
    table = table or ProcTable()
    below = descendants(table.read(), table.own_key)
    return sum_usage((table.own_key, *(process.key for process in below)), table)


def sum_usage(keys: Iterable[int], table: ProcTable) -> TreeUsage:
    """The usage of the processes of these keys; one that is gone counts for nothing."""
    found = [usage for key in keys if (usage := table.usage(key)) is not None]
    return TreeUsage(
        processes=len(found),
        cpu_seconds=sum(ticks for ticks, _ in found) / os.sysconf("SC_CLK_TCK"),
        memory_bytes=sum(pages for _, pages in found) * os.sysconf("SC_PAGE_SIZE"),
    )
