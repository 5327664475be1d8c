"""URLs of stores: the default URL, URLs without their secrets, and the backend of a URL."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.atomic_file import path_of
from backtrail.errors import Invalid, Unavailable
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import Backend

_ADDRESS: Final = re.compile(
    r"//(?:(?P<user>[^:@/]*)(?::[^@]*)?(?=@))?(?P<host>@?[\w.,\[\]-]*(?::\d{1,5})?)(?P<path>/[\w-]*)?"
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=//)")
_HARMLESS: Final = re.compile(r"(host|hostaddr|port|dbname|user|service|pool_size)=[\w.,/%-]*")
"""The parameters of a PostgreSQL URL that hold no secret."""
_BLANK: Final = re.compile(r"\s*|(?i:sqlite|file):/*\s+")
KEYS: Final = ".keys"
"""The end of the name of a keyring in a file or a directory; the rest is that of its store."""
_WORDS: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
"""The start of a libpq connection string of keywords and values, so that it is not taken for a file path."""


def default_url() -> str:
    """Return the default URL: $BACKTRAIL_URL, else the path of a file in the user's data directory."""
    named = os.environ.get("BACKTRAIL_URL")
    if named:
        return named
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return str(base / "backtrail" / "backtrail.db")


def check_url(url: Any) -> str:
    """Return a caller's URL or path as a str, the default URL for None; `Invalid` if it names no store."""
    name = default_url() if url is None else url
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        hint = ": os.fsdecode() makes a str of bytes" if isinstance(name, bytes) else ""
        raise Invalid(
            f"the name of a store must be a str or a Path, not {type(name).__name__}{hint}", code="invalid.url"
        )
    if _BLANK.fullmatch(name):
        raise Invalid(
            f"{name!r} is not the name of a store: pass a path, or a URL such as sqlite:///agents.db",
            code="invalid.url",
        )
    if name.strip().rpartition("/")[2] == ":memory:":
        raise Invalid(f"the URL of a store in memory must be memory://, not {name!r}", code="invalid.url")
    return name


def shown(url: str) -> str:
    """Return a URL for messages: without its password and other parts that may be secret."""
    scheme, colon, rest = url.strip().partition(":")
    if _WORDS.match(url):
        return "..."
    if scheme.lower() in ("sqlite", "file", "memory") or not colon:
        return url if "@" not in rest or rest.startswith("///") else f"{scheme}://..."
    if not scheme.lower().startswith("postgres"):
        return f"{scheme}://..." if rest.startswith("//") else url
    address, mark, query = rest.partition("?")
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        return f"{scheme}://..."
    kept = "&".join(each for each in query.split("&") if _HARMLESS.fullmatch(each))
    return f"{scheme}://{parts['user'] or ''}{parts['host']}{parts['path'] or ''}{mark if kept else ''}{kept}"


def in_postgres(url: str) -> bool:
    """Tell whether a URL names a PostgreSQL store."""
    return url.lower().startswith(("postgresql:", "postgres:"))


def backend_at(url: str, *, durability: str, read_only: bool, schema: str | None) -> Backend:
    """Open the backend of a URL. Only the modules of that backend are imported."""
    url = _lowered(url)
    if _WORDS.match(url) or (url != url.lstrip() and _SCHEME.match(url.lstrip())):
        raise Invalid(
            "this is not a URL: write postgresql://user:password@host:5432/database, without a leading space",
            code="invalid.url",
        )
    if in_postgres(url):
        return _postgres(url, durability=durability, read_only=read_only, schema=schema)
    if schema is not None:
        raise Invalid("schema= is for PostgreSQL; this kind of store has no schemas", code="invalid.argument")
    if url.startswith("memory:"):
        if url not in ("memory:", "memory://", "memory:///"):
            raise Invalid(f"a store in memory has no name: use memory://, not {url!r}", code="invalid.url")
        with loading:
            from backtrail.backends.memory import MemoryBackend  # noqa: PLC0415

        if read_only:
            raise Invalid("a store in memory cannot be read-only, because it begins empty", code="invalid.argument")
        return MemoryBackend()
    if url.startswith("file:"):
        with loading:
            from backtrail.backends.file.backend import FileBackend  # noqa: PLC0415

        return FileBackend(_directory(url), durability=durability, read_only=read_only)
    registered = _registered(url)
    if registered is not None:
        return registered(url, durability=durability, read_only=read_only)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415

    return SqliteBackend(_path(url), durability=durability, read_only=read_only)


