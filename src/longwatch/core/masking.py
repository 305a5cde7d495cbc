"""Masks secrets in logs: recognises their names, and replaces their values.

If unsure, it masks: a masked harmless value costs a look into the configuration, a leaked secret
costs its rotation.
"""

from __future__ import annotations

import binascii
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
_AUTHORIZATION = re.compile(
    r"""(?i)(?<![\w-])((?:proxy-)?authorization["']?\s{0,8}[:=]\s{0,8}["']?(?:bearer|basic|token|apikey|negotiate)\s{1,8})[^\s"',]+"""
)
_BEARER = re.compile(
    r"""\b(Bearer\s{1,8})(?=[\w.~+/=-]{8})[\w.~+/=-]+"""
    r"""|\b((?i:bearer)\s{1,8})(?=[\w.~+/=-]{20}|[A-Za-z-]*(?:[\d_~+/=]|\.\w)|[A-Za-z-][a-z-]*[A-Z])[\w.~+/=-]{5,}"""
)
"""After the exact word `Bearer` every text of 8 or more characters. Elsewhere it must not look like
a word: it is long, or has a digit, a sign or a capital inside.
"""
_BASIC = re.compile(r"(?i)\b(basic\s{1,8})([A-Za-z0-9+/]{4,}={0,2})")
_TOKEN = re.compile(
    r"(?<![\w-])(?:"
    r"sk-(?:ant|proj|svcacct|admin|or|live|test)-[\w-]{6,}"
    r"|sk-(?=[A-Za-z_]{0,64}\d)(?=\w{8})\w+(?![\w-])"
    r"|sk-(?=\w{16})\w+(?![\w-])"
    r"|sk-(?=[\w-]{16})(?=[A-Za-z_-]{0,64}\d)(?=[a-z\d_-]{0,64}[A-Z])[\w-]+"
    r"|[rs]k_(?:live|test)_\w{6,}"
    r"|(?:gh[pousr]|github_pat)_(?=[A-Za-z_]{0,64}\d|\w{20})\w{6,}"
    r"|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{6,}"
    r"|(?:AKIA|ASIA)[A-Z\d]{12,}(?!\w)"
    r"|AIza[\w-]{30,}"
    r"|eyJ[\w-]{5,}\.[\w-]{2,}\.[\w-]*"
    r")"
)
"""Tokens that are known by their form. A JWT has three parts, and begins with the JSON of its
header: `eyJ`.
"""
_TOKEN_MARKS = (
    "sk-",
    "k_live_",
    "k_test_",
    "gh",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
)
"""Without one of these no `_TOKEN` is in a text: a quick look for the usual text."""
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
    if name == "listen_url":  # in the query of a store's URL, and so with its : and @ encoded
        return True
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

    These are the user part of a URL, `password=x`, `"token": "x"`, `--token x`, `Bearer x` and
    tokens of known forms (`sk-…`, `ghp_…`, JWTs), anywhere.
    """
    if "@" in text:
        text = _BARE_USERINFO.sub(rf"\1{MASK}@", _USERINFO.sub(MASK + "@", text))
    if "=" in text:
        text = _mask_assignments(text)
    if ":" in text:
        text = _PAIR.sub(_mask_pair, text)
    if "--" in text:
        text = _OPTION.sub(_mask_option, text)
    return _mask_tokens(text)


def _mask_tokens(text: str) -> str:
    """Mask credentials that have no name beside them."""
    lower = text.lower()
    if "authorization" in lower:
        text = _AUTHORIZATION.sub(rf"\1{MASK}", text)
    if "bearer" in lower:
        text = _BEARER.sub(lambda match: f"{match[1] or match[2]}{MASK}", text)
    if "basic" in lower:
        text = _BASIC.sub(_mask_basic, text)
    if any(mark in text for mark in _TOKEN_MARKS):
        text = _TOKEN.sub(MASK, text)
    return text


def _mask_basic(match: re.Match[str]) -> str:
    """`Basic` credentials are `user:password` in Base64; `basic understanding` is none."""
    data = match[2].rstrip("=")
    try:
        decoded = binascii.a2b_base64(data[: len(data) // 4 * 4])
    except binascii.Error:
        return match[0]
    return f"{match[1]}{MASK}" if b":" in decoded else match[0]


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
