"""Times on the command line: `--since`, `--until`, and what was saved when."""

import datetime as dt
import time

import click
import pytest

from backtrail.cli.parameters import Moment
from tests.support.commands import bad, docs, good

START = dt.datetime.fromtimestamp(docs._START, dt.UTC)
"""The time of the first checkpoint of the store."""


def after(**duration):
    return (START + dt.timedelta(**duration)).isoformat()


@pytest.fixture
def utc():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("today", "2026-03-10T00:00:00+00:00"),
        ("yesterday", "2026-03-09T00:00:00+00:00"),
        ("90m", "2026-03-10T13:30:00+00:00"),
        ("2w", "2026-02-24T15:00:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T12:30", "2026-01-31T12:30:00+00:00"),
        ("2026-01-31T12:30+02:00", "2026-01-31T12:30:00+02:00"),
    ],
)
def test_a_time_is_read_as_written(utc, monkeypatch, text, wanted):
    monkeypatch.setattr("time.time", lambda: dt.datetime(2026, 3, 10, 15, tzinfo=dt.UTC).timestamp())
    assert Moment().convert(text, None, None) == dt.datetime.fromisoformat(wanted)


@pytest.mark.parametrize("text", ["", "tomorrow", "5", "999999999w", "2026-13-01", "-1d"])
def test_any_other_text_is_not_a_time(text):
    with pytest.raises(click.BadParameter, match="is not a time; write today"):
        Moment().convert(text, None, None)


def test_agents_and_conversations_take_times(trip_store):
    early, late = after(minutes=30), after(days=1)
    assert [row["agent_id"] for row in good("agents", "--since", early, "--jsonl").rows] == ["planner"]
    assert good("agents", "--since", late, "--jsonl").rows == []
    assert "no agents in that time" in good("agents", "--since", late).err
    assert "omit AGENT" in bad(2, "agents", "planner", "--since", early)
    assert [row["id"] for row in good("conversations", "--since", early, "--jsonl").rows] == ["lunch"]
    assert good("conversations", "planner", "--until", early, "--jsonl").rows == []
    assert "in that time" in good("conversations", "--until", early).err


def test_commands_take_times(trip_store):
    assert [row["step"] for row in good("log", "trip", "--since", after(seconds=60), "--jsonl").rows] == [3, 2]
    assert [row["step"] for row in good("log", "trip", "--until", after(seconds=60), "--jsonl").rows] == [1]
    assert [row["id"] for row in good("threads", "--until", after(minutes=30), "--jsonl").rows] == ["trip-cheap"]
    assert good("runs", "--since", after(days=1), "--jsonl").rows == []
    assert len(good("runs", "--since", after(), "--jsonl").rows) == 1
    assert good("search", "lisbon", "--since", after(minutes=30), "--jsonl").rows[0]["conversation_id"] == "lunch"


def test_an_empty_time_is_said_so(trip_store):
    assert "there are no threads in that time; see `backtrail threads`" in good("threads", "--since", "1s").err
    assert "there are no runs in that time; see `backtrail runs`" in good("runs", "--since", "1s").err
    assert "no checkpoint was saved in that time" in good("log", "trip", "--since", "1s").err
    assert "nothing was saved in that time" in good("activity", "--since", "1s").err
    assert "'soon' is not a time" in bad(2, "activity", "--since", "soon")


def test_activity_shows_all_kinds_newest_first(trip_store):
    rows = good("activity", "--jsonl").rows
    assert [row["of"] for row in rows[:5]] == ["conversation", "run", "run", "thread", "agent"]
    assert sorted((row["created_at"] for row in rows), reverse=True) == [row["created_at"] for row in rows]
    assert {row["thread_id"] for row in good("activity", "--kind", "thread", "--jsonl").rows} == {"trip", "trip-cheap"}
    first = good("activity", "-n", 1)
    assert "lunch" in first.out
    assert first.err == "more with -n 0, or with --until\n"
