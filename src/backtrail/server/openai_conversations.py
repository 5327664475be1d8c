"""OpenAI's Conversations API on the conversations of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.server.problems import problem_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.routing import Route


def speaks(segments: tuple[str, ...]) -> bool:
    """Tell whether a path belongs to this API."""
    return segments[:1] == ("v1",)


def error_response(error: Exception) -> Response:
    """Return an error in the form of OpenAI."""
    return problem_response(error)


ROUTES: Final[tuple[Route, ...]] = ()
