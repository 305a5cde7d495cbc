"""Masks secrets in logs: recognises their names, and replaces their values.

If unsure, it masks: a masked harmless value costs a look into the configuration, a leaked secret
costs its rotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

MASK = "***"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORD = re.compile(
    r"(?:.*(?:password|passwd|passphrase|secret|credential|apikey|privatekey|accesskey|secretkey|connectionstring))s?"
    r"|.*token|(?:pwd|pass|sshpass|dbpass|auth|oauth|authorization|authentication|bearer|jwt|pat|dsn|cookie|session|sessionid)s?"
)
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})
_PLAIN_KEYS = frozenset({"public", "primary", "foreign", "sort", "partition", "cache", "hot"})
_COUNTED_TOKENS = frozenset(
    {"max", "min", "num", "total", "input", "output", "prompt", "completion"}
)

_QUOTED_OR_WORD = r"""(?:"(?:\\.|[^"\\])*"?|'[^']*'?)?\S*"""
_USERINFO = re.compile(r"(?<=://)(?:/?[^\s/?#:@]*:(?!\d{0,5}(?:[/?#\s]|$))\S{0,1024}|[^\s/?#]*)@")
_BARE_USERINFO = re.compile(
    r"(?<![^\s\"'=(<])(?!mailto:)((?:[A-Za-z][\w+.-]{0,31}:(?!//))?)/{0,2}[\w.%+-]{0,128}:(?!//)[^\s\"']\S{0,1024}@(?!sha\d+:)"
)
"""User parts without slashes: `redis:user:password@host`, `user:password@host`; not
`image:tag@sha256:…`.
"""
_NAMED = re.compile(r"(?<![\w.-])-{0,2}([A-Za-z_][\w.-]{0,127})=")
_VALUE = re.compile(_QUOTED_OR_WORD)
_PARAMETER = re.compile(r"(?:[^\s&]|&(?![A-Za-z_][\w.-]{0,127}=))*")
_OPTION = re.compile(rf"(?<!\S)--([A-Za-z][\w.-]{{0,127}})(\s+)(?!--)({_QUOTED_OR_WORD})")
_SCHEME = re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}")
_PAIR = re.compile(
    r"""(["'])([A-Za-z_][\w.-]{0,127})\1(\s{0,8}:\s{0,8})("(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[\w.+-]+)"""
)
"""A key and its value in JSON, or in the `repr` of a dict."""
_WHOLE = re.compile(r"(-{0,2}[A-Za-z_][\w.-]{0,127})(=|:\s*)(?!//)(.+)", re.DOTALL)


@lru_cache(maxsize=1024)
def looks_secret(name: str) -> bool:
    """Whether a variable, key or option of this name is likely to contain a secret.

    Compares whole words, not letters inside them.
    """
    if name in _PLAIN_NAMES:
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    return (
        any(_SECRET_WORD.fullmatch(word) for word in words)
        or _ends_in_key(words)
        or _names_tokens(words)
    )


def mask_mapping(mapping: Mapping[str, object]) -> dict[str, object]:
    """Return the mapping with every secret masked: by the name of its key, in argument lists, and
    in texts.
    """
    return {key: _mask_entry(key, value) for key, value in mapping.items()}


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line with its secrets masked.

    These are `--token=x`, `--password x`, `KEY=x`, `Authorization: x` and
    `scheme://user:pass@host`.
    """
    return list(_masked_arguments(argv))


def mask_text(text: str) -> str:
    """Return a text with its secrets masked.

    These are the user part of a URL, `password=x`, `"token": "x"`, `--token x` and `Bearer x`,
    anywhere.
    """
    if "@" in text:
        text = _BARE_USERINFO.sub(rf"\1{MASK}@", _USERINFO.sub(MASK + "@", text))
    if "=" in text:
        text = _mask_assignments(text)
    if ":" in text:
        text = _PAIR.sub(_mask_pair, text)
    if "--" in text:
        text = _OPTION.sub(_mask_option, text)
    return _SCHEME.sub(rf"\1\2{MASK}", text)


def _ends_in_key(words: list[str]) -> bool:
    if not words or words[-1] not in {"key", "keys"}:
        return False
    return len(words) == 1 or words[-2] not in _PLAIN_KEYS


def _names_tokens(words: list[str]) -> bool:
    """Whether it names tokens: `API_TOKENS` contains secrets, `MAX_TOKENS` a number."""
    return "tokens" in words and not _COUNTED_TOKENS.intersection(words)


def _mask_entry(key: str, value: object) -> object:
    if value is None or isinstance(value, bool) or value == "":
        return value
    return MASK if looks_secret(str(key)) else _mask_value(value)


def _mask_value(value: object) -> object:
    match value:
        case str():
            return mask_text(value)
        case Mapping():
            return mask_mapping(value)
        case list() | tuple() if all(isinstance(item, str) for item in value):
            return mask_argv(value)
        case list() | tuple():
            return [_mask_value(item) for item in value]
        case _:
            return value


def _masked_arguments(argv: Sequence[str]) -> Iterator[str]:
    expects_secret = False
    for argument in argv:
        if expects_secret and not argument.startswith("--"):
            expects_secret = False
            yield MASK
        else:
            expects_secret = _announces_secret(argument)
            yield _mask_argument(argument)


def _announces_secret(argument: str) -> bool:
    """Whether the next argument is a secret, as after `--token`. (`--no-auth` is a switch.)"""
    is_option = argument.startswith("-") and not any(sign in argument for sign in "=: ")
    return is_option and not argument.startswith("--no-") and looks_secret(argument)


def _mask_argument(argument: str) -> str:
    whole = _WHOLE.fullmatch(argument)
    if whole and looks_secret(whole[1]):
        return f"{whole[1]}{whole[2]}{MASK}"
    return mask_text(argument)


def _mask_assignments(text: str) -> str:
    """Mask the values of secret assignments.

    A value that is not secret may contain assignments, as a URL does. The value of a secret ends
    where the next parameter begins.
    """
    parts, shown_from = [], 0
    for match in _NAMED.finditer(text):
        if match.start() < shown_from or not looks_secret(match[1]):
            continue
        end = _value_end(text, match)
        if end > match.end():
            parts += [text[shown_from : match.end()], MASK]
            shown_from = end
    return "".join([*parts, text[shown_from:]])


def _value_end(text: str, name: re.Match[str]) -> int:
    is_parameter = text[max(name.start() - 1, 0) : name.start()] in {"?", "&"}
    value = (_PARAMETER if is_parameter else _VALUE).match(text, name.end())
    return value.end() if value else name.end()


def _mask_pair(match: re.Match[str]) -> str:
    quote, name, between, value = match.groups()
    if not looks_secret(name) or value in {"null", "None", "true", "false", "True", "False"}:
        return match[0]
    return f'{quote}{name}{quote}{between}"{MASK}"'


def _mask_option(match: re.Match[str]) -> str:
    hidden = match[3] and not match[1].startswith("no-") and looks_secret(match[1])
    return f"--{match[1]}{match[2]}{MASK}" if hidden else match[0]
