"""`python examples/demo`: what backtrail does, shown on a new store that is removed at the end.

Every line behind a `>>>` is run as it stands, and what is printed below it is what it gave. Each scene also names the
facts that it tells; the demo ends with exit code 0 only if all of them were true.
"""

from __future__ import annotations

import ast
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from backtrail import Store


AGENT: Final = Path(__file__).resolve().with_name("agent.py")


@dataclass(frozen=True)
class Scene:
    """A part of the story: what is said first, the code that is run, what has to be true then, and what it raises."""

    says: str
    code: str
    facts: tuple[str, ...]
    raises: str | None = None


SCENES: Final = (
    Scene(
        "A store is one file. A thread is the history of one state; this one plans a trip.",
        """
        import backtrail
        store = backtrail.open("sqlite:///agents.db")
        plan = store.thread("trip")
        first = plan.save({"budget": 120, "messages": []})
        said = plan.append("messages", {"role": "user", "content": "Lisbon in May"}, label="before-booking")
        said.step, said.label, said.state
        """,
        ("first.step == 1 and said.step == 2", 'said.state["messages"][0]["content"] == "Lisbon in May"'),
    ),
    Scene(
        "A step changes the state in place: all of it is saved when the block ends, or nothing.",
        """
        with plan.step("book") as state:
            state["messages"].append({"role": "assistant", "content": "Booked."})
            state["budget"] -= 90
        with plan.step() as state:
            state["budget"] -= 1000
            raise RuntimeError("the card was refused")
        plan.load().state["budget"]
        """,
        ('plan.load().state["budget"] == 30', "plan.current_step == 3"),
        raises="RuntimeError",
    ),
    Scene(
        "What did booking change?",
        """
        print(plan.diff("before-booking", "@"))
        """,
        (
            '[change.op for change in plan.diff("before-booking", "@")] == ["~", "+"]',
            '[change.path for change in plan.diff("before-booking", "@")] == ["budget", "messages[1]"]',
        ),
    ),
    Scene(
        "A fork goes on from any checkpoint under another name, and leaves the thread it comes from alone.",
        """
        cheap = plan.fork("trip-cheap", at="before-booking")
        with cheap.step() as state:
            state["budget"] = 40
        print(cheap.diff())
        plan.load().state["budget"], cheap.load().state["budget"]
        """,
        (
            'cheap.load().state["budget"] == 40 and plan.load().state["budget"] == 30',
            "next(cheap.history()).parent_id == said.id",
        ),
    ),
    Scene(
        "A rewind moves the head back. What came after is out of view, not gone; undo takes the rewind back.",
        """
        for checkpoint in plan.history(): print(checkpoint)
        head = plan.rewind("before-booking")
        for checkpoint in plan.history(): print(checkpoint)
        plan.load("book").state["budget"]    # out of view, and still there
        head = plan.undo()
        for checkpoint in plan.history(): print(checkpoint)
        """,
        ("len(plan) == 3", 'head.label == "book" and plan.latest() == head', 'plan.load("book").state["budget"] == 30'),
    ),
    Scene(
        "Two handles, one thread: a state that was derived from an older one does not overwrite a newer one.",
        """
        mine, yours = store.thread("trip"), store.thread("trip")
        a, b = mine.load().state, yours.load().state
        saved = mine.save(a | {"budget": 35})
        yours.save(b | {"budget": 25})
        done = yours.update(lambda state: state | {"budget": state["budget"] - 5})    # loads, changes and saves
        done.state["budget"]
        """,
        (
            'raised.code == "conflict.stale" and raised.actual == saved.id',
            'plan.load().state["budget"] == 30',
        ),
        raises="Conflict",
    ),
    Scene(
        "What cannot be kept exactly is refused before anything is written, with its path.",
        """
        import threading
        yours.save({"budget": 30, "messages": [{"role": "tool", "lock": threading.Lock()}]})
        plan.current_step
        """,
        ('raised.path == "state.messages[0].lock"', "plan.current_step == 5"),
        raises="Invalid",
    ),
    Scene(
        "A save stores what changed. A long talk: 100 messages of about 1 KB, each append a checkpoint of its own.",
        """
        talk = store.thread("talk")
        start = talk.save({"messages": []})
        for number in range(100):
            said = talk.append("messages", {"role": "user", "content": message(number)})
        talk.load().tail("messages", 1)[0]["content"][:40]
        sum(checkpoint.size for checkpoint in talk.history())      # bytes, if each were a whole copy
        sum(checkpoint.stored for checkpoint in talk.history())    # bytes that were stored
        len(talk.load(51).state["messages"])    # any of them loads, and is verified when it does
        """,
        (
            "len(talk) == 101",
            'talk.load(51).state["messages"] == [{"role": "user", "content": message(n)} for n in range(50)]',
            "sum(c.stored for c in talk.history()) * 10 < sum(c.size for c in talk.history())",
        ),
    ),
    Scene(
        "An agent and its conversations go back together, and the way back can be undone.",
        """
        from backtrail import AgentState, Conversation, Message
        planner = store.agents.save(AgentState("planner", "Trip planner", "some-model"))
        porto = store.conversations.save(Conversation("planner", id="porto"))
        asked = store.conversations.append("porto", Message.user("Two nights in Porto, please"))
        before = store.agents.checkpoint("planner", "before booking")
        wrong = store.conversations.append("porto", Message.assistant("Booked the wrong week."))
        extra = store.conversations.save(Conversation("planner", id="complaints"))
        planner = store.agents.restore(before.id)
        [(info.id, info.message_count) for info in store.conversations.list("planner")]
        planner = store.agents.undo("planner")
        sorted((info.id, info.message_count) for info in store.conversations.list("planner"))
        store.conversations.search("WRONG")[0].snippet
        """,
        (
            "before.conversations == 1",
            'store.conversations.info("porto").message_count == 2 and store.conversations.get("complaints") == extra',
            'store.agents.load("planner") == planner',
        ),
    ),
    Scene(
        "The books: everything is read and checked, and what the file takes is measured.",
        """
        report = store.verify()
        report.checkpoints, report.damaged
        collected = store.gc()    # nothing was deleted, so this only folds SQLite's log into the file
        stats = store.stats()
        print(f"{stats.checkpoints} checkpoints, {stats.logical_bytes:,} bytes of states")
        print(f"{stats.stored_bytes:,} bytes on disk")
        store.close()
        """,
        (
            "report.ok and (stats.threads, stats.agents, stats.conversations, stats.messages) == (3, 1, 2, 2)",
            "stats.checkpoints == 5 + 2 + 101 + 1 + 3 + 1 and stats.agent_checkpoints == 1",
            'stats.stored_bytes == Path("agents.db").stat().st_size',
        ),
    ),
    Scene(
        "Now an agent that does things outside: its tools write to a file. It works in a process of its own, which is\n"
        "# killed with SIGKILL in its second iteration, when the train is booked and the work is not done.",
        """
        things = ["find:trains", "book:train", "book:hotel", "mail:tickets"]
        ended = agent("trip", *things, killed_at="result book:train")
        print(outside())
        """,
        ('outside() == "book:train"', "ended == -9"),
    ),
    Scene(
        "Started again, it goes on with that iteration. The train is not booked again: its result is in the journal.\n"
        "# Then it is killed at the worst moment: the hotel is booked, and nobody has recorded it.",
        """
        ended = agent("trip", *things, killed_at="effect book:hotel")
        print(outside())
        """,
        ('outside() == "book:train book:hotel"', "ended == -9"),
    ),
    Scene(
        "Started once more, it does not guess: booking again might pay twice, going on might leave no hotel.",
        """
        ended = agent("trip", *things)
        store = backtrail.open("agents.db")
        run = store.runs.load("trip")
        doubt = run.in_doubt[0]
        run.iteration, run.status.name, doubt.id, doubt.name, doubt.arguments["args"]
        """,
        (
            "ended == 3",
            'run.iteration == 3 and run.status.name == "failed" and len(run.in_doubt) == 1',
            'doubt.name == "book" and doubt.arguments["args"] == ["book:hotel"]',
            'outside() == "book:train book:hotel"',
        ),
    ),
    Scene(
        "The file outside says that the hotel is booked. So we say so, and the agent comes to its end.",
        """
        store.runs.settle("trip", doubt.id, result="ticket 2")
        ended = agent("trip", *things)
        print(outside())    # killed twice, and each thing was done once
        run = store.runs.load("trip")
        [(call.iteration, call.arguments["args"][0], call.result) for call in run.tool_calls]
        """,
        (
            'outside() == "book:train book:hotel mail:tickets"',
            'ended == 0 and run.status.name == "completed" and run.in_doubt == ()',
            '[call.result for call in run.tool_calls][1:] == ["ticket 1", "ticket 2", "ticket 3"]',
            'run.state == {"done": ["trains", "train", "hotel", "tickets"]}',
        ),
    ),
    Scene(
        "The checkpoints of a run are a thread. Another way, from the end of iteration 2 on: a fork is a run, too.",
        """
        trip = store.runs.thread("trip")
        cheap = trip.fork("trip-cheap", at=2)
        ended = agent("trip-cheap", "find:trains", "book:train", "book:hostel")
        for change in trip.diff("@", cheap.latest()):
            if str(change.path).startswith("state"): print(change)
        graph(store, "trip", "trip-cheap")
        """,
        (
            'outside() == "book:train book:hotel mail:tickets book:hostel"',
            'store.runs.load("trip-cheap").state == {"done": ["trains", "train", "hostel"]}',
            'ended == 0 and store.runs.load("trip") == run',
            '"state.done[2]" in [str(change.path) for change in trip.diff("@", cheap.latest())]',
            "next(cheap.history()).parent_id == trip.load(2).id",
        ),
    ),
    Scene(
        "A rewind takes the run back, and undo brings it again; the world outside stays as it is.\n"
        "# The store says what a rewind cannot call back, before it is done.",
        """
        import warnings
        [call.arguments["args"][0] for call in store.runs.irreversible("trip", 2)]
        warnings.simplefilter("ignore", backtrail.Irreversible)    # else it warns: we know
        head = trip.rewind(2)
        trip.current_step, head.state["state"], str(store.runs.load("trip").status)
        head = trip.undo()
        trip.current_step, head.state["state"]
        print(outside())
        """,
        (
            'trip.latest() == head and head.state["status"] == "completed"',
            '[call.tool_name for call in run.tool_calls if call.irreversible] == ["mail"]',
            'outside() == "book:train book:hotel mail:tickets book:hostel"',
        ),
    ),
    Scene(
        "What all that takes.",
        """
        report = store.verify()
        report.ok, report.checkpoints
        states, took = usage(store, "trip", "trip-cheap")
        print(f"{states:,} bytes if each checkpoint of the two runs were a whole copy, {took:,} bytes stored for them")
        print(f"{store.stats().stored_bytes:,} bytes on disk, with everything above")
        store.close()
        """,
        ("report.ok", "took * 2 < states"),
    ),
)

