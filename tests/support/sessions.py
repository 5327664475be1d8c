"""What tests of the Claude Agent SDK's sessions share: entries, and stores to put them into."""

import asyncio
import uuid
from contextlib import contextmanager
from functools import partial

import backtrail
from backtrail.adapters.claude import BacktrailSessionStore
from tests.support.places import in_memory
from tests.support.schemas import swept

KEY = {"project_key": "-home-ada-trip", "session_id": "7c9f0c1e-0000-4000-8000-000000000001"}
SUB = {**KEY, "subpath": "subagents/agent-1"}


@contextmanager
def somewhere(kind, tmp_path):
    """A place as in `tests.support.places`."""
    if kind == "memory":
        with in_memory() as opener:
            yield opener
    elif kind == "postgres":
        with swept(durability="relaxed") as opener:
            yield opener
    else:
        name = f"{uuid.uuid4()}"
        url = (tmp_path / name).as_uri() if kind == "file" else tmp_path / f"{name}.db"
        yield partial(backtrail.open, url, durability="relaxed")


def said(text, role="user", **others):
    """An entry as the SDK hands it over."""
    content = text if role == "user" else [{"type": "text", "text": text}]
    entry = {"type": role, "uuid": str(uuid.uuid4()), "timestamp": "2026-01-31T12:00:00.000Z"}
    return {**entry, "sessionId": KEY["session_id"], "message": {"role": role, "content": content}, **others}


def loaded(store, key=KEY):
    return _done(store, lambda sessions: sessions.load(key))


def appended(store, *entries, key=KEY):
    _done(store, lambda sessions: sessions.append(key, [*entries]))


def _done(store, call):
    async def main():
        sessions = BacktrailSessionStore(store)
        try:
            return await call(sessions)
        finally:
            await sessions.store._executor.close(lambda: None)  # its threads end now, not when it is collected

    return asyncio.run(main())
