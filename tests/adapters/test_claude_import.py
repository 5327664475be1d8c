"""Transcripts of Claude Code, taken over: the store has what the SDK's own import writes."""

import asyncio
import json
import uuid

import pytest
from claude_agent_sdk import InMemorySessionStore, import_session_to_store

import backtrail
from backtrail import Invalid, NotFound
from backtrail.adapters.claude import BacktrailSessionStore, check_transcripts, import_transcripts
from tests.support.commands import bad, good

SESSION = "6a5e0c6e-3a58-4a51-9a10-0f9a5b1f6d11"
PROJECT = "-home-ann-trip"


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def entry(kind, minute, content, **more):
    role = "assistant" if kind == "assistant" else "user"
    time = f"2025-04-01T10:{minute:02}:00.000Z"
    message = {"role": role, "content": content}
    return {
        "type": kind,
        "uuid": str(uuid.uuid4()),
        "timestamp": time,
        "sessionId": SESSION,
        "message": message,
        **more,
    }


def lines():
    return [
        {"type": "summary", "summary": "A trip to Lisbon", "leafUuid": "x"},
        entry("user", 1, "A ferry to Lisbon"),
        entry("assistant", 2, [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]),
        entry("user", 3, [{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}]),
        entry("assistant", 4, [{"type": "text", "text": "Done."}]),
        entry("user", 10, "And back, é \0"),
        entry("assistant", 11, [{"type": "text", "text": "As you like."}]),
        {"type": "summary", "summary": "A trip to Lisbon", "leafUuid": "x"},
    ]


@pytest.fixture
def projects(tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    project = tmp_path / "claude" / "projects" / PROJECT
    project.mkdir(parents=True)
    put(project / f"{SESSION}.jsonl", lines())
    below = project / SESSION / "subagents"
    below.mkdir(parents=True)
    put(below / "agent-1.v2.jsonl", [entry("user", 5, "look"), entry("assistant", 6, "seen")])
    (below / "agent-1.v2.meta.json").write_text('{"agentType": "explore"}')
    return project.parent


def put(path, entries):
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))


def loaded(sessions, subpath=None):
    key = {"project_key": PROJECT, "session_id": SESSION} | ({"subpath": subpath} if subpath else {})
    return asyncio.run(sessions.load(key))


def rows(store):
    return sorted((each.id, each.checkpoints, each.head_id) for each in store.threads(kind="conversation"))


@pytest.mark.parametrize("start", ["", PROJECT, f"{PROJECT}/{SESSION}.jsonl"])
def test_transcripts_come_over_as_the_sdk_imports_them(projects, store, start):
    theirs = InMemorySessionStore()
    asyncio.run(import_session_to_store(SESSION, theirs))
    report = import_transcripts(projects / start, store)
    assert (report.sessions, report.messages, report.skipped) == (2, 11, ())
    ours = BacktrailSessionStore(store)
    for subpath in (None, "subagents/agent-1.v2"):
        assert loaded(ours, subpath) == loaded(theirs, subpath) is not None
    there = rows(store)
    again = import_transcripts(projects / start, store)
    assert (again.sessions, again.messages, again.skipped) == (2, 0, ())
    assert rows(store) == there
    asyncio.run(import_session_to_store(SESSION, BacktrailSessionStore(store)))  # the same entries, by their uuids
    assert len([each for each in loaded(ours) if "uuid" in each]) == 6


def test_turns_are_checkpoints_with_their_times(projects, store):
    import_transcripts(projects, store)
    (info,) = [each for each in store.conversations.list(PROJECT) if each.message_count == 8]
    history = list(store.conversations.thread(info.id).history())
    assert [len(each.get("messages")) for each in history] == [1, 5, 8]
    assert [each.created_at.minute for each in history[1:]] == [4, 11]
    assert history[-1].created_at.year == 2025
    conversation = store.conversations.load(info.id)
    assert [message.timestamp.minute for message in conversation.messages[1:7]] == [1, 2, 3, 4, 10, 11]
    assert conversation.title == "A ferry to Lisbon"
    assert [hit.role for hit in store.search("ferry")] == ["user"]


def test_a_second_import_adds_what_is_new(projects, store):
    import_transcripts(projects, store)
    path = projects / PROJECT / f"{SESSION}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(entry("user", 20, "more")) + "\n" + json.dumps({"type": "summary", "summary": "new"}))
    assert import_transcripts(projects, store).messages == 2
    assert [each.get("type") for each in loaded(BacktrailSessionStore(store))][-2:] == ["user", "summary"]


def test_damaged_lines_are_reported_and_left_out(projects, store):
    path = projects / PROJECT / f"{SESSION}.jsonl"
    given = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join([*given[:2], b"{broken\n", b"\n", b"[1]\n", b"\xff\n", *given[2:], b'{"type": "user", "mes'])
    )
    report = import_transcripts(projects / PROJECT, store)
    assert [each.reason.partition(" is")[0] for each in report.skipped] == ["line 3", "line 5", "line 6", "line 13"]
    assert len(loaded(BacktrailSessionStore(store))) == 8


def test_other_paths_are_refused(tmp_path, store):
    with pytest.raises(NotFound):
        import_transcripts(tmp_path / "none", store)
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(Invalid, match=r"end in \.jsonl"):
        check_transcripts(tmp_path / "text.txt")
    with pytest.raises(Invalid, match="no transcripts"):
        import_transcripts(tmp_path, store)
    put(tmp_path / "a.jsonl", lines())
    with pytest.raises(Invalid, match="progress"):
        import_transcripts(tmp_path, store, progress=5)
    assert rows(store) == []


def test_the_command_line_imports_directories_and_names_the_format(projects, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKTRAIL_URL", f"sqlite:///{tmp_path / 'into.db'}")
    assert "--from claude" in bad(2, "import", projects / PROJECT / f"{SESSION}.jsonl")
    assert "directory" in bad(1, "import", projects)
    assert "2 sessions, 11 messages, 0 skipped" in good("import", projects, "--from", "claude").out
