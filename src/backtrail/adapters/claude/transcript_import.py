"""Import of Claude Code's own transcripts: the JSONL files below `~/.claude/projects`.

`<project>/<session>.jsonl` is a session, files below `<project>/<session>/` are those of its subagents. A
`BacktrailSessionStore` then has the sessions that the SDK would have written to it, and resumes them. Each turn is a
checkpoint with its time. Entries that the store has already are not added again.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.adapters.claude.entries import FORMAT, TranscriptEntry, TranscriptKey
from backtrail.adapters.claude.session_store import EntryAppend
from backtrail.adapters.imports import SessionsReport, Skipped, Undecodable, dated_writes, import_sessions
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from backtrail import Store

_SUFFIX: Final = ".jsonl"
_META: Final = ".meta.json"
_SUBAGENTS: Final = "subagents"


def import_transcripts(
    path: str | os.PathLike[str], store: Store, *, progress: Callable[[str, int], None] | None = None
) -> SessionsReport:
    """Import a transcript of Claude Code with its subagents, those of a project, or those of all projects.

    `path` is a file `<project>/<session>.jsonl`, the directory of a project, or a directory of projects. The name of a
    project's directory is the `project_key` of its sessions. A second import adds only what is new. Lines that are
    damaged are left out; the report lists them.
    """
    files = _files(path)
    return import_sessions(((str(key.id), partial(_add, store, key, file)) for key, file in files), progress)


def check_transcripts(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a path is a transcript of Claude Code, or a directory with some."""
    for _, file in _files(path):
        for _ in _entries(file, "", []):
            break


# -- the files -------------------------------------------------------------------------------------------------


def _files(path: str | os.PathLike[str]) -> list[tuple[TranscriptKey, Path]]:
    """Return the transcripts at a path with their keys, each session before its subagents."""
    start = Path(path).expanduser().resolve()
    if not start.exists():
        raise NotFound(f"there is no file or directory {start}", code="not_found.store")
    if start.is_file():
        if start.suffix != _SUFFIX:
            raise Invalid(f"{start} is not a transcript of Claude Code: those end in {_SUFFIX}", code="invalid.store")
        return list(_session(start))
    sessions = sorted(start.glob(f"*{_SUFFIX}")) or sorted(start.glob(f"*/*{_SUFFIX}"))
    if not sessions:
        raise Invalid(f"{start} has no transcripts of Claude Code: files that end in {_SUFFIX}", code="invalid.store")
    return [each for file in sessions for each in _session(file)]


def _session(file: Path) -> Iterator[tuple[TranscriptKey, Path]]:
    project, session = file.parent.name, file.name.removesuffix(_SUFFIX)
    yield TranscriptKey(project, session), file
    directory = file.with_suffix("")
    for below in sorted((directory / _SUBAGENTS).rglob(f"*{_SUFFIX}")):
        subpath = below.relative_to(directory).as_posix().removesuffix(_SUFFIX)
        yield TranscriptKey(project, session, subpath), below


def _entries(file: Path, name: str, left_out: list[Skipped]) -> Iterator[dict[str, Any]]:
    """Give the entries of a file, without those that are damaged."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise Undecodable(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield TranscriptEntry.read(json.loads(line), f"line {number}").raw
        except (ValueError, RecursionError) as error:
            left_out.append(Skipped(name, f"line {number} is damaged and left out: {error}"))
    try:
        fields = json.loads(file.with_name(file.name.removesuffix(_SUFFIX) + _META).read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(fields, dict):  # the type of a subagent, as the SDK passes it to a store
        yield {**fields, "type": "agent_metadata"}


def _turns(entries: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Give the entries of each turn: a turn begins with a message that the user wrote."""
    turn: list[dict[str, Any]] = []
    for entry in entries:
        if turn and _is_prompt(entry):
            yield turn
            turn = []
        turn.append(entry)
    if turn:
        yield turn


def _is_prompt(entry: dict[str, Any]) -> bool:
    inner = entry.get("message")
    content = inner.get("content") if isinstance(inner, dict) else None
    blocks = content if isinstance(content, list) else []
    is_result = any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)
    return entry.get("type") == "user" and not entry.get("isMeta") and content is not None and not is_result


# -- the store -------------------------------------------------------------------------------------------------


def _add(store: Store, key: TranscriptKey, file: Path, left_out: list[Skipped]) -> int:
    """Add the entries of a transcript that the store lacks, all or nothing, and return their number."""
    entries = list(_entries(file, key.id, left_out))
    thread = store.conversations.thread(key.id, agent_id=key.owner)
    with dated_writes(store) as set_time:
        head = thread.latest()
        stored = [] if head is None else [each["raw"] for each in head.get("messages") if each["raw_format"] == FORMAT]
        new = _unknown(entries, stored)
        time = None
        for turn in _turns(new):
            times = [entry.timestamp() for entry in map(TranscriptEntry.stored, turn)]
            time = next((each for each in reversed(times) if each is not None), time)
            set_time(time)
            thread.edit(EntryAppend(key, turn, created_at=next(filter(None, times), None)))
    return len(new)


def _unknown(entries: list[dict[str, Any]], stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries that are not stored. Entries without a uuid are compared as a whole."""
    uuids = {entry["uuid"] for entry in stored if isinstance(entry.get("uuid"), str)}
    others = Counter(_text(entry) for entry in stored if not isinstance(entry.get("uuid"), str))
    new = []
    for entry in entries:
        uuid = entry.get("uuid")
        if isinstance(uuid, str) and uuid:
            if uuid in uuids:
                continue
            uuids.add(uuid)
        elif others[_text(entry)] > 0:
            others[_text(entry)] -= 1
            continue
        new.append(entry)
    return new


def _text(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True)
