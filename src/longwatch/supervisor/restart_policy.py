"""Decides whether a program is restarted after its end: one table, of which the first match wins.

| # | condition                                             | restart? | verdict                  |
|---|-------------------------------------------------------|----------|--------------------------|
| 0 | shutting down, or a stop was requested                | no       | `shutdown_complete` /
                                                                         `stopped`                |
| 1 | we killed it because it was unhealthy or stalled      | yes      | `health_check_restart`   |
| 2 | exit 0                                                | no       | `clean_exit`             |
| 3 | exit 2 (configuration, port conflict, permission)     | no       | `configuration_error`    |
| 4 | exit 128 + n, which a shell reports after an end by
|   | signal n                                              | as if it ended by that signal       |
| 5 | exit ≥ 100                                            | no       | `fatal_error_no_restart` |
| 6 | SIGTERM or SIGINT from outside                        | no       | `intentional_signal`     |
| 7 | everything else, a failed spawn included              | yes      | `unexpected_exit` /
                                                                         `spawn_error`            |

Row 4 applies to the signals 1 to 64 that can end a process. Exit 145 to 151 and 156 are 128 plus a
signal that cannot: it is ignored or only pauses (SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN,
SIGTTOU, SIGURG, SIGWINCH). So the program chose that code itself, and row 5 applies.

The parent of a worker process knows more about its end (`EndFacts`). These rows come before rows 2
to 6 for it:

| exit 0, and it had not reported that it ends by itself         | yes      | `unexpected_exit` |
| exit 2 or ≥ 100 after it had joined, and it had not reported
| that it ends by itself                                         | yes      | `unexpected_exit` |
| any signal, or 128 + n                                         | yes      | `unexpected_exit` |

The reason: a handler may have called `os._exit`, or another program may have sent the signal.
Neither the parent nor an operator requested that end.

Rows 1 to 7 define `restart = "on-failure"`. `"always"` and `"never"` override them, and lists of
exit codes override those. The verdict always comes from the table: it names the kind of end, not
the decision.
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
"""Signals that end no process by default: it ignores them, or stops until it is continued."""
_SHELL_SIGNAL_EXITS = frozenset(
    128 + number for number in range(1, _LAST_SIGNAL + 1) if number not in _HARMLESS_SIGNALS
)
_INTENTIONAL_SIGNALS = frozenset({signals.SIGTERM, signals.SIGINT})


class EndVerdict(StrEnum):
    """The kind of an end; also its name in the logs."""

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
    """Facts about the end of a worker process that its parent knows."""

    has_joined: bool
    """Whether it had started to run its loops."""
    has_finished: bool
    """Whether it reported that it ends by itself."""
    is_exempt: bool = False
    """Whether it died while it worked on a row, although its program can work. Its end counts for
    neither breaker nor backoff.
    """


class Restart(StrEnum):
    """The restart policies."""

    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a program is restarted after its end.

    It always is after an exit code in `restart_codes`, and never after one in `no_restart_codes`,
    which wins if a code is in both.
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
        """Decide by the table, then the policy, then the lists. `facts` are those of a worker
        process.
        """
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

    def _apply_policy(self, cause: EndCause, default: bool) -> bool:  # noqa: FBT001 - a private method with one flag
        code = cause.number if cause.kind is EndKind.EXIT else None
        if code in self.no_restart_codes:
            return False
        if code in self.restart_codes:
            return True
        return {Restart.ALWAYS: True, Restart.NEVER: False}.get(self.restart, default)


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The kind of an end, and whether the program is restarted."""

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
    """Return whether a program that ended with this exit code, or by this signal, is restarted.
    Pass neither if it could not start.
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
    """Return whether a worker process ended although neither it nor its startup code decided so."""
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
    """Return the verdict of the first row that matches."""
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
    """Apply row 4: convert an exit code 128 + n to signal n."""
    if (
        cause.kind is EndKind.EXIT
        and cause.number is not None
        and cause.number in _SHELL_SIGNAL_EXITS
    ):
        return EndCause.signal(cause.number - 128)
    return cause
