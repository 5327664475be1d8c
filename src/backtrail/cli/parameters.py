"""What commands have in common: which store, which thread, which checkpoint; and the options by which one says so.

A THREAD is an id. Threads, agents, conversations and runs each have a name space of their own: an id that only one of
them has is enough, else `--kind` says which. A REF is a checkpoint's id, a THREAD (its head), or THREAD@ and what
docs/threads.md calls a ref: `trip@12`, `trip@~3`, `trip@before-booking`, `trip@1f83`. Since ids may hold an @, the
longest part in front of one that is a thread is the thread.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from backtrail.cli.output import Output, clean, for_stderr, is_terminal, quoted, say, short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.store import Store
    from backtrail.thread import Thread

USAGE: Final = 2
"""The exit code of a command that is wrong."""
DAMAGED: Final = 5
"""That of one about stored data that is damaged."""
KINDS: Final = ("thread", "agent", "conversation", "run")
_DURATION: Final = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_STEP: Final = re.compile(r"[1-9][0-9]{0,8}")
_NEAR: Final = 100
_COMPLETED: Final = 50
_ANSWERS: Final = " [y/N]: n"
"""What click puts behind a question, and an answer."""
_SHORT: Final = re.compile(r"([0-9a-f]{8}[0-9a-f-]*)…?")
"""A beginning of a UUID, as listings show it."""
_SAFE: Final = re.compile(r"[\w./@+:][\w./@+:-]*")
"""An id that every shell takes as it is: click's scripts put what is offered into the line without quoting it, and the
shell would run what is in it."""
_MOST: Final = 1_000_000_000


class Failure(click.ClickException):
    """Something that did not work, in one line."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(clean(message))
        self.code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """The code that the command exits with."""
        return self.code

    def show(self, file: Any = None) -> None:
        """Tell it."""
        for each in for_stderr(f"backtrail: {self.message}"):
            click.echo(each, file=file, err=file is None)


# -- stores -----------------------------------------------------------------------------------------------


@dataclass
class Session:
    """What was said in front of the command, or behind it."""

    url: str | None = None
    schema: str | None = None
    debug: bool = False

    def take(self, url: str | None, schema: str | None, *, debug: bool) -> None:
        """Take what was said behind the command, too."""
        for option, value in (("--store", url), ("--schema", schema)):
            if value is not None and not value.strip():
                raise click.UsageError(f"{option} is empty: name one, or leave it out")
        self.url = self.url if url is None else url
        self.schema = self.schema if schema is None else schema
        self.debug = self.debug or debug

    def read(self) -> Store:
        """Open the store to look at it; one that is not there is `NotFound`, and is not made."""
        return self._open(read_only=not self._in_memory())

    def write(self, *, create: bool = False) -> Store:
        """Open the store to change it; only some commands make one that is not there."""
        if not create and not self._in_memory():
            self.read().close()
        return self._open(read_only=False)

    def command(self, *words: str, last: Sequence[str] = ()) -> str:
        """Return a command about this store, as a shell takes it; a password is left out."""
        from backtrail.urls import shown

        said = (("--store", shown(self.url) if self.url else None), ("--schema", self.schema))
        store = [word for option, value in said if value for word in (option, value)]
        return " ".join(map(quoted, ["backtrail", *words, *store, *last]))

    def is_there(self) -> bool:
        """Tell whether there is such a store."""
        from backtrail.errors import NotFound

        try:
            self.read().close()
        except NotFound:
            return False
        return True

    def _in_memory(self) -> bool:
        return self.url is not None and self.url.startswith("memory:")

    def _open(self, *, read_only: bool) -> Store:
        import backtrail
        from backtrail.urls import default_url

        if (self.url or default_url()).startswith("file:"):  # of all backends, files log
            tell_warnings()
        return backtrail.open(self.url, read_only=read_only, schema=self.schema)


def in_memory() -> Store:
    """Return a store to try something in."""
    import backtrail

    return backtrail.open("memory://")


