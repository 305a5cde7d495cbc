"""State machines as tables: state × event → next state and the one thing to do about it.

What is not in the table cannot happen; asking for it is a bug that raises. The table decides, its
owner acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Enum)
TransitionT = TypeVar("TransitionT", bound=Enum)
ActionT = TypeVar("ActionT", bound=Enum)

TransitionTable = Mapping[tuple[StateT, TransitionT], tuple[StateT, ActionT | None]]


class StateMachine(Generic[StateT, TransitionT, ActionT]):
    """A table with a name: `step` looks one move up, `reachable` and `dead_ends` let a test
    judge the table itself.
    """

    def __init__(self, name: str, table: TransitionTable[StateT, TransitionT, ActionT]) -> None:
        self.name = name
        self.table = dict(table)

    def step(self, state: StateT, transition: TransitionT) -> tuple[StateT, ActionT | None]:
        """Where this event leads from this state, and what to do; AssertionError for a move that
        is not in the table.
        """
        try:
            return self.table[state, transition]
        except KeyError:
            raise AssertionError(
                f"a {self.name} that is {state.value} cannot be told {transition.value}"
            ) from None

    def allows(self, state: StateT, transition: TransitionT) -> bool:
        return (state, transition) in self.table

    def transitions(self, state: StateT) -> Iterator[tuple[TransitionT, StateT]]:
        """The events this state takes, and where each leads."""
        return (
            (event, target)
            for (source, event), (target, _) in self.table.items()
            if source is state
        )

    def reachable(self, start: StateT) -> frozenset[StateT]:
        """Every state some sequence of events leads to."""
        seen, edge = {start}, [start]
        while edge:
            fresh = {target for _, target in self.transitions(edge.pop())} - seen
            seen |= fresh
            edge += fresh
        return frozenset(seen)

    def dead_ends(self) -> frozenset[StateT]:
        """The states that no event leads out of."""
        targets = {target for target, _ in self.table.values()}
        return frozenset(targets - {source for source, _ in self.table})
