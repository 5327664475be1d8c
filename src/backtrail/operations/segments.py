"""Ids as segments of paths, in URLs and URIs.

A segment is percent-encoded. Browsers, clients and proxies resolve the segments `.` and `..`, also if they are written
as `%2E`. So an id of dots has a tilde in front: `~..` is the id `..`, and `~~..` is the id `~..`.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote

_DOTS: Final = re.compile(r"~*\.\.?")


def segment(value: Any) -> str:
    """Return a value as one segment of a path."""
    text = str(value)
    tilde = "~" if _DOTS.fullmatch(text) else ""
    return tilde + quote(text.encode("utf-8", "surrogatepass"), safe="")


def from_segment(part: str) -> str:
    """Return the value of a segment; `UnicodeDecodeError` if it is not UTF-8."""
    text = unquote(part, errors="surrogatepass")
    return text[1:] if text.startswith("~") and _DOTS.fullmatch(text) else text
