"""State machines as tables: state × transition → next state and the action to take.

A pair that is not in the table is a bug and raises. The table decides, its owner acts.
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
    """A transition table with a name.

    `step` looks up one transition. `reachable` and `dead_ends` let a test check the table itself.
    """

    def __init__(self, name: str, table: TransitionTable[StateT, TransitionT, ActionT]) -> None:
        self.name = name
        self.table = dict(table)

    def step(self, state: StateT, transition: TransitionT) -> tuple[StateT, ActionT | None]:
        """Return the next state and the action; raises AssertionError for a pair not in
        the table.
        """
        try:
            return self.table[state, transition]
        except KeyError:
            raise AssertionError(
                f"a {self.name} that is {state.value} does not accept {transition.value}"
            ) from None

    def allows(self, state: StateT, transition: TransitionT) -> bool:
        return (state, transition) in self.table

    def transitions(self, state: StateT) -> Iterator[tuple[TransitionT, StateT]]:
        """Return the transitions that this state accepts, and the next state of each."""
        return (
            (event, target)
            for (source, event), (target, _) in self.table.items()
            if source is state
        )

    def reachable(self, start: StateT) -> frozenset[StateT]:
        """Return every state that some sequence of transitions leads to."""
        seen, edge = {start}, [start]
        while edge:
            fresh = {target for _, target in self.transitions(edge.pop())} - seen
            seen |= fresh
            edge += fresh
        return frozenset(seen)

    def dead_ends(self) -> frozenset[StateT]:
        """Return the states that no transition leaves."""
        targets = {target for target, _ in self.table.values()}
        return frozenset(targets - {source for source, _ in self.table})
