"""What to do when a program has ended: a pure function over one table, first match wins.

| # | condition                                             | restart? | verdict                  |
|---|-------------------------------------------------------|----------|--------------------------|
| 0 | shutting down, or wanted to be stopped                | no       | `shutdown_complete` /
                                                                         `stopped`                |
| 1 | we killed it because it was unhealthy or stalled      | yes      | `health_check_restart`   |
| 2 | exit 0                                                | no       | `clean_exit`             |
| 3 | exit 2 (configuration, port conflict, permission)     | no       | `configuration_error`    |
| 4 | exit 128 + n, a shell's way to say that signal n
|   | ended it                                              | as if it ended by that signal       |
| 5 | exit ≥ 100                                            | no       | `fatal_error_no_restart` |
| 6 | SIGTERM or SIGINT from outside                        | no       | `intentional_signal`     |
| 7 | everything else, a failed spawn included              | yes      | `unexpected_exit` /
                                                                         `spawn_error`            |

Row 4 holds for the signals 1 to 64 that can end a process. Exit 145 to 151 and 156 are 128 + a
signal that a process ignores or is paused by (SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU,
SIGURG, SIGWINCH): no process ends by it, so the program chose that code itself, and row 5 holds.

Of a worker process its parent knows more (`EndFacts`). Its end is judged by these rows before
rows 2 to 6:

| exit 0, and it had not reported that it is finished            | yes      | `unexpected_exit` |
| exit 2 or ≥ 100 after it had joined, and it had not reported
| that it ends by itself                                         | yes      | `unexpected_exit` |
| any signal, or 128 + n                                         | yes      | `unexpected_exit` |

A handler may have called `os._exit`, or another program may have sent the signal: neither the
parent nor an operator asked for that end.

Rows 1 to 7 say what `restart = "on-failure"` does; `"always"` and `"never"` overrule them, and
lists of exit codes overrule those. The verdict is the table's in any case: it names what happened,
not what was done about it.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.end_cause import EndCause, EndKind

_CONFIGURATION_EXIT = 2
_FIRST_FATAL_EXIT = 100
_LAST_SIGNAL = 64
_HARMLESS_SIGNALS = frozenset(
    {
        signals.SIGCHLD,
        signals.SIGCONT,
        signals.SIGSTOP,
        signals.SIGTSTP,
        signals.SIGTTIN,
        signals.SIGTTOU,
        signals.SIGURG,
        signals.SIGWINCH,
    }
)
"""Signals that end no process: it ignores them, or stops until it is continued."""
_SHELL_SIGNAL_EXITS = frozenset(
    128 + number for number in range(1, _LAST_SIGNAL + 1) if number not in _HARMLESS_SIGNALS
)
_INTENTIONAL_SIGNALS = frozenset({signals.SIGTERM, signals.SIGINT})


class EndVerdict(StrEnum):
    """What an end was; also its name in the logs."""

    SHUTDOWN_COMPLETE = auto()
    STOPPED = auto()
    HEALTH_CHECK_RESTART = auto()
    CLEAN_EXIT = auto()
    CONFIGURATION_ERROR = auto()
    FATAL_ERROR_NO_RESTART = auto()
    INTENTIONAL_SIGNAL = auto()
    UNEXPECTED_EXIT = auto()
    SPAWN_ERROR = auto()


RESTART_VERDICTS = frozenset(
    {EndVerdict.HEALTH_CHECK_RESTART, EndVerdict.UNEXPECTED_EXIT, EndVerdict.SPAWN_ERROR}
)
STOP_VERDICTS = frozenset({EndVerdict.SHUTDOWN_COMPLETE, EndVerdict.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What the parent of a worker process knows about its end."""

    has_joined: bool
    """Whether it ran its loops."""
    has_finished: bool
    """Whether it reported that it ends by itself."""
    is_exempt: bool = False
    """Whether it died while it worked on a row, and its program can work: its end feeds neither
    breaker nor backoff.
    """


