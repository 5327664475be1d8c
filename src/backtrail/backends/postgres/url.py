"""Parse the URL of a PostgreSQL store into options for libpq and a name for error messages.

All URLs of libpq are accepted: with any of its parameters, several hosts, a service, a password file. `pool_size` is
backtrail's own parameter. A password is never shown: libpq's messages about a URL quote it, so they are not passed on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from backtrail.errors import Invalid

POOL_SIZE: Final = 16
_MAX_POOL: Final = 1000
_MAX_PORT: Final = 65535


class Target(NamedTuple):
    """The database to connect to."""

    options: dict[str, Any]
    """The connection options for libpq."""
    shown: str
    """The URL for error messages, without the password."""
    pool_size: int


def read_url(url: str) -> Target:
    """Parse the URL of a PostgreSQL store; `Invalid` if it cannot be parsed."""
    bare, _, query = url.partition("?")
    parameters = query.split("&") if query else []
    own = [parameter.partition("=")[2] for parameter in parameters if parameter.partition("=")[0] == "pool_size"]
    rest = [parameter for parameter in parameters if parameter.partition("=")[0] != "pool_size"]
    options = None
    with suppress(psycopg.Error):
        options = conninfo_to_dict(f"{bare}?{'&'.join(rest)}" if rest else bare)
    if options is None or not (_is_unambiguous(bare) and _has_ports(options)):  # not in an `except`: no context, either
        raise Invalid(
            "this is not the URL of a PostgreSQL database: write postgresql://user:password@host:5432/database, "
            "with %-escapes for characters that mean something in a URL, and only parameters that libpq knows",
            code="invalid.url",
        )
    return Target(options, _shown(options), _pool_size(own[-1]) if own else POOL_SIZE)


def _is_unambiguous(bare: str) -> bool:
    """Tell whether the end of the password is clear: after an unescaped @ or / libpq expects a host or database."""
    _, separator, rest = bare.partition("://")
    authority, _, path = rest.partition("/")
    return bool(separator) and authority.count("@") <= 1 and "@" not in path


def _has_ports(options: dict[str, Any]) -> bool:
    """Tell whether all ports are valid: if the host is missing in a URL, libpq takes the password for a port."""
    ports = str(options.get("port") or "").split(",")
    return all(not port or (port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT) for port in ports)


def _pool_size(value: str) -> int:
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= _MAX_POOL):
        raise Invalid(f"pool_size must be a number from 1 to {_MAX_POOL}, not {value!r}", code="invalid.url")
    return int(value)


def _shown(options: dict[str, Any]) -> str:
    user = f"{options['user']}@" if options.get("user") else ""
    host = options.get("host") or options.get("hostaddr") or ""
    port = f":{options['port']}" if options.get("port") else ""
    return f"postgresql://{user}{host}{port}/{options.get('dbname', '')}"
