"""Severities of other vocabularies, mapped to the five of the runner.

    a word      of logging libraries, syslog, Kubernetes, alert managers and ticket systems, in any
                case
    a number    0 to 7 as in syslog; 10, 20 … 60 as in logging libraries; also as text
    P1 … P5     priorities, also S1, SEV1, SEV-1

A word that is in none of them is `other`, which counts as info.
"""

from __future__ import annotations

from longwatch.runner.policy import Severity

_WORDS = {
    Severity.DEBUG: "debug trace verbose fine finer finest 7 10",
    Severity.INFO: (
        "info information informational notice normal default log ok success low minor none "
        "cleared resolved 5 6 20 p4 p5"
    ),
    Severity.WARNING: "warning warn medium moderate degraded abnormal 4 30 p3",
    Severity.ERROR: "error err failure failed severe high major important 3 40 p2",
    Severity.CRITICAL: (
        "critical crit fatal emergency emerg alert panic disaster urgent blocker highest 0 1 2 50 "
        "60 p1"
    ),
}
_BY_WORD: dict[str | int, Severity] = {
    word: severity for severity, words in _WORDS.items() for word in words.split()
}
_PRIORITY_PREFIXES = ("severity", "sev", "s", "p")
RANKS = {severity: rank for rank, severity in enumerate(_WORDS)} | {Severity.OTHER: 1}
"""The rank of each severity; a higher number is graver."""


def parse_severity(value: str | int) -> Severity:
    """Return the severity for a word or number of any vocabulary."""
    return _BY_WORD.get(value) or _parse_variant(str(value))


def _parse_variant(text: str) -> Severity:
    word = text.strip().lower()
    known = _BY_WORD.get(word)
    if known is None and len(word) <= len("severity-1") and word[-1:].isdecimal():
        prefix = word[:-1].rstrip("-_ ")
        known = _BY_WORD.get(f"p{word[-1]}") if prefix in _PRIORITY_PREFIXES else None
    return known or Severity.OTHER