_SYLLABLES: Final = [first + second for first in "bcdfghlmnprstvz" for second in "aeiou"]


def message(number: int) -> str:
    """Return about 1 KB of text, another one for each number."""
    draw = random.Random(number)
    words = ("".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(165))
    return f"{number}: {' '.join(words)}"


def agent(session: str, *things: str, killed_at: str = "") -> int:
    """Start the agent, kill it if it is to be killed, show what it says, and return how it ended."""
    command = [sys.executable, str(AGENT), session, killed_at, *things]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own module
        for line in process.stdout or ():
            print(f"    {line}", end="")
            if line == f"at {killed_at}\n":
                process.kill()
    print("    killed" if process.returncode == -signal.SIGKILL else f"    exit code {process.returncode}")
    return process.returncode


def outside() -> str:
    """Return what the agent's tools did outside of the store."""
    return " ".join(Path("outside.txt").read_text().split())


def graph(store: Store, *sessions: str) -> None:
    """Draw runs, a checkpoint as its step and what was done last; a fork below the checkpoint at which it left."""
    columns: dict[str | None, int] = {}
    for session in sessions:
        steps = store.runs.steps(session)
        start = columns.get(steps[0].parent_id, 12)
        if start > 12:
            print(" " * start + "|")
        line = f"{session:{start}}"
        for each in steps:
            columns[each.id] = len(line)
            over = each.state["status"] != "in_progress"
            line += f"{each.step} {each.state['status'] if over else each.state['state']['done'][-1]} -- "
        print(line.removesuffix(" -- "))


