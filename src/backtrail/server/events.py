"""Server-sent events: new heads of threads, as `store.watch` gives them."""

from __future__ import annotations

from typing import Final

from backtrail.server.routing import Route


class Events:
    """The watchers of a server."""

    def close(self) -> None:
        """Stop the watchers."""


ROUTES: Final[tuple[Route, ...]] = ()
