"""What must never be shown: passwords and keys in locations, signatures of queries, values that a user gave as secrets.

Every error passes through here when it is made, and so do the log records of the stores' libraries and what the command
line prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

_HIDDEN = "***"
_SHORTEST = 8
"""Shorter secrets may be words of a message."""

# Compiled at the first use, then known to `re`: few processes tell anything that may hold a secret.
# `s3://KEY:SECRET@bucket`, also with too few slashes; a host with a port is no password.
_USER = r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*:/{1,3})[^/\s'\":]*:(?!\d+/)[^\s'\"]*@"
# What a login may lie in, up to its `@`.
_WORD = r"[^\s'\"]+"
# Of `http:` nothing behind the question mark is worth showing. Without one, the address is not looked at again.
_QUERY = r"(?i)(https?:/{1,3}[^\s'\"?#]*)([?#][^\s'\"]*)?"
_SECRET = (
    r"(?:signature|secret|password|passwd|pwd|credential|token|access_?key|account_?key|sas_?key|api[_-]?key|private_?key"
    r"|passphrase|passcode|(?<![A-Za-z])pass(?![\w.%-])|authorization)"
)
# What is longer names nothing: a pattern that looked at more would take for ever over a text of such words.
_NAME = rf"[\w.%-]{{0,40}}{_SECRET}[\w.%-]{{0,40}}"
# Signatures and keys of queries, connection strings and command lines, also where a URI escapes them. `/key=1/` is a
# partition.
_NAMED = (
    rf"(?i)((?:[?&;]|%3[BF]|%26|(?<!\S)--?)(?:{_NAME}|sig|key)(?:=|%3D)"
    r"|(?:\b|%3B)(?:AccountKey|SharedAccessSignature|SharedAccessKey)(?:=|%3D))[^\s&;,'\"]+"
)
# What is a secret by itself, whatever is said about it: keys in PEM, tokens of JWT and of well-known services.
_TOKEN = (
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?=-----END|\Z)"
    r"|(?<![\w-])(eyJ)[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*|\b(gh[oprsu]_|github_pat_|glpat-|xox[abeprs]-|dapi)\w[\w-]{15,}"
)
# A login without a password: a token as the user, and what Oracle's driver takes.
_LOGIN = r"(?i)(\b(?:(?:git\+)?https?|ftps?)://)[^/\s'\"@:?#]{16,}@|(\bjdbc:oracle:[a-z]{1,9}:)[^/\s'\"@]{1,64}/[^\s'\"@]{1,99}@"
# JSON and headers: what names a secret, and its value behind a colon.
_TOLD = (
    rf"""(?i)((?:["']{_NAME}\\?["']\s?:\s?b?\\?["']|(?<![\w-])(?:proxy-)?authorization\s?[:=]\s?["']?"""
    rf"""|(?<![\w-])x-{_NAME}\s?:\s?)(?:(?:bearer|basic|sharedkey)\s)?|\bbearer\s(?=\S{{8}}))"""
    r"""(?!\*\*\*)[^\s"'\\,;]+"""
)
# Settings, in whatever spelling. Only of what a caller tells: a path in an error may be of a partition by that name.
_SET = (
    rf"""(?i)((?<![/\w.%-])(?:{_NAME}|sig)["'`]?\s?(?:[:=]|%3[AD])\s?["']?|(?<![^\s'"`=(])--?{_NAME}\s["']?)"""
    r"""(?!\*\*\*)[^\s"'\\,;&)]+"""
)
# An argument that an error quotes. A path of a partition by that name goes on behind its value.
_QUOTED = rf"(?i)((?:^|['\"]){_NAME}\s?[:=]\s?)(?!\*\*\*)[^\s'\"/\\]+(?=['\"]|$)"
# Constants that SQL compares with a column of such a name.
_COMPARED = (
    rf"(?i)((?<![/\w.%-]){_NAME}[`\"]?\s?(?:[=<>!]{{1,3}}|\b(?:NOT )?(?:I?LIKE|RLIKE|IN)\b)\s?\(?\s?')"
    r"(?!\*\*\*')[^']*(?:'\s?,\s?'[^']*)*(?=')"
)
# What an expression, a name or a comment says of a secret without telling it: words, small numbers, days, placeholders,
# calls and columns of expressions; patterns of LIKE; names of steps and partitions joined by colons.
_PLAIN = (
    r"`?(?:[A-Z]?[a-z]+|[A-Z]+)(?:[-_./:=\s]+(?:[A-Z]?[a-z]+|[A-Z]+))*[-_./:?!]*`?"
    r"|[\d.,:/-]{0,6}|\d{4}-\d\d-\d\d[\dTZ:.+-]*|(?:md|sha|uuid|base|aes|rsa|int|utf)-?\d+"
    r"|[${<%|*(].*|\w*\(.*|[a-z]\w*\.[a-z]\w*"
)
_PATTERN_OR_ID = rf"(?i)^{_NAME}(?:[`\"]?\s(?:NOT )?(?:I?LIKE|RLIKE)\b|:\w)"
_NAME_OF_SECRET = rf"(?i){_SECRET}"
# No pattern finds anything in a text without one of these, in whatever case. To look for a literal takes a hundredth of
# the time of a pattern, and to compile them all a tenth of a first UPDATE.
_SIGNS = (
    *(
        "@",
        "http:",
        "https:",
        "begin",
        "eyj",
        "gho_",
        "ghp_",
        "ghr_",
        "ghs_",
        "ghu_",
        "github_",
        "glpat",
        "xox",
        "dapi",
    ),
    *("sig", "secret", "pass", "pwd", "credential", "token", "key", "auth", "bearer"),
)
_PIECE_CHARS = 64 * 1024

_SECRETS: dict[str, None] = {}
"""Values that must not be shown. Only ever added to, one atomic operation each: no lock can be held across a fork."""


def hide(secret: str) -> None:
    """Never show this value from now on, in this process, nor as a URL spells it."""
    for spelled in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret)):
        _SECRETS.setdefault(spelled)