class Restart(StrEnum):
    """The policies."""

    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a program is started again.

    After an exit code in `restart_codes` it always is, after one in `no_restart_codes` never. A
    code in both is final.
    """

    restart: Restart = Restart.ON_FAILURE
    restart_codes: Collection[int] = ()
    no_restart_codes: Collection[int] = ()

    def decide(
        self,
        cause: EndCause,
        *,
        shutting_down: bool = False,
        stop_requested: bool = False,
        killed_unhealthy: bool = False,
        facts: EndFacts | None = None,
    ) -> RestartDecision:
        """The table, then the policy, then the lists. `facts`: of a worker process."""
        verdict = _verdict(
            cause,
            shutting_down=shutting_down,
            stop_requested=stop_requested,
            killed_unhealthy=killed_unhealthy,
            was_unasked=facts is not None and _is_unasked(_as_signal(cause), facts),
        )
        return RestartDecision(
            verdict,
            restart=verdict not in STOP_VERDICTS
            and self._apply_policy(cause, verdict in RESTART_VERDICTS),
        )

    def _apply_policy(self, cause: EndCause, default: bool) -> bool:  # noqa: FBT001 - one private value passed through
        code = cause.number if cause.kind is EndKind.EXIT else None
        if code in self.no_restart_codes:
            return False
        if code in self.restart_codes:
            return True
        return {Restart.ALWAYS: True, Restart.NEVER: False}.get(self.restart, default)


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What an end was, and whether the program is started again."""

    verdict: EndVerdict
    restart: bool


def should_restart(  # noqa: PLR0913 - the facts of the table, by name
    code: int | None = None,
    signal: int | None = None,
    *,
    shutting_down: bool = False,
    stop_requested: bool = False,
    killed_unhealthy: bool = False,
    policy: RestartPolicy | None = None,
) -> bool:
    """Whether a program that ended with this exit code, or by this signal, is started again;
    neither means it could not start.
    """
    cause = _cause(code, signal)
    decision = (policy or RestartPolicy()).decide(
        cause,
        shutting_down=shutting_down,
        stop_requested=stop_requested,
        killed_unhealthy=killed_unhealthy,
    )
    return decision.restart


def _cause(code: int | None, signal: int | None) -> EndCause:
    if signal is not None:
        return EndCause.signal(signal)
    return EndCause(EndKind.SPAWN_ERROR) if code is None else EndCause.exit(code)


def _is_unasked(cause: EndCause, facts: EndFacts) -> bool:
    """Whether a worker process ended though neither it nor anything before its work decided so."""
    if cause.kind is not EndKind.EXIT:
        return cause.kind is EndKind.SIGNAL
    return not facts.has_finished and (cause.number == 0 or facts.has_joined)


def _verdict(
    cause: EndCause,
    *,
    shutting_down: bool,
    stop_requested: bool,
    killed_unhealthy: bool,
    was_unasked: bool,
) -> EndVerdict:
    """The rows in their order."""
    cause = _as_signal(cause)
    exited = cause.kind is EndKind.EXIT
    rows = (
        (shutting_down, EndVerdict.SHUTDOWN_COMPLETE),
        (stop_requested, EndVerdict.STOPPED),
        (killed_unhealthy, EndVerdict.HEALTH_CHECK_RESTART),
        (was_unasked, EndVerdict.UNEXPECTED_EXIT),
        (exited and cause.number == 0, EndVerdict.CLEAN_EXIT),
        (exited and cause.number == _CONFIGURATION_EXIT, EndVerdict.CONFIGURATION_ERROR),
        (exited and (cause.number or 0) >= _FIRST_FATAL_EXIT, EndVerdict.FATAL_ERROR_NO_RESTART),
        (
            cause.kind is EndKind.SIGNAL and cause.number in _INTENTIONAL_SIGNALS,
            EndVerdict.INTENTIONAL_SIGNAL,
        ),
        (cause.kind is EndKind.SPAWN_ERROR, EndVerdict.SPAWN_ERROR),
    )
    return next((verdict for holds, verdict in rows if holds), EndVerdict.UNEXPECTED_EXIT)


def _as_signal(cause: EndCause) -> EndCause:
    """Row 4: what a shell reports as 128 + n was signal n."""
    if (
        cause.kind is EndKind.EXIT
        and cause.number is not None
        and cause.number in _SHELL_SIGNAL_EXITS
    ):
        return EndCause.signal(cause.number - 128)
    return cause
