"""Makes the modules of src/backtrail/aio that mirror synchronous ones (`MODULES`) from those of the same names.

Run it with `make aio`; `--check` only says whether they are up to date. Signatures, types and docstrings are taken from
the source. What each public name becomes is in the tables below; one that is not there is an error, so that none can be
forgotten.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "backtrail"
WIDTH = 120

# Becomes what: see `Maker`.
CHECKPOINT = {
    "id": "known",
    "thread_id": "known",
    "thread_kind": "known",
    "parent_id": "known",
    "op_id": "known",
    "seq": "known",
    "step": "known",
    "label": "known",
    "kind": "known",
    "metadata": "known",
    "created_at": "known",
    "size": "known",
    "stored": "known",
    "root": "known",
    "damaged": "known",
    "state": "read as load_state",
    "get": "apart",
    "tail": "apart",
    "part": "apart",
    "to_bytes": "apart",
    "from_bytes": "made",
}
THREAD = {
    "save": "write",
    "append": "write",
    "set": "write",
    "delete_at": "write",
    "step": "block Step",
    "edit": "write",
    "update": "update",
    "latest": "apart",
    "load": "apart",
    "history": "pages",
    "find": "apart",
    "current_step": "read as current_step",
    "__len__": "count",
    "diff": "apart",
    "watch": "watch",
    "fork": "write",
    "rewind": "write",
    "undo": "write",
    "redo": "write",
    "tag": "write",
    "untag": "write",
    "prune": "apart",
    "delete_checkpoint": "write",
    "erase": "watched",
    "delete": "write",
}
AGENTS = {
    "save": "write",
    "load": "apart",
    "get": "apart",
    "list": "apart",
    "history": "apart",
    "thread": "handle",
    "erase": "watched",
    "delete": "apart",
    "checkpoint": "apart",
    "checkpoints": "apart",
    "get_checkpoint": "apart",
    "forget_undos": "apart",
    "restore": "apart",
    "irreversible": "apart",
    "undo": "apart",
    "delete_checkpoint": "apart",
    "guard": "guard",
    "autocheckpoint": "schedule",
}
CONVERSATIONS = {
    "save": "write",
    "load": "apart",
    "get": "apart",
    "append": "write",
    "pop": "write",
    "update": "write",
    "info": "apart",
    "tail": "apart",
    "list": "apart",
    "search": "apart",
    "thread": "handle",
    "delete": "apart",
    "erase": "watched",
    "fork": "apart",
    "rewind": "apart",
    "edit": "apart",
    "branches": "apart",
}
RUNS = {
    "load": "apart",
    "get": "apart",
    "__contains__": "apart as has",
    "list": "apart",
    "recover": "apart",
    "thread": "handle",
    "steps": "apart",
    "checkpoints": "apart",
    "latest": "apart",
    "irreversible": "apart",
    "prune": "apart",
    "cleanup": "apart",
    "erase": "watched",
    "settle": "apart",
}
KEYS = {
    "status": "apart",
    "backup": "apart",
    "rotate": "watched",
}
STORE = {
    "redactions": "known",
    "thread": "handle",
    "threads": "pages",
    "activity": "pages",
    "info": "apart",
    "checkpoint": "apart",
    "watch": "watch",
    "agents": "collection",
    "conversations": "collection",
    "runs": "collection",
    "keys": "collection",
    "run": "run",
    "scoped": "scope",
    "search": "watched",
    "reindex": "watched",
    "index": "watched",
    "transaction": "block Transaction",
    "bulk": "block Transaction",
    "stats": "apart",
    "migrate": "watched",
    "verify": "watched",
    "gc": "watched",
    "erase": "watched",
    "prune": "watched",
    "export": "watched",
    "import_": "watched",
    "backup": "watched",
    "close": "close",
}
# What the mirror says differently.
WORDS = {
    "belongs to the calling thread or task": "belongs to the calling task",
    "in the calling thread or task": "in the calling task",
}


class Maker:
    """Makes the members of one class."""

    def __init__(self, module: str, cls: str, table: dict[str, str]) -> None:
        self.text = (SOURCE / f"{module}.py").read_text()
        self.lines = self.text.splitlines()
        tree = ast.parse(self.text)
        self.cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
        self.table = table
        self.members: dict[str, list[ast.FunctionDef]] = {}
        for node in self.cls.body:
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name in table):
                self.members.setdefault(node.name, []).append(node)
        if self.members.keys() != table.keys():
            raise SystemExit(f"{cls}: say what becomes of {sorted(self.members.keys() ^ table.keys())}")

    def all(self) -> str:
        """Return all members."""
        made = [self.member(name, nodes) for name, nodes in self.members.items()]
        return textwrap.indent("\n".join(made), "    ", lambda line: bool(line.strip())).rstrip() + "\n"

    def member(self, name: str, nodes: list[ast.FunctionDef]) -> str:
        """Return what a public name becomes."""
        node = nodes[-1]
        rule, _, what = self.table[name].partition(" ")
        return "".join(getattr(self, f"_{rule}")(node, what, nodes[:-1]))

    # -- the rules ------------------------------------------------------------------------------------

    def _known(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A property that does no I/O."""
        returns = ast.unparse(node.returns)
        head = f"@property\ndef {node.name}(self) -> {returns}:\n"
        return [head, doc(node), f"    return self._sync.{node.name}\n"]

    def _read(self, node: ast.FunctionDef, what: str, *_: object) -> list[str]:
        """A property that does I/O: a method."""
        name = what.removeprefix("as ")
        head = f"@called\nasync def {name}(self) -> {ast.unparse(node.returns)}:\n"
        return [head, doc(node, "Return"), f"    return await self._executor.apart(lambda: self._sync.{node.name})\n"]

    def _count(self, *_: object) -> list[str]:
        """`len`: a method."""
        head = "@called\nasync def count(self) -> int:\n"
        said = '    """Return how many checkpoints `history` shows; 0 if the thread does not exist."""\n'
        return [head, said, "    return await self._executor.apart(self._sync.__len__)\n"]

    def _apart(self, node: ast.FunctionDef, what: str, *_: object) -> list[str]:
        """A method that reads, or that is long."""
        return self._called(node, "apart", what.removeprefix("as "))

    def _write(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A method that writes."""
        return self._called(node, "write")

    def _called(self, node: ast.FunctionDef, how: str, name: str = "") -> list[str]:
        arguments = [f"self._sync.{node.name}", *passed(node)]
        returns = ast.unparse(node.returns)
        head = "@called\n" + signature(f"async def {name or node.name}", node, returns)
        if "Checkpoint[" not in returns and "Thread[" not in returns and returns not in ("Checkpoints", "Opened"):
            return [head, doc(node), call(f"return await self._executor.{how}", arguments)]
        wrapped = {
            "Checkpoint[S]": "Checkpoint(self._executor, found)",
            "Checkpoint[Any]": "Checkpoint(self._executor, found)",
            "Checkpoint[S] | None": "None if found is None else Checkpoint(self._executor, found)",
            "Checkpoint[Any] | None": "None if found is None else Checkpoint(self._executor, found)",
            "list[Checkpoint[S]]": "[Checkpoint(self._executor, each) for each in found]",
            "Checkpoints": "[Checkpoint(self._executor, each) for each in found]",
            "Opened": "[Run(self._executor, each) for each in found]",
            "Thread[S]": "Thread(self._executor, found)",
        }[returns]
        return [head, doc(node), call(f"found = await self._executor.{how}", arguments), f"    return {wrapped}\n"]

    def _pages(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """An iterator: an async one."""
        returns = ast.unparse(node.returns)
        item = "Checkpoint(self._executor, found)" if "Checkpoint" in returns else "found"
        head = signature(
            f"async def {node.name}", node, replaced(returns, "Iterator[", "AsyncGenerator[")[:-1] + ", None]"
        )
        body = call("pages = self._executor.pages", [f"self._sync.{node.name}", *passed(node)])
        return [head, doc(node), body, f"    async for found in pages:\n        yield {item}\n"]

    def _block(self, node: ast.FunctionDef, what: str, *_: object) -> list[str]:
        """A context manager: an async one."""
        inner = ast.unparse(node.returns).partition("[")[2].removesuffix("]")
        head = signature(f"def {node.name}", node, what if inner in ("", "None") else f"{what}[{inner}]")
        arguments = passed(node)
        made = f"self._sync.{node.name}"
        if not arguments:
            return [head, doc(node), f"    return {what}(self._executor, {made})\n"]
        return [
            head,
            doc(node),
            call("make = partial", [made, *arguments]),
            f"    return {what}(self._executor, make)\n",
        ]

    def _watch(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """An iterator that waits: an async one, which begins at once."""
        head = signature(f"def {node.name}", node, ast.unparse(node.returns))
        listed = ", ".join(each.rpartition("=")[2] for each in passed(node))
        body = f"    watcher = self._sync._watcher({listed})  # noqa: SLF001 - the two are one\n"
        return [head, doc(node), body, "    return Watch(self._executor, watcher, Checkpoint)\n"]

    def _update(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """`update` calls back, in the event loop; what it calls may be a coroutine function."""
        head = "@called\n" + signature(f"async def {node.name}", node, ast.unparse(node.returns))
        head = replaced(head, "Callable[[Any], S | None]", "Callable[[Any], S | Awaitable[S | None] | None]")
        added = "\n\n    `fn` runs in the event loop, and may be a coroutine function.\n\n"
        said = replaced(doc(node), "\n\n", added)
        body = "    found = await updated(self._executor, self._sync, fn, retries)\n"
        return [head, said, body, "    return Checkpoint(self._executor, found)\n"]

    def _watched(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A long method that tells how far it is."""
        head = signature(f"async def {node.name}", node, ast.unparse(node.returns))
        given = [each for each in passed(node) if not each.startswith("progress=")]
        if not given:
            work = f"lambda tell: self._sync.{node.name}(progress=tell)"
            return [head, doc(node), f"    return await self._executor.watched({work}, progress)\n"]
        make = call("work = partial", [f"self._sync.{node.name}", *given])
        return [
            head,
            doc(node),
            make,
            "    return await self._executor.watched(lambda tell: work(progress=tell), progress)\n",
        ]

    def _handle(self, node: ast.FunctionDef, _: str, overloads: list[ast.FunctionDef]) -> list[str]:
        """A method that does no I/O and gives a handle."""
        parts = [textwrap.dedent("\n".join(self._verbatim(each))) + "\n" for each in overloads]
        head = signature(f"def {node.name}", node, ast.unparse(node.returns))
        body = call(
            "made: Thread[Any] = Thread", ["self._executor", f"self._sync.{node.name}({', '.join(passed(node))})"]
        )
        return [*parts, head, doc(node), body, "    return made\n"]

    def _collection(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A property that gives a collection."""
        head = f"@property\ndef {node.name}(self) -> {ast.unparse(node.returns)}:\n"
        return [head, doc(node), f"    return self._{node.name}\n"]

    def _run(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A context manager whose block has calls of its own."""
        head = signature(f"def {node.name}", node, ast.unparse(node.returns))
        made = call(f"made = self._sync.{node.name}", passed(node))
        return [head, doc(node), made, "    return Run(self._executor, made)\n"]

    def _scope(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A part of the store, which is a store."""
        head = signature(f"def {node.name}", node, ast.unparse(node.returns))
        return [head, doc(node), call(f"return Store(self._sync.{node.name}", passed(node))[:-1] + ")\n"]

    def _guard(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A context manager whose beginning and end are calls of their own."""
        head = signature(f"def {node.name}", node, "Guard")
        return [head, doc(node), call("return Guard", ["self._executor", "self._sync", *passed(node)])]

    def _schedule(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A scheduler, which is a task; it calls back in the event loop."""
        head = signature(f"def {node.name}", node, ast.unparse(node.returns))
        said = "\n\n    The scheduler is a task. It needs a running event loop, and calls `on_error` there.\n\n"
        given = [each for each in passed(node) if not each.startswith(("enabled=", "on_error="))]
        make = call("make = partial", [f"self._sync.{node.name}", *given, "enabled=False"])
        made = "AutoCheckpoint(self._executor, lambda tell: make(on_error=tell), on_error, enabled=enabled)"
        return [head, replaced(doc(node), "\n\n", said), make, f"    return {made}\n"]

    def _made(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """A class method that makes one from bytes."""
        head = signature(f"async def {node.name}", node, ast.unparse(node.returns))
        arguments = ["_bytes_of", *passed(node)]
        body = [
            "    executor = detached()\n",
            call("found = await executor.apart", arguments),
            "    return cls(executor, found)\n",
        ]
        return ["@classmethod\n", head, doc(node), *body]

    def _close(self, node: ast.FunctionDef, *_: object) -> list[str]:
        """The end."""
        said = '"""Wait for the calls in progress, then release the store\'s resources. A second call does nothing."""'
        return [
            f"async def {node.name}(self) -> None:\n    {said}\n",
            "    await self._executor.close(self._sync.close)\n",
        ]

    def _verbatim(self, node: ast.FunctionDef) -> list[str]:
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        return self.lines[first - 1 : node.end_lineno]


# -- text -------------------------------------------------------------------------------------------------


def parameters(node: ast.FunctionDef) -> list[str]:
    """Return the parameters as they are written, `*` included."""
    given = node.args
    made = []
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    for arg, default in zip(given.args, defaults, strict=True):
        made.append(one(arg, default))
    if given.vararg:
        made.append(f"*{one(given.vararg, None)}")
    elif given.kwonlyargs:
        made.append("*")
    made += [one(arg, default) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return made


def one(arg: ast.arg, default: ast.expr | None) -> str:
    """Return one parameter."""
    written = arg.arg + (f": {ast.unparse(arg.annotation)}" if arg.annotation else "")
    if default is None:
        return written
    value = ast.unparse(default).replace("'", '"')
    return f"{written} = {value}" if arg.annotation else f"{written}={value}"


def passed(node: ast.FunctionDef) -> list[str]:
    """Return the arguments with which the synchronous method is called: handles become those that they stand for.

    What can be gone over only once is gone over now: the call may be done again.
    """

    def value(arg: ast.arg) -> str:
        kind = ast.unparse(arg.annotation) if arg.annotation else ""
        if kind == "Iterable[str] | None":
            return f"None if {arg.arg} is None else tuple({arg.arg})"
        if kind == "Collection[Ref]":
            return f"[plain(each) for each in {arg.arg}]"
        return f"plain({arg.arg})" if "Ref" in kind or "Checkpoint" in kind else arg.arg

    made = [value(arg) for arg in node.args.args if arg.arg not in ("self", "cls")]
    if node.args.vararg:
        made.append(f"*{node.args.vararg.arg}")
    return made + [f"{arg.arg}={value(arg)}" for arg in node.args.kwonlyargs]


def signature(start: str, node: ast.FunctionDef, returns: str) -> str:
    """Return a signature, on as few lines as the formatter would use."""
    listed = parameters(node)
    hiding = ("type:", "id:")
    note = "  # noqa: A002 - the name users know"
    whole = f"{start}({', '.join(listed)}) -> {returns}:"
    if len(whole) + 4 <= WIDTH:
        return f"{whole}{note if any(each.startswith(hiding) for each in listed) else ''}\n"
    noted = [f"    {each},{note if each.startswith(hiding) else ''}\n" for each in listed]
    return f"{start}(\n{''.join(noted)}) -> {returns}:\n"


def call(start: str, arguments: list[str]) -> str:
    """Return a call, on as few lines as the formatter would use."""
    whole = f"    {start}({', '.join(arguments)})"
    if len(whole) + 4 <= WIDTH:
        return f"{whole}\n"
    between = f"        {', '.join(arguments)}"
    if len(between) + 4 <= WIDTH:
        return f"    {start}(\n{between}\n    )\n"
    return f"    {start}(\n{''.join(f'        {each},{chr(10)}' for each in arguments)}    )\n"


def replaced(text: str, old: str, new: str) -> str:
    """Replace the first occurrence of `old`; there must be one."""
    if old not in text:
        raise SystemExit(f"{old!r} is not in {text!r}")
    return text.replace(old, new, 1)


def doc(node: ast.FunctionDef, verb: str = "") -> str:
    """Return a docstring."""
    said = ast.get_docstring(node) or ""
    if verb and not said.startswith(verb):
        said = f"{verb} {said[0].lower()}{said[1:]}"
    for old, new in WORDS.items():
        said = said.replace(old, new)
    lines = said.splitlines()
    if len(lines) == 1:
        return f'    """{said}"""\n'
    return "\n".join(['    """' + lines[0], *(f"    {line}".rstrip() for line in lines[1:]), '    """\n'])


# -- modules ------------------------------------------------------------------------------------------------

WARNING = "# Made from src/backtrail/{}.py by tools/generate_aio.py: change it there, then `make aio`.\n"


def checkpoints() -> str:
    """Return the module of checkpoints."""
    maker = Maker("checkpoint", "Checkpoint", CHECKPOINT)
    return (
        WARNING.format("checkpoint")
        + '''"""Checkpoints of the async mirror: properties return what the row says, and methods read the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backtrail import checkpoint as sync
from backtrail.aio.blocks import called
from backtrail.aio.executor import detached

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.aio.executor import Executor
    from backtrail.models import StatePart

S = TypeVar("S")


class Checkpoint(Generic[S]):
    """An immutable point in a thread. Two are equal if they have the same id."""

    __slots__ = ("_executor", "_sync", "tags")

    def __init__(self, executor: Executor, checkpoint: sync.Checkpoint[S]) -> None:
        self._executor = executor
        self._sync = checkpoint
        self.tags = checkpoint.tags

'''
        + maker.all()
        + '''
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other._sync == self._sync

    def __hash__(self) -> int:
        return hash(self._sync)

    def __repr__(self) -> str:
        return repr(self._sync)


def plain(value: Any) -> Any:
    """Return what the synchronous code knows a checkpoint by."""
    return value._sync if isinstance(value, Checkpoint) else value  # noqa: SLF001 - the two are one


_bytes_of = sync.Checkpoint.from_bytes
'''
    )


def threads() -> str:
    """Return the module of threads."""
    maker = Maker("thread", "Thread", THREAD)
    return (
        WARNING.format("thread")
        + '''"""Threads of the async mirror: handles by which tasks save states and travel in time.

Tasks may share a handle. It remembers for each task what that task last read or wrote through it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backtrail.aio.blocks import Step, Watch, called, updated
from backtrail.aio.checkpoint import Checkpoint, plain

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping

    from backtrail import thread as sync
    from backtrail.aio.executor import Executor
    from backtrail.engine.tree.edits import Editor
    from backtrail.maintenance.retention import Policy
    from backtrail.models import Diff, ErasureReport, PruneReport, Sentinel
    from backtrail.thread import Ref

S = TypeVar("S")


class Thread(Generic[S]):
    """An append-only log of checkpoints; docs/threads.md is the guide, docs/async.md says what differs."""

    def __init__(self, executor: Executor, thread: sync.Thread[S]) -> None:
        self.id = thread.id
        self._executor = executor
        self._sync = thread

    def __repr__(self) -> str:
        return repr(self._sync)

'''
        + maker.all()
    )


def agents() -> str:
    """Return the module of agents."""
    maker = Maker("agents/repository", "Agents", AGENTS)
    return (
        WARNING.format("agents/repository")
        + '''"""Agents of the async mirror, and their checkpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import Guard, called
from backtrail.aio.checkpoint import plain
from backtrail.aio.scheduler import AutoCheckpoint
from backtrail.aio.thread import Thread

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from backtrail.agents import repository as sync
    from backtrail.agents.models import AgentState
    from backtrail.agents.repository import AgentCheckpoints, AgentInfos, AgentVersions, PastCalls
    from backtrail.aio.executor import Executor
    from backtrail.models import AgentCheckpoint, ErasureReport
    from backtrail.thread import Ref


class Agents:
    """The agents of a store: `store.agents`."""

    def __init__(self, executor: Executor, agents: sync.Agents) -> None:
        self._executor = executor
        self._sync = agents

'''
        + maker.all()
    )


def conversations() -> str:
    """Return the module of conversations."""
    maker = Maker("conversations/repository", "Conversations", CONVERSATIONS)
    return (
        WARNING.format("conversations/repository")
        + '''"""Conversations of the async mirror: each conversation is a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import called
from backtrail.aio.checkpoint import Checkpoint, plain
from backtrail.aio.thread import Thread
from backtrail.models import MISSING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from backtrail.aio.executor import Executor
    from backtrail.conversations import repository as sync
    from backtrail.conversations.convert import Model
    from backtrail.conversations.models import Conversation, Message
    from backtrail.conversations.repository import Hits, Infos, Messages
    from backtrail.models import ConversationInfo, ErasureReport, Sentinel
    from backtrail.thread import Ref


class Conversations:
    """The conversations of a store: `store.conversations`."""

    def __init__(self, executor: Executor, conversations: sync.Conversations) -> None:
        self._executor = executor
        self._sync = conversations

'''
        + maker.all()
    )


def runs() -> str:
    """Return the module of runs."""
    maker = Maker("runs/repository", "Runs", RUNS)
    return (
        WARNING.format("runs/repository")
        + '''"""Runs of the async mirror: operators list, read, settle and erase them here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import called
from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.run import Run
from backtrail.aio.thread import Thread
from backtrail.models import MISSING
from backtrail.validation import LEASE

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from backtrail.aio.executor import Executor
    from backtrail.maintenance.retention import Policy
    from backtrail.models import ErasureReport
    from backtrail.runs import repository as sync
    from backtrail.runs.repository import Calls, Records, RunRecord
    from backtrail.runs.strategies import Strategy

    Checkpoints = list[Checkpoint[Any]]
    Opened = list[Run]


class Runs:
    """The runs of a store: `store.runs`."""

    def __init__(self, executor: Executor, runs: sync.Runs) -> None:
        self._executor = executor
        self._sync = runs

'''
        + maker.all()
    )


def keys() -> str:
    """Return the module of keys."""
    maker = Maker("sealed/rotation", "Keys", KEYS)
    return (
        WARNING.format("sealed/rotation")
        + '''"""The keys of an encrypted store in the async mirror."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from backtrail.aio.blocks import called

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from backtrail.aio.executor import Executor
    from backtrail.models import KeyReport, KeyStatus
    from backtrail.sealed import rotation as sync
    from backtrail.sealed.keys import Key


class Keys:
    """The keys of an encrypted store: `store.keys`."""

    def __init__(self, executor: Executor, keys: sync.Keys) -> None:
        self._executor = executor
        self._sync = keys

'''
        + maker.all()
    )


def store() -> str:
    """Return the module of stores."""
    maker = Maker("store", "Store", STORE)
    tree = ast.parse(maker.text)
    node = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "open")
    head = signature("def open", node, "Opening[sync.Store, Store]")
    head = replaced(head, "def open(", "def open(  # noqa: A001 - as backtrail.open")
    opening = [
        textwrap.dedent(head),
        replaced(doc(node), "\n\n", "\n\n    Use `async with aio.open(...) as store:`, or `await aio.open(...)`.\n\n"),
        call("make = partial", ["sync.open", *passed(node)]),
        "    return Opening(make, Store, sync.Store.close)\n",
    ]
    return (
        WARNING.format("store")
        + '''"""Stores of the async mirror: `open(url)`, and `Store`, which makes handles and maintains the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from backtrail import store as sync
from backtrail.aio.agents import Agents
from backtrail.aio.blocks import Opening, Transaction, Watch, called
from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.conversations import Conversations
from backtrail.aio.executor import Executor
from backtrail.aio.keys import Keys
from backtrail.aio.run import Run
from backtrail.aio.runs import Runs
from backtrail.aio.thread import Thread
from backtrail.validation import LEASE

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from opentelemetry.trace import TracerProvider

    from backtrail.conversations.models import Message
    from backtrail.engine.redact import Redact
    from backtrail.maintenance.retention import Policy
    from backtrail.models import (
        ErasureReport,
        ExportReport,
        GcReport,
        Hit,
        Hits,
        ImportReport,
        MigrateReport,
        PruneReport,
        Stats,
        ThreadInfo,
        VerifyReport,
    )
    from backtrail.runs.strategies import Strategy
    from backtrail.sealed.keys import Key

S = TypeVar("S")


'''
        + "".join(opening)
        + '''

class Store:
    """Keeps threads, as the store that it is made of does. Tasks, event loops and threads may share it."""

    def __init__(self, store: sync.Store) -> None:
        self._sync = store
        self._executor = Executor(store._engine)  # noqa: SLF001 - the two are one
        self._agents = Agents(self._executor, store.agents)
        self._conversations = Conversations(self._executor, store.conversations)
        self._runs = Runs(self._executor, store.runs)
        self._keys = Keys(self._executor, store.keys)

'''
        + maker.all()
        + """
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
"""
    )


MODULES = {
    "checkpoint": checkpoints,
    "thread": threads,
    "agents": agents,
    "conversations": conversations,
    "runs": runs,
    "keys": keys,
    "store": store,
}


def main() -> None:
    """Write the modules, or say which are not up to date."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, make in MODULES.items():
        path = SOURCE / "aio" / f"{name}.py"
        text = make()
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.write_text(text)
    if check and stale:
        raise SystemExit(f"not up to date: {', '.join(stale)}; run `make aio`")


if __name__ == "__main__":
    main()
