"""Historians: nodes that keep the changes of other nodes, the newest first.

A historian has no attempts. The transaction that changes a node also records the change, by
whatever process: a set, a result, a value that was cleared, and a mutation that keeps the revision.
No gate clears the entries. The number of entries and their size are bounded; the oldest are
dropped. A process of an older release that does not know the historian records nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from longwatch.errors import GraphError
from longwatch.flow.execution_state import ExecutionState, RecordedChange
from longwatch.flow.node_options import MAX_COUNT, is_positive_int
from longwatch.flow.nodes import Node, NodeKind, validate_name

MAX_HISTORY_BYTES = 1 << 20
"""Bytes of all entries of a historian, as JSON."""
DEFAULT_ENTRIES = 100
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class HistorianNode(Node):
    """A node that keeps up to `max_entries` changes of the nodes `of`."""

    of: tuple[str, ...] = ()
    max_entries: int = DEFAULT_ENTRIES

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", tuple(sorted(self.of)))

    @property
    def definition(self) -> str:
        return f"{self.kind} of {', '.join(self.upstream)}"

    @property
    def relation(self) -> str:
        return f"← changes of {', '.join(self.of)}"


def historian(
    name: str, of: str | Iterable[str], *, max_entries: int = DEFAULT_ENTRIES
) -> HistorianNode:
    """Define a node that keeps the changes of the nodes `of`.

    Its value is a list of entries, the newest first: `{"node", "revision", "value", "at"}`, where
    `at` is wall time. The entry of an unset value also has `"unset": true`, and one whose value is
    too large has `"truncated": true` in place of the value. There are at most `max_entries`, of 1
    MiB in total.
    """
    names = _validate_names(validate_name(name), of)
    if not is_positive_int(max_entries, maximum=MAX_COUNT):
        raise GraphError(
            f"max_entries of node {name!r} must be a whole number of 1 to {MAX_COUNT}, not "
            f"{max_entries!r}"
        )
    return HistorianNode(name, NodeKind.HISTORIAN, of=names, max_entries=max_entries)


def record_changes(node: HistorianNode, state: ExecutionState, now: float) -> None:
    """Add the value changes of this transaction to a historian: each node once, with its last
    value. Idempotent.
    """
    changes = {name: _change(name, state, now) for name in _unrecorded(node, state)}
    if not changes:
        return
    outdated = {
        found.entry for name in changes if (found := state.recorded_changes.get((node.name, name)))
    }
    state.recorded_changes.update(((node.name, name), each) for name, each in changes.items())
    entries = [each.entry for each in changes.values() if each.entry is not None]
    kept = [each for each in _kept_entries(node, state) if each not in outdated]
    newest = _bounded([*reversed(entries), *kept], node.max_entries)
    state.set_value(node.name, f"[{b','.join(newest).decode()}]")


def _unrecorded(node: HistorianNode, state: ExecutionState) -> Iterator[str]:
    """The nodes that have changed since the load, or again since they were recorded."""
    for name, was_set in state.value_changes.items():
        if name not in node.of:
            continue
        recorded = state.recorded_changes.get((node.name, name))
        if recorded is None:
            if was_set or state.is_set(name):
                yield name
        elif recorded.value != state.nodes[name].value:
            yield name


def _change(name: str, state: ExecutionState, now: float) -> RecordedChange:
    """The change of a node. One that was set and cleared by the same transaction has no entry."""
    if not (state.is_set(name) or state.value_changes[name]):
        return RecordedChange(None, None)
    return RecordedChange(state.nodes[name].value, _entry(name, state, now))


def _kept_entries(node: HistorianNode, state: ExecutionState) -> list[bytes]:
    record = state.nodes.get(node.name)
    if record is None or not record.is_set or record.value is None:
        return []
    return [bytes(each) for each in _ENTRIES.decode(record.value)]


def _validate_names(node: str, of: Any) -> tuple[str, ...]:
    names = (of,) if isinstance(of, str) else tuple(of) if isinstance(of, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise GraphError(f"of= of node {node!r} takes names of nodes, not {of!r}")
    return tuple(dict.fromkeys(names))


def _entry(name: str, state: ExecutionState, now: float) -> bytes:
    record = state.nodes[name]
    if not record.is_set:
        return _format(name, record.revision, "null", now, ',"unset":true')
    entry = _format(name, record.revision, record.value or "null", now)
    if len(entry) + 2 <= MAX_HISTORY_BYTES and _is_readable(entry):
        return entry
    return _format(name, record.revision, "null", now, ',"truncated":true')


def _format(name: str, revision: int, value: str, now: float, more: str = "") -> bytes:
    """Node names need no escapes."""
    text = f'{{"node":"{name}","revision":{revision},"value":{value},"at":{now!r}{more}}}'
    return text.encode()


def _is_readable(entry: bytes) -> bool:
    """Whether the entry can be read as part of the list: a value may be nested too deep."""
    try:
        _ENTRIES.decode(b"[" + entry + b"]")
    except RecursionError:
        return False
    return True


def _bounded(entries: list[bytes], max_entries: int) -> list[bytes]:
    """The first entries that are within both bounds."""
    size, kept = 1, list[bytes]()  # the brackets, less one comma
    for entry in entries[:max_entries]:
        size += len(entry) + 1
        if size > MAX_HISTORY_BYTES:
            break
        kept.append(entry)
    return kept
