"""A store with a bit of everything in it, whose texts are as a test wants, and a line of every command about it."""

import dataclasses
import datetime as dt
import json

import backtrail
from backtrail import AgentState, Conversation, Message, ToolCall

POINT = "the id of the agent's checkpoint"
OLD = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def fill(url, text):
    """Fill a store: `text(name)` replaces a name in ids, labels, titles, roles, keys, tools, reasons.

    Returns the id of the agent's checkpoint, which stands for `POINT` in the commands.
    """

    @backtrail.schema(text("Schema")[:200])
    @dataclasses.dataclass
    class Typed:
        city: str

    with backtrail.open(url) as store:
        trip = store.thread(text("trip"), agent=text("planner"))
        trip.save({text("budget"): 120, "messages": []}, metadata={text("who"): text("me")})
        said = {"role": text("user"), "content": text("Lisbon in May"), "id": text("m1")}
        trip.append("messages", said, label=text("before"), tags=[text("keep")])
        trip.append("messages", {"role": text("assistant"), "content": [{"type": "text", "text": text("Booked")}]})
        fork = trip.fork(text("cheap"), text("before"))
        fork.set((text("budget"),), {text("key"): [text("value")]})
        trip.rewind(text("before"))
        trip.append("messages", said)
        store.thread(text("typed"), types=[Typed]).save({"at": Typed(text("Lisbon"))})
        planner = text("planner")
        store.agents.save(AgentState(planner, name=text("Planner"), agent_type=text("travel")))
        calls = [ToolCall(text("search"), {text("q"): text("x")}, id=text("c1"))]
        talk = Conversation(
            planner, id=text("lunch"), title=text("A lunch"), tags=[text("food")], metadata={text("k"): text("v")}
        )
        for message in (
            Message.user(text("Where?"), timestamp=OLD),
            Message.assistant("", tool_calls=calls, timestamp=OLD),
            Message.tool_result(text("c1"), text("The market"), timestamp=OLD),
        ):
            talk = talk.add_message(message)
        store.conversations.save(talk)
        store.conversations.fork(text("lunch"), new_id=text("dinner"))
        store.conversations.append(text("alone"), Message.user(text("hi")), agent_id=text("nobody"))
        store.agents.checkpoint(planner, text("before-lunch"))
        store.conversations.append(text("lunch"), Message.user(text("Later")))
        with store.run(text("session"), agent=planner) as run:
            for _ in run.iterations():
                run.tool(text("pay"), lambda: text("paid"), irreversible=True)
                run.message(Message.user(text("thanks")))
                run.halt(text("waiting"))
        try:
            with store.run(text("doubt"), agent=planner) as run:
                for _ in run.iterations():
                    run.tool(text("charge"), _dies, irreversible=True)
        except BaseException:  # noqa: BLE001 - as when the process is killed
            pass
        return store.agents.checkpoints(planner)[0].id


class _Dies(BaseException):
    pass


def _dies():
    raise _Dies


def commands(text):
    """Give a line of every command about it, as words."""
    trip, planner, lunch, session = (text(name) for name in ("trip", "planner", "lunch", "session"))
    for name, kind in ((trip, "thread"), (planner, "agent"), (lunch, "conversation"), (session, "run")):
        of = ["--kind", kind]
        yield ["log", name, *of]
        yield ["log", name, "--graph", *of]
        yield ["show", name, *of]
        yield ["diff", f"{name}@1", name, *of]
        yield ["threads", *of]
        yield ["watch", name, "--timeout", "0s", "--after", "1", *of]
        yield ["delete", name, *of]
        yield ["delete", f"{name}@1", *of]
        yield ["erase", name, *of]
        yield ["undo", name, *of]
        yield ["tag", name, text("new"), *of]
        yield ["rewind", f"{name}@1", *of]
        yield ["prune", "--keep-last", "1", "--no-keep-labelled", "--thread", name, *of]
        yield ["prune", "--keep-last", "1", "--thread", name, *of, "--dry-run"]
    yield from (
        ["log", text("cheap"), "--graph"],
        ["log", text("dinner"), "--graph", "--kind", "conversation"],
        ["show", text("typed")],
        ["show", trip, "--kind", "thread", "--path", "messages"],
        ["agents"],
        ["agents", planner],
        ["conversations", planner],
        ["conversations", text("nobody")],
        ["conversations"],
        ["runs"],
        ["settle", text("doubt")],
        ["settle", text("session")],
        ["settle", text("doubt"), "1.1", "--result", json.dumps(text("paid"))],
        ["settle", text("doubt"), "1.1", "--not-done"],
        ["settle", text("doubt"), text("1.1"), "--not-done"],
        ["threads", text("none")],
        ["agents", text("none")],
        ["conversations", text("none")],
        ["runs", "--agent", text("none")],
        ["search", "lisbon"],
        ["search", "nothing here"],
        ["activity"],
        ["activity", "--since", "1s"],
        ["stats"],
        ["where"],
        ["doctor"],
        ["serve", "--dry-run", "--token", "a-secret-token"],
        ["mcp", "--dry-run"],
        ["save", trip, "new.json"],
        ["save", text("begun"), "new.json"],
        ["save", trip, "new.json", "--append", text("nowhere")],
        ["fork", trip, text("forked"), "--kind", "thread"],
        ["fork", trip, text("cheap"), "--kind", "thread"],
        ["redo", trip, "--kind", "thread"],
        ["restore", f"{planner}@{text('before-lunch')}"],
        ["undo", planner, "--restore"],
        ["verify"],
        ["index"],
        ["reindex"],
        ["gc"],
        ["migrate"],
        ["backup", "backup.db"],
        ["keys", "status"],
        ["keys", "rotate", text("nofile")],
        ["keys", "init", text("new.key")],
        ["restore-backup", text("nofile")],
        ["export", "all.backtrail"],
        ["export", "one.backtrail", "--agent", planner],
        ["import", "new.json"],
        ["import", text("nofile")],
        ["copy", "sqlite:///agents.db", "sqlite:///copied.db"],
        ["call"],
        ["call", "agent_list"],
        ["call", "conversation_list", json.dumps({"agent_id": planner})],
        ["call", "agent_load", json.dumps({"agent_id": text("none")})],
        ["call", "checkpoint_restore", json.dumps({"checkpoint_id": POINT})],
        ["log", text("trap"), "--debug"],
        ["show", f"{trip}@{text('none')}", "--kind", "thread"],
        ["log", text("trip"), "--before", text("none"), "--kind", "thread"],
        ["search", text("lisbon")],
        ["nosuch" + text("command")],
        ["log", trip, "--no-such" + text("option")],
    )