def keyring_at(
    url: str, schema: str | None, keyring: str | os.PathLike[str] | None, *, read_only: bool, must_exist: bool
) -> Backend | None:
    """Open the keyring of an encrypted store: beside the store, or where the caller says; None if it must exist.

    A key must never be lost, so the keyring is always durable.
    """
    if keyring is not None:
        place, schema = check_url(keyring), None
    else:
        place = _lowered(url)
        if in_postgres(place):
            schema = f"{schema or 'backtrail'}_keys"
        elif place.startswith("file:"):
            place = place.rstrip("/") + KEYS
        elif not place.startswith("memory:"):
            if _registered(place) is not None:
                raise Invalid("for this kind of store, keyring= must name the keyring's store", code="invalid.argument")
            place += KEYS
    if must_exist and not in_postgres(place) and not place.startswith("memory:") and _registered(place) is None:
        directory = directory_of(place)
        if not Path(directory or file_of(place)).exists():
            return None
    return backend_at(place, durability="full", read_only=read_only, schema=schema)


def _registered(url: str) -> Callable[..., Backend] | None:
    """Return the function that an installed package has registered for the URL's scheme; None if there is none."""
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[1] == "sqlite":
        return None
    with loading:
        from importlib.metadata import entry_points  # noqa: PLC0415 - few URLs need it

    for entry_point in entry_points(group="backtrail.backends", name=scheme[1]):
        opener: Callable[..., Backend] = entry_point.load()
        return opener
    return None


def directory_of(url: str) -> str | None:
    """Return the directory of a file store; None for a URL of another kind."""
    url = _lowered(url)
    return _directory(url) if url.startswith("file:") else None


def file_of(url: str) -> str:
    """Return the file path of an SQLite store's URL."""
    return _path(_lowered(url))


def _lowered(url: str) -> str:
    scheme = _SCHEME.match(url)
    return scheme[0].lower() + url[scheme.end() :] if scheme else url


def _postgres(url: str, *, durability: str, read_only: bool, schema: str | None) -> Backend:
    try:
        with loading:
            from backtrail.backends.postgres.backend import PostgresBackend  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            "PostgreSQL stores need psycopg: pip install 'backtrail[postgres]'", code="unavailable.extra"
        ) from error
    return PostgresBackend(url, schema=schema, durability=durability, read_only=read_only)


def _directory(url: str) -> str:
    if not url.startswith("file:///") or not url.strip("/").removeprefix("file:"):
        raise Invalid(
            f"cannot parse {shown(url)!r}; write file:///var/lib/agents, the absolute path of a directory",
            code="invalid.url",
        )
    return _unquoted(url.removeprefix("file://"))


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    with loading:
        from urllib.parse import unquote_to_bytes  # noqa: PLC0415 - few paths need it

    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))  # a name need not be UTF-8


def _path(url: str) -> str:
    """Return the file path of an SQLite store's URL, whose scheme is in lower case."""
    if "\0" in url or not url:
        raise Invalid(f"this is not a path: {url!r}", code="invalid.url")
    if url.startswith("sqlite:"):
        if not url.startswith("sqlite:///") or url == "sqlite:///":
            raise Invalid(
                f"cannot parse {shown(url)!r}; write sqlite:///agents.db, or for an absolute path "
                "sqlite:////var/lib/agents.db",
                code="invalid.url",
            )
        return _unquoted(url.removeprefix("sqlite:///"))
    scheme, separator, _ = url.partition("://")
    if separator and scheme.replace("+", "").isalnum():
        raise Invalid(
            f"unknown kind of store {scheme!r}; use a path, sqlite:///path, file:///directory, postgresql://..., "
            "memory://, or install the package that registers this scheme",
            code="invalid.url",
        )
    return str(path_of(url))