def usage(store: Store, *sessions: str) -> tuple[int, int]:
    """Return the bytes of all states of runs, and those that were stored for them."""
    steps = [each for session in sessions for each in store.runs.steps(session)]
    return sum(each.size for each in steps), sum(each.stored for each in steps)


def tell(scene: Scene, names: dict[str, Any]) -> list[str]:
    """Play one scene and return the facts that were not true."""
    print(f"\n# {scene.says}")
    names["raised"] = None
    for statement in _statements(textwrap.dedent(scene.code)):
        _run(statement, names)
    raised = names["raised"]
    wrong = [fact for fact in scene.facts if not _holds(fact, names)]
    if (type(raised).__name__ if raised else None) != scene.raises:
        wrong.append(f"this scene raises {scene.raises}, and it raised {raised!r}")
    return wrong


def _statements(code: str) -> list[str]:
    """Return the lines of each statement, comments included."""
    lines = code.splitlines()
    return ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in ast.parse(code).body]


def _run(statement: str, names: dict[str, Any]) -> None:
    """Show a statement and run it as the interactive prompt does; an error is shown, and kept as `raised`."""
    print(">>> " + statement.replace("\n", "\n... "))
    try:
        exec(compile(statement + "\n", "<demo>", "single"), names)  # noqa: S102 - it stands in this file
    except Exception as error:  # noqa: BLE001 - shown as the prompt shows it; the scene says whether it belongs there
        names["raised"] = error
        print("".join(traceback.format_exception_only(error)).rstrip())


def _holds(fact: str, names: dict[str, Any]) -> bool:
    try:
        return bool(eval(fact, names))  # noqa: S307 - it stands in this file
    except Exception:  # noqa: BLE001 - a fact that cannot even be looked at is not true
        return False


def main() -> int:
    """Tell the story and return the exit code."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="backtrail-demo-") as directory, chdir(directory):
        print(f"A new store in {directory}, which is removed at the end.")
        names: dict[str, Any] = {each.__name__: each for each in (message, agent, outside, graph, usage, Path)}
        for scene in SCENES:
            wrong += tell(scene, names)
    for fact in wrong:
        print(f"NOT TRUE: {fact}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