_heard: Final[set[str]] = set()


def tell_warnings() -> None:
    """Let what backends log be told like all else, each thing once."""
    import logging

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message not in _heard:
                _heard.add(message)
                say(f"backtrail: warning: {clean(message)}")

    logger = logging.getLogger("backtrail")
    if not logger.handlers:
        logger.addHandler(Teller(logging.WARNING))
        logger.propagate = False


# -- commands ---------------------------------------------------------------------------------------------


class Command(click.Command):
    """A command that has examples: each is run for docs/cli.md, which shows what it prints."""

    examples: tuple[str, ...] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options."""
        del ctx
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def command(*, examples: Sequence[str] = (), prints: bool = True, name: str | None = None) -> Callable[[Any], Command]:
    """Make a function a command with the options that every one has; it gets the session, and what it prints to."""

    def made(function: Callable[..., None]) -> Command:
        @click.pass_context
        def run(ctx: click.Context, /, **options: Any) -> None:
            session = ctx.ensure_object(Session)
            session.take(options.pop("store"), options.pop("schema"), debug=options.pop("debug"))
            if prints:
                options["out"] = Output(_form(as_json=options.pop("as_json"), as_jsonl=options.pop("as_jsonl")))
            function(session, **options)

        update_wrapper(run, function)
        run = click.option("--debug", is_flag=True, help="Show the stack trace of an error.")(run)
        run = click.option("--schema", metavar="NAME", help="The schema of a store in PostgreSQL.")(run)
        run = click.option("--store", metavar="URL", help="The store; else $BACKTRAIL_URL, else the user's own.")(run)
        if prints:
            run = click.option("--jsonl", "as_jsonl", is_flag=True, help="Print JSON, one value in each line.")(run)
            run = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(run)
        built = click.command(name, cls=Command)(run)
        built.params.sort(key=lambda param: _LAST.index(param.name) if param.name in _LAST else -1)
        built.examples = tuple(examples)
        return built

    return made


_LAST: Final = ("yes", "as_json", "as_jsonl", "store", "schema", "debug")


def _form(*, as_json: bool, as_jsonl: bool) -> str | None:
    if as_json and as_jsonl:
        raise click.UsageError("say --json or --jsonl, not both")
    return "json" if as_json else "jsonl" if as_jsonl else None


# -- parameters -------------------------------------------------------------------------------------------


class Duration(click.ParamType):  # type: ignore[type-arg]  # older clicks have no type arguments
    """A time such as 30d, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no time; write 45s, 90m, 12h, 30d or 2w", param, ctx)
        return float(int(found[1]) * _SECONDS[found[2]])


class ThreadId(click.ParamType):  # type: ignore[type-arg]
    """The id of a thread; a shell completes it, if it has only characters that mean nothing to a shell."""

    name = "thread"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the ids that begin like this, those of the newest activity."""
        from click.shell_completion import CompletionItem

        from backtrail.errors import Error

        del param
        before = ctx.parent.params if ctx.parent else {}
        said = {name: ctx.params.get(name) or before.get(name) for name in ("store", "schema")}
        session = Session(said["store"], said["schema"])
        kinds = [ctx.params["kind"]] if ctx.params.get("kind") else KINDS
        try:
            with session.read() as store:
                return [
                    CompletionItem(info.id, help=info.kind)
                    for kind in kinds
                    for info in store.threads(kind=kind, prefix=incomplete, limit=_COMPLETED)
                    if _SAFE.fullmatch(info.id)
                ]
        except Error:  # then there is nothing to complete
            return []


thread_argument: Final = click.argument("thread", type=ThreadId())
threads_option: Final = click.option(
    "--thread", "threads", type=ThreadId(), metavar="THREAD", multiple=True, help="Only this one; may be repeated."
)
kind_option: Final = click.option("--kind", type=click.Choice(KINDS), help="What the id is the id of.")
agent_option: Final = click.option("--agent", metavar="AGENT", help="Only what belongs to this agent.")
yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def rows_option(default: int = 20) -> Callable[[Any], Any]:
    """Return the option that says how many rows are shown."""
    return click.option(
        "-n",
        "rows",
        type=click.IntRange(min=0),
        callback=lambda _, __, rows: min(rows, _MOST),
        default=default,
        show_default=True,
        metavar="N",
        help="How many; 0: all.",
    )


class NewFile(click.ParamType):  # type: ignore[type-arg]
    """The name of a file that is made; stdout is none."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        if value == "-":
            self.fail("it is not written to stdout: name a file, or ./- if it is to be called so", param, ctx)
        return str(value)


