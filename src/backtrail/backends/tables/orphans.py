"""What belongs to nothing in tables, once records of a log are lost: what a thread had that is not there any more.

Who reads such a log does what is left of it (see `tables`). A lost row leaves a trace of itself; a lost thread does
not, but for what names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backtrail.backends.port import REMOVED

if TYPE_CHECKING:
    from backtrail.backends.tables.tables import Tables


def astray(tables: Tables) -> list[str]:
    """Return, in words, what belongs to a thread that was lost, and how many threads have lost all of their rows."""
    logs, threads = tables.logs, tables.threads
    found = {
        f"rows belong to no thread{REMOVED}": len(tables.adrift),
        f"threads have no row{REMOVED}": sum(not log for log in logs.values()),
        "tags belong to no checkpoint": sum(seq not in logs.get(no, ()) for no, seq in tables.tags),
        "lists of the index belong to no thread": len(tables.lists.keys() - threads.keys()),
        "marks of the index belong to no thread": len(tables.marks.keys() - threads.keys()),
    }
    return [f"{number} {what}" for what, number in found.items() if number]


def tidy(tables: Tables) -> None:
    """Drop all of it, of tables that are yet to be kept: nothing notes that."""
    for no in [no for no, log in tables.logs.items() if not log]:
        record = tables.threads.pop(no)
        del tables.logs[no], tables.names[record.space, record.name], tables.uids[record.uid]
        for mapping in (tables.agents, tables.touched):
            mapping.get(record.agent or "", {}).pop(no, None)
    tables.adrift.clear()
    tables.tags = {key: tags for key, tags in tables.tags.items() if key[1] in tables.logs.get(key[0], ())}
    tables.lists = {no: listed for no, listed in tables.lists.items() if no in tables.threads}
    tables.marks = {no: None for no in tables.marks if no in tables.threads}
