"""Ids of threads that are made of several names. Different names never give one id."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from blake3 import blake3

_ID_MAX: Final = 400
_SAFE: Final = " @"


def joined_id(kind: str, *parts: str) -> str:
    """Return an id made of names, `kind:first/second`; `kind~` and a hash stand for very long ones."""
    text = joined(*parts)
    return f"{kind}:{text}" if len(text) <= _ID_MAX else f"{kind}~{blake3(text.encode()).hexdigest()}"


def joined(*parts: str) -> str:
    """Return names as one text, in which a slash separates them. A prefix of a name gives a prefix of the text."""
    return "/".join(quote(part.encode("utf-8", "surrogatepass"), safe=_SAFE) for part in parts)


def id_prefixes(kind: str, start: str) -> tuple[str, str]:
    """Return the prefixes of the ids of this kind whose text starts so. Other ids may have the second one, too."""
    return f"{kind}:{start}"[: len(kind) + 1 + _ID_MAX], f"{kind}~"


def split_id(kind: str, thread_id: str) -> list[str] | None:
    """Return the names that an id is made of; None if it is a hash or of another kind."""
    start = f"{kind}:"
    if not thread_id.startswith(start):
        return None
    parts = thread_id.removeprefix(start).split("/")
    return [unquote(part, errors="surrogatepass") for part in parts]
