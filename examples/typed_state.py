"""An agent whose state is a dataclass. The class has changed: an upcaster converts old states."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import backtrail


class Mood(Enum):
    """The status of the work."""

    CALM = "calm"
    BUSY = "busy"


@backtrail.schema("Agent")
@dataclass
class AgentOfLastYear:
    """The old class. Stored states refer to it by its schema name."""

    name: str
    mood: Mood = Mood.CALM


@backtrail.schema("Agent")
@dataclass
class Agent:
    """The current class: a name of two parts, and notes."""

    first_name: str
    last_name: str
    mood: Mood = Mood.CALM
    notes: list[str] = field(default_factory=list)


@backtrail.upcast(Agent, from_version=1)
def split_name(fields: dict) -> dict:
    """Convert the fields of version 1 to version 2. The notes have a default."""
    first, _, last = fields.pop("name").partition(" ")
    return {**fields, "first_name": first, "last_name": last}


def main(path: Path) -> None:
    """Save with the old class, continue with the new one."""
    with backtrail.open(path) as store:
        store.thread("ada", AgentOfLastYear).save(AgentOfLastYear("Ada Lovelace", Mood.BUSY))

    with backtrail.open(path) as store:
        ada = store.thread("ada", Agent)
        print(ada.load().state)
        assert ada.load().state == Agent("Ada", "Lovelace", Mood.BUSY)

        with ada.step() as agent:  # the next save writes the new version
            agent.notes.append("likes engines")
            agent.mood = Mood.CALM
        ada.append("notes", "and poetry")
        print(ada.diff("@-", "@"))
        assert ada.load().state.notes == ["likes engines", "and poetry"]

        # Without the class, the state is plain data that names its schema. Nothing is imported.
        print(store.thread("ada").load().state)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory) / "agents.db")