def is_hidden(secret: str) -> bool:
    """Whether `hide` knows the value."""
    return secret in _SECRETS


def without_secrets(text: str, shortest: int = 1) -> str:
    """A text without what headers and JSON name as secret, and without the values that `hide` was given, but for those
    shorter than `shortest`."""
    return _without_values(_in_pieces(text, lambda piece: re.sub(_TOLD, rf"\1{_HIDDEN}", piece)), shortest)


def _without_values(text: str, shortest: int) -> str:
    # The longest first: one may be a part of another.
    for secret in sorted(_SECRETS.copy(), key=len, reverse=True):
        if len(secret) >= shortest and secret in text:
            text = text.replace(secret, _HIDDEN)
    return text


def redacted(text: str) -> str:
    """A text that may be shown."""
    return _without_values(_in_pieces(text, _redacted_piece), _SHORTEST)


def _redacted_piece(text: str) -> str:
    text = _without_credentials(text)
    text = re.sub(_QUERY, lambda m: m[1] + f"?{_HIDDEN}" * (m[2] is not None), text)
    return re.sub(_QUOTED, rf"\1{_HIDDEN}", re.sub(_COMPARED, rf"\1{_HIDDEN}", text))


def _may_hold(text: str) -> bool:
    folded = text.casefold()
    if not text.isascii():
        # A pattern that ignores case takes the Turkish letters for an i.
        folded = folded.replace("\u0131", "i").replace("i\u0307", "i")
    return any(map(folded.__contains__, _SIGNS))


def _in_pieces(text: str, shown: Callable[[str], str]) -> str:
    """What `shown` makes of a text that may hold a secret. Of a long text it gets those pieces that hold one of
    `_SIGNS`, joined to their neighbours: no secret is further than a piece from what names it."""
    if len(text) <= _PIECE_CHARS:
        return shown(text) if _may_hold(text) else text
    starts = range(0, len(text), _PIECE_CHARS)
    # A sign may lie on the border of two pieces.
    has_sign = [_may_hold(text[start : start + _PIECE_CHARS + 16]) for start in starts]
    is_near = [any(has_sign[max(place - 1, 0) : place + 2]) for place in range(len(starts))]
    runs = []
    for is_looked_at, run in groupby(zip(starts, is_near, strict=True), key=itemgetter(1)):
        places = [start for start, _ in run]
        piece = text[places[0] : places[-1] + _PIECE_CHARS]
        runs.append(shown(piece) if is_looked_at else piece)
    return "".join(runs)


