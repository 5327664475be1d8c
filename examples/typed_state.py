"""An agent whose state is a dataclass. The class changed since: an upcaster brings old states up to date."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import backtrail


class Mood(Enum):
    """How it is going."""

    CALM = "calm"
    BUSY = "busy"


@backtrail.schema("Agent")
@dataclass
class AgentOfLastYear:
    """The class as it was when the first states were saved. What is stored knows it by its schema name."""

    name: str
    mood: Mood = Mood.CALM


@backtrail.schema("Agent")
@dataclass
class Agent:
    """The class as it is now: the name in two parts, and notes."""

    first_name: str
    last_name: str
    mood: Mood = Mood.CALM
    notes: list[str] = field(default_factory=list)


@backtrail.upcast(Agent, from_version=1)
def split_name(fields: dict) -> dict:
    """Make the fields of version 2 from those of version 1. The notes have a default, so they need nothing."""
    first, _, last = fields.pop("name").partition(" ")
    return {**fields, "first_name": first, "last_name": last}


def main(path: Path) -> None:
    """Save with the old class, go on with the new one."""
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

        # Nobody named the class: plain data that still says what it was. Nothing was imported.
        print(store.thread("ada").load().state)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory) / "agents.db")
