"""Who may do what: tokens, cookies, hosts, and the header that every change needs.

- The Host header must be a name of the server, so that a page of another site whose name resolves to this address
  (DNS rebinding) gets nothing.
- A token comes as `Authorization: Bearer`, as a cookie, or once in the link (`?token=`), which sets the cookie. The
  cookie holds a hash of the token and is HttpOnly and SameSite=Strict.
- A change needs a header that a form of another site cannot send: `Authorization`, or `X-Backtrail`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Invalid
from backtrail.models import MISSING, Sentinel
from backtrail.server.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "testserver")
"""Names of this machine. `testserver` is the name in tests of Starlette: it has no dot, so no site can have it."""
SAFE_METHODS: Final = ("GET", "HEAD")
CHANGE_HEADER: Final = "x-backtrail"
_TOKEN_MIN: Final = 8


class Access(NamedTuple):
    """What the holder of a token may see and do."""

    agents: tuple[str, ...] | None = None
    """The agents whose things it sees; None for all things."""
    write: bool = False


Tokens = str | Iterable[str] | Mapping[str, Any] | Sentinel | None


def read_tokens(
    tokens: Tokens, agents: tuple[str, ...] | None, *, write: bool
) -> tuple[dict[str, Access] | None, str | None]:
    """Return the access of each token, and the token that was made up; no tokens if none is needed."""
    default = Access(agents, write)
    if tokens is None:
        return None, None
    if tokens is MISSING or isinstance(tokens, Sentinel):
        made = secrets.token_urlsafe(24)
        return {made: default}, made
    if isinstance(tokens, str):
        tokens = (tokens,)
    given = tokens if isinstance(tokens, Mapping) else dict.fromkeys(tokens, default)
    if not given:
        raise Invalid("tokens is empty: pass a token, or None to need none", code="invalid.argument")
    found: dict[str, Access] = {}
    for token, access in given.items():
        if not isinstance(token, str) or len(token) < _TOKEN_MIN or not token.isascii() or not token.isprintable():
            raise Invalid(
                f"a token must have at least {_TOKEN_MIN} printable ASCII characters", code="invalid.argument"
            )
        found[token] = _access(access, default)
    return found, None


def _access(given: Any, default: Access) -> Access:
    """Return the access of one token: an `Access`, the id of an agent, several ids, or None for the default."""
    if given is None:
        return default
    if isinstance(given, Access):
        wanted = given._replace(write=given.write and default.write)
    else:
        wanted = Access((given,) if isinstance(given, str) else tuple(given), default.write)
    if wanted.agents is None:
        return wanted._replace(agents=default.agents)
    if default.agents is not None and not set(wanted.agents) <= set(default.agents):
        raise Invalid("a token's agents must be among the agents of scope=", code="invalid.argument")
    return wanted


class Gate:
    """Decides whether a request may pass."""

    def __init__(self, tokens: dict[str, Access] | None, default: Access, hosts: Iterable[str] | None) -> None:
        self._tokens = tokens
        self._default = default
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._cookies = {_hashed(token): token for token in tokens or ()}
        self.cookie = f"backtrail-{_hashed(*sorted(tokens or ()))[:12]}"
        """The name of the cookie: servers on other ports of this machine get the same cookies."""

    @property
    def needs_token(self) -> bool:
        """Whether a caller needs a token."""
        return self._tokens is not None

    def check_host(self, request: Request) -> None:
        """Refuse a request that names another host."""
        host = request.headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            raise Problem(421, "forbidden.host", f"this server has another name than {host!r:.100}")

    def access_of(self, request: Request) -> Access:
        """Return the access of a request's token."""
        if self._tokens is None:
            return self._default
        token = self.token_of(request)
        if token is None:
            raise Problem(
                401, "forbidden.token", "send the token of the server as Authorization: Bearer, or open its link"
            )
        return self._tokens[token]

    def token_of(self, request: Request) -> str | None:
        """Return the valid token of a request, or None."""
        kind, _, word = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.known(word.strip())
        return self._cookies.get(request.cookies.get(self.cookie, ""))

    def known(self, word: str) -> str | None:
        """Return a token if it is valid. The time that this takes tells nothing about the tokens."""
        given = word.encode("utf-8", "surrogatepass")
        return next((token for token in self._tokens or () if hmac.compare_digest(token.encode(), given)), None)

    def cookie_for(self, token: str) -> str:
        """Return the value of the cookie of a token."""
        return _hashed(token)

    def check_change(self, request: Request) -> None:
        """Refuse a change that a form or a page of another site may have sent."""
        headers = request.headers
        if "authorization" not in headers and CHANGE_HEADER not in headers:
            raise Problem(403, "forbidden.header", "a change needs the header Authorization, or X-Backtrail: 1")
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Problem(403, "forbidden.origin", "a page of another site cannot change this store")


def _hashed(*words: str) -> str:
    return hashlib.sha256("\0".join(("backtrail", *words)).encode()).hexdigest()


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