def public(value: Any) -> Any:
    """A value that an error carries: its texts as `redacted`, also in dictionaries, lists and tuples."""
    if isinstance(value, str):
        return redacted(value)
    if type(value) is dict:
        return {
            public(key): _HIDDEN if isinstance(item, str) and _names_secret(str(key)) else public(item)
            for key, item in value.items()
        }
    return type(value)(map(public, value)) if type(value) in (list, tuple) else value


def _names_secret(name: str) -> bool:
    return _may_hold(name) and re.search(_NAME_OF_SECRET, name) is not None


def _without_credentials(text: str) -> str:
    text = _without_values(re.sub(_TOLD, rf"\1{_HIDDEN}", text), _SHORTEST)
    if "@" in text:
        text = re.sub(_WORD, _without_login, text)
    text = re.sub(_LOGIN, rf"\1\2{_HIDDEN}@", text)
    text = re.sub(_TOKEN, rf"\1\2\3{_HIDDEN}", text, flags=re.DOTALL)
    return re.sub(_NAMED, rf"\1{_HIDDEN}", text)


def _without_login(word: re.Match[str]) -> str:
    head, at, rest = word[0].rpartition("@")
    return re.sub(_USER, rf"\1{_HIDDEN}@", head + at) + rest


def without_credentials(text: str) -> str:
    """A text that has its meaning only as it is, such as an expression, a name or a comment, without what `kept` cuts
    out. It may name secrets: neither `Password: at least 8 letters` nor `token_type = 'bearer'` loses anything."""
    return _kept(text, _without_value_unless_plain)


def tells_secret(text: str) -> bool:
    """Whether a text holds what `without_credentials` cuts out."""
    return without_credentials(text) != text


def kept(value: Any) -> Any:
    """A value of JSON that a commit may keep: as `redacted`, but queries without a signature, key or token stay, and
    passwords, keys and tokens go in whatever spelling they are set."""
    if isinstance(value, dict) and not _SECRETS:
        with suppress(TypeError):  # Text that is not Unicode is looked at piece by piece.
            if not _may_hold(orjson.dumps(value).decode()):
                return value
    return _kept_value(value)


def _kept_value(value: Any) -> Any:
    if isinstance(value, str):
        return _kept(value, lambda match: f"{match[1]}{_HIDDEN}")
    if isinstance(value, dict):
        return {
            _kept_value(key): _HIDDEN if isinstance(item, str) and _names_secret(key) else _kept_value(item)
            for key, item in value.items()
        }
    return [_kept_value(item) for item in value] if isinstance(value, list) else value


def _kept(text: str, without_value: Callable[[re.Match[str]], str]) -> str:
    def kept_piece(piece: str) -> str:
        return re.sub(_SET, without_value, re.sub(_COMPARED, without_value, _without_credentials(piece)))

    return _without_values(_in_pieces(text, kept_piece), _SHORTEST)


def _without_value_unless_plain(match: re.Match[str]) -> str:
    values = re.split(r"'\s?,\s?'", match[0][len(match[1]) :])
    is_plain = re.search(_PATTERN_OR_ID, match[0]) or all(re.fullmatch(_PLAIN, value) for value in values)
    return match[0] if is_plain else f"{match[1]}{_HIDDEN}"


def secrets_in(uri: str) -> list[str]:
    """What `redacted` cuts out of a URI, piece by piece, where it is long enough to be told from a word."""
    shown = redacted(uri)
    if shown == uri:
        return []
    pieces = re.split(r"[/?#&;=@:]+", uri)
    return [piece for piece in dict.fromkeys(pieces) if len(piece) >= _SHORTEST and piece not in shown]
