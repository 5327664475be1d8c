"""A store with something of everything in it, and all that is in a store, to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail import EveryN, Message
from backtrail.backends.port import pin_tag
from backtrail.engine import log
from backtrail.maintenance import gc
from tests.support.scene import agent, conversation

if TYPE_CHECKING:
    from backtrail import Store, Thread

Contents = dict[tuple[str, str], tuple[Any, ...]]


def furnish(store: Store) -> None:
    """Fill a store: threads that were rewound, forked, pruned, deleted; agents, conversations, runs; and collect."""
    trip: Thread[Any] = store.thread("trip", agent="a")
    trip.save({"messages": [], "n": 0}, metadata={"by": "me"})
    for n in range(40):
        label = f"step {n}" if n % 10 == 0 else None
        tags = ("x", "y \ud800") if n % 15 == 0 else ()
        trip.append("messages", {"role": "user", "content": f"message {n} " + "word " * 150}, label=label, tags=tags)
    trip.rewind("step 20")
    trip.append("messages", {"role": "user", "content": "another way"}, kind="recovery")
    trip.rewind("step 30")
    trip.undo()
    forked = trip.fork("forked", at="step 10")
    forked.set("n", 1)
    forked.tag("@", "forked")
    _fill(store)
    _deal(store)
    with store.run("session", agent="a", strategy=EveryN(1), state={"city": None}) as run:
        for number in run.iterations():
            run.message(Message.user(f"iteration {number}"))
            run.state["city"] = run.tool("search", str.upper, f"city {number}")
            if number == 3:
                break
    store.gc()
    store.thread("after").save({"n": 1})
    store.thread("after").save({"n": 2})
    store.thread("after").delete_checkpoint(1)


def _fill(store: Store) -> None:
    pruned: Thread[Any] = store.thread("pruned")
    for n in range(30):
        pruned.save({"n": n, "text": f"{n} " * 2000})
    pruned.prune(keep_last=3)
    gone: Thread[Any] = store.thread("gone")
    gone.save({"n": 1})
    gone.delete()
    again: Thread[Any] = store.thread("again")
    again.save({"n": 1})
    again.delete()
    again.save({"n": 2})
    store.thread("trip", aside=True).save({"beside": True})


def _deal(store: Store) -> None:
    store.agents.save(agent("a"))
    store.conversations.save(conversation("c", "hello", "world"))
    store.conversations.save(conversation("deleted", "this comes back"))
    first = store.agents.checkpoint("a", "first")
    store.conversations.append("c", Message.user("later", id="later"))
    store.conversations.delete("deleted")
    store.agents.checkpoint("a", "second")
    store.agents.restore(first.id)
    store.agents.undo("a")
    store.agents.save(agent("b"))
    store.conversations.save(conversation("of b", "not of a", agent_id="b"))


def everything(store: Store) -> Contents:
    """Return the content of each thread: its record, its rows without payloads, its tags."""
    heads = store._engine.direct.reader
    found: Contents = {}
    for record in gc.threads(heads):
        rows = heads.backend.rows(record.no, [(1, log.MAX_SEQ)])
        tags, pins = heads.backend.tags(record.no), heads.backend.pins(record.no)
        marks = {seq: (*tags.get(seq, ()), *map(pin_tag, pins.get(seq, ()))) for seq in sorted({*tags, *pins})}
        found[record.space, record.name] = (record[3:], rows, marks)
    return found


def logs(store: Store) -> dict[tuple[str, str], list[tuple[int, bytes, bool]]]:
    """Return the seq and the root of each row of each thread, and whether it is hidden."""
    return {name: [(row.seq, row.root, row.hidden) for row in rows] for name, (_, rows, _) in everything(store).items()}
