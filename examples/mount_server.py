"""The server of a store, mounted in a Starlette program.

`uvicorn mount_server:program` serves it to a browser. This script calls the program itself, so it needs no port.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

import backtrail
from backtrail import server

TOKEN = "a-secret-of-your-own"  # noqa: S105 - an example

store = backtrail.open("memory://")
memory = server.app(store, tokens=TOKEN, write=True)


async def hello(_: object) -> PlainTextResponse:
    """Answer the program's own path."""
    return PlainTextResponse("hello")


program = Starlette(routes=[Route("/", hello), Mount("/memory", memory)])


def main() -> None:
    """Save and read a state over HTTP."""
    store.thread("trip").save({"city": "Porto"})
    api = TestClient(program, headers={"Authorization": f"Bearer {TOKEN}"})
    print("the program itself:", api.get("/").text)
    head = api.get("/memory/api/v1/threads/trip")
    print("threads:", [each["thread_id"] for each in api.get("/memory/api/v1/threads").json()["threads"]])
    changed = api.put(
        "/memory/api/v1/threads/trip/state",
        json={"state": {"city": "Lisbon"}},
        headers={"If-Match": head.headers["etag"]},
    )
    assert changed.status_code == 200
    print("state:", api.get("/memory/api/v1/threads/trip/state").json()["value"])


if __name__ == "__main__":
    main()