def read_json(path: str) -> Any:
    """Return the value in a file, - being stdin; what is wrong with it is told with its place."""
    import json

    name = "stdin" if path == "-" else path
    try:
        with click.open_file(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise Failure(f"{name}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from error
    except FileNotFoundError as error:
        raise Failure(f"there is no file {path}", 3) from error
    except OSError as error:
        raise Failure(f"{name} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise Failure(f"{name} is nested too deeply") from error
    except (ValueError, RuntimeError) as error:  # a stdin that is closed, too
        why = "a number in it has too many digits" if "int_max_str_digits" in str(error) else str(error)
        raise Failure(f"{name} is no JSON that can be read: {why}") from error


def parse_json(text: str, name: str) -> Any:
    """Return the value in a text; what is wrong with it is told with its place."""
    import json

    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise Failure(f"{name}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}", USAGE) from error
    except (ValueError, RecursionError) as error:
        raise Failure(f"{name} is no JSON that can be read: {error}", USAGE) from error


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text} is too large for a number")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"JSON has no number {text}")


# -- asking -----------------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool) -> None:
    """Ask whether to go on, unless it was said before; whoever declines has changed nothing."""
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise Failure("there is nobody to ask, and nothing was changed: say --yes to do it without asking", USAGE)
    try:
        *before, last = for_stderr(question, less=len(_ANSWERS))
        for each in before:
            say(each)
        agreed = click.confirm(last, err=True)
    except click.Abort as end:
        say("")  # the answer's line is still open
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        agreed = False
    if not agreed:
        raise Failure("nothing was changed")


# -- threads and checkpoints --------------------------------------------------------------------------------


class Found(NamedTuple):
    """A thread that is there, and what it is."""

    thread: Thread[Any]
    kind: str
    latest: Checkpoint[Any] | None
    """None if the head is lost."""

    @property
    def head(self) -> Checkpoint[Any]:
        """The head, or `Corrupt`."""
        return self.thread.load() if self.latest is None else self.latest

    def leads_to(self, checkpoint: Checkpoint[Any]) -> bool:
        """Tell whether a checkpoint is the head."""
        return self.latest is not None and self.latest.id == checkpoint.id


def handle(store: Store, kind: str, name: str) -> Thread[Any]:
    """Return the handle of a thread."""
    if kind == "thread":
        return store.thread(name)
    if kind == "run":
        return store.runs.thread(name)
    return (store.agents if kind == "agent" else store.conversations).thread(name)


def look_for(
    store: Store, name: str, kind: str | None = None, *, kinds: Sequence[str] = KINDS, begun: bool = False
) -> Found | None:
    """Return the thread of this id, if there is one; one of several kinds is told apart by `kind`.

    `begun`: the beginning of a UUID will do, if only one thread is called so. That is for commands that can be undone.
    """
    from backtrail.errors import Invalid

    found = []
    for each in (kind,) if kind else kinds:
        info = store.info(name, kind=each)
        if info is None:  # what is not there needs no code that knows about it
            continue
        thread = handle(store, each, name)
        head = None if info.damaged else thread.latest()
        if head is not None or info.damaged:
            found.append(Found(thread, each, head))
    if len(found) > 1:
        names = [f"--kind {each.kind}" for each in found]
        raise Invalid(f"{name!r} is the id of several things: say {' or '.join(names)}", code="invalid.ambiguous")
    if found or not begun:
        return found[0] if found else None
    return _begun(store, name, (kind,) if kind else kinds)


def _begun(store: Store, name: str, kinds: Sequence[str]) -> Found | None:
    """Return the only thread whose id is a UUID that begins so."""
    from backtrail.errors import Invalid

    form = _SHORT.fullmatch(name)
    listed = (
        info for kind in kinds for info in (store.threads(kind=kind, prefix=form[1], limit=_NEAR) if form else ())
    )
    ids = {info.id: info.kind for info in listed if short(info.id) != info.id}
    if len(ids) > 1:
        names = ", ".join([*ids][:4])
        raise Invalid(f"{name!r} is the beginning of {len(ids)} ids ({names})", code="invalid.ambiguous")
    return next((look_for(store, each, kind) for each, kind in ids.items()), None)


def find_thread(store: Store, name: str, kind: str | None = None) -> Found:
    """Return the thread of this id, or `NotFound`, with what may have been meant."""
    return look_for(store, name, kind, begun=True) or _missing(store, name, kind)


def find_ids(store: Store, names: Sequence[str], kind: str | None, *, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Return what says to the library which threads have these ids: each has one of these kinds, or `NotFound`."""
    if not names:
        if kind is not None:
            raise click.UsageError("--kind says what the id behind --thread is the id of: say that, too")
        return {"threads": None, "kind": None}
    found = {(look_for(store, name, kind, kinds=kinds) or _missing(store, name, kind)).kind for name in names}
    return {"threads": names, "kind": found.pop() if len(found) == 1 else None}


def find_ref(
    store: Store, text: str, kind: str | None = None, *, near: Found | None = None, begun: bool = True
) -> tuple[Found, Checkpoint[Any]]:
    """Return what a REF means; one that begins with @ is one of a thread that was named before."""
    if near is not None and text.startswith("@"):
        return near, at(near, text[1:])
    whole = look_for(store, text, kind, begun=begun) if text else None
    if whole is not None:
        return whole, whole.head
    for place in [place for place, char in enumerate(text) if char == "@" and place][::-1]:
        found = look_for(store, text[:place], kind, begun=begun)
        if found is not None:
            return found, at(found, text[place + 1 :])
    checkpoint = store.checkpoint(text) if text else None
    if checkpoint is None:
        _missing(store, text.partition("@")[0] or text, kind)
    owners = [look_for(store, checkpoint.thread_id, each) for each in ((kind,) if kind else KINDS)]
    owner = next((each for each in owners if each is not None and at(each, checkpoint.id, missing=True)), None)
    if owner is None:
        _missing(store, text, kind)
    return owner, checkpoint


def at(found: Found, ref: str, *, missing: bool = False) -> Any:
    """Return the checkpoint of a thread that the part behind the @ means."""
    from backtrail.errors import NotFound

    text = f"@{ref}" if ref in ("", "-") or ref.startswith("~") else ref
    try:
        if _STEP.fullmatch(ref):
            return _at_step(found, int(ref))
        return found.thread.load(text)
    except NotFound:
        if missing:
            return None
        raise


def _at_step(found: Found, step: int) -> Checkpoint[Any]:
    """Return the checkpoint of a step; if there is none, the number may be a label, or the beginning of an id."""
    from backtrail.errors import NotFound

    try:
        return found.thread.load(step)
    except NotFound as none:
        try:
            return found.thread.load(str(step))
        except NotFound:
            raise none from None


def _missing(store: Store, name: str, kind: str | None) -> NoReturn:
    from difflib import get_close_matches
    from itertools import islice

    from backtrail.errors import NotFound

    there = {info.id: each for each in KINDS for info in islice(store.threads(kind=each), _NEAR)}
    near = get_close_matches(name, there, n=1, cutoff=0.75)
    hint = f"; there is {f'{there[name]} ' if name in near else ''}{near[0]!r}" if near else ""
    raise NotFound(f"there is no {kind or 'thread'} {name!r}{hint}", code="not_found.thread")
