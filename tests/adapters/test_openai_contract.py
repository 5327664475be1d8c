"""Where OpenAI's own tests of sessions ask for an error, ours raises the same."""

import asyncio
import math

import pytest
from agents import SQLiteSession
from agents.memory import SessionSettings

import backtrail
from backtrail import Invalid, Unavailable
from backtrail.adapters.claude import BacktrailSessionStore
from backtrail.adapters.openai import BacktrailSession


def both(tmp_path, **options):
    """Return a session of theirs and one of ours."""
    theirs = SQLiteSession("s", tmp_path / "theirs.db", **options)
    return theirs, BacktrailSession("s", tmp_path / "ours.db", **options)


@pytest.mark.parametrize("settings", [{"limitt": 1}, {"limit": 1, "more": 2}, [1], "limit"])
def test_wrong_settings_are_a_type_error(tmp_path, settings):
    with pytest.raises(TypeError) as theirs:
        SQLiteSession("s", session_settings=settings)
    with pytest.raises(TypeError) as ours:
        BacktrailSession("s", tmp_path / "ours.db", session_settings=settings)
    assert str(ours.value) == str(theirs.value)
    assert not (tmp_path / "ours.db").exists()


@pytest.mark.parametrize("settings", [None, {}, {"limit": None}, {"limit": 2}, SessionSettings(limit=1)])
def test_settings_match_sqlite_session(tmp_path, settings):
    async def use(session):
        await session.add_items([{"role": "user", "content": str(n)} for n in range(3)])
        found = [item["content"] for item in await session.get_items()]
        session.session_settings = {"limit": 1}  # the SDK's own functions take a dict, too
        return found, [item["content"] for item in await session.get_items()]

    theirs, ours = both(tmp_path, session_settings=settings)
    assert asyncio.run(use(ours)) == asyncio.run(use(theirs))
    ours.close()
    theirs.close()


def test_closed_session_refuses_an_empty_list(tmp_path):
    theirs, ours = both(tmp_path)
    theirs.close()
    ours.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(theirs.add_items([]))
    with pytest.raises(Unavailable, match="closed") as error:
        asyncio.run(ours.add_items([]))
    assert error.value.code == "unavailable.closed"


def test_closed_claude_store_refuses_an_empty_list(tmp_path):
    async def main():
        sessions = BacktrailSessionStore(tmp_path / "c.db")
        await sessions.close()
        with pytest.raises(Unavailable, match="closed"):
            await sessions.append({"project_key": "p", "session_id": "s"}, [])

    asyncio.run(main())


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", backtrail, 1j])
def test_values_outside_json_are_a_type_error(tmp_path, value):
    theirs, ours = both(tmp_path)
    item = {"role": "user", "content": value}
    with pytest.raises(TypeError):
        asyncio.run(theirs.add_items([item]))
    with pytest.raises(TypeError) as error:
        asyncio.run(ours.add_items([{"role": "user", "content": "fine"}, item]))
    assert isinstance(error.value, Invalid)
    assert (error.value.code, error.value.path) == ("invalid.value", "items[1]['content']")
    assert asyncio.run(ours.get_items()) == []
    ours.close()
    theirs.close()


@pytest.mark.parametrize("item", [{"role": "user", "content": math.nan}, {"content": (1, 2)}, "text", None])
def test_inexact_value_is_both_errors(item):
    with backtrail.open("memory://") as store:
        session = BacktrailSession("s", store)
        for kind in (TypeError, Invalid):
            with pytest.raises(kind):
                asyncio.run(session.add_items([item]))
