"""Parameters that commands share: the store, the thread, the checkpoint, and their options.

A THREAD is an id. Threads, agents, conversations and runs have separate name spaces. If several of them have the id,
`--kind` selects one. A REF is a checkpoint's id, a THREAD (its head), or THREAD@ and a ref of docs/threads.md:
`trip@12`, `trip@~3`, `trip@before-booking`, `trip@1f83`. Ids may contain an @: the longest prefix before an @ that is a
thread is the thread.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
import time
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from backtrail.cli.output import Output, clean, for_stderr, is_terminal, quoted, say, short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.sealed.keys import Key
    from backtrail.store import Store
    from backtrail.thread import Thread

USAGE: Final = 2
"""The exit code of wrong usage."""
DAMAGED: Final = 5
"""The exit code of damaged data."""
KINDS: Final = ("thread", "agent", "conversation", "run")
_DURATION: Final = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_STEP: Final = re.compile(r"[1-9][0-9]{0,8}")
_NEAR: Final = 100
_COMPLETED: Final = 50
_ANSWERS: Final = " [y/N]: n"
"""The end of click's questions, and an answer."""
_SHORT: Final = re.compile(r"([0-9a-f]{8}[0-9a-f-]*)…?")
"""The first digits of a UUID, as listings show them."""
_SAFE: Final = re.compile(r"[\w./@+:][\w./@+:-]*")
"""An id that needs no quotes. Click's completion scripts do not quote, and a shell would run a command in an id."""
_MOST: Final = 1_000_000_000
_PHRASES: Final = (
    ("pass threads= or agent=, not both", "pass --thread or --agent, not both"),
    ("export without since=", "export without --since"),
    (
        "set one of keep_last, keep_hourly, keep_daily, keep_weekly above 0, or older_than, idle or keep_tagged=[...]",
        "pass --keep-last, --keep-hourly, --keep-daily or --keep-weekly above 0, --older-than or --idle",
    ),
    ("with export(path, threads=[id])", "with `backtrail export FILE --thread THREAD`"),
    ("verify() lists", "`backtrail verify` lists"),
    ("verify(repair=True) gives", "`backtrail verify --repair` gives"),
    ("force=True undoes", "--force undoes"),
    ("erase it with force=True", "erase it with --force"),
    ("wait, or open the run with takeover=True if that worker is gone", "wait until it is free"),
    ("contains=True searches", "--contains searches"),
    ("schema= is for", "--schema is for"),
    ("open it with key= (Key.from_file, Key.from_env); commands take --key-file or", "pass --key-file, or set"),
    ("open it without key=, or copy", "omit the key, or copy"),
    (", or name it in keyring=", ", or name it with --keyring"),
    (" in keyring=", " with --keyring"),
    ("keyring= requires key=", "--keyring requires --key-file, $BACKTRAIL_KEY_FILE or $BACKTRAIL_KEY"),
    (": open the store with the other key, or name it in previous=", ""),
    (
        "pass key= or passphrase= to encrypt the export, or plain=True",
        "pass --to-key-file or --passphrase-file to encrypt the export, or --plain",
    ),
    ("encrypted by a passphrase: pass passphrase=", "encrypted by a passphrase: pass --passphrase-file"),
    (": pass key=", ": pass --from-key-file"),
    ("read it without key= and passphrase=", "omit --from-key-file and --passphrase-file"),
    ("use set()", "use --set"),
    ("pass wait=False", "pass --no-wait"),
    ("verify(repair=True) makes", "`backtrail verify --repair` makes"),
    ("`reindex` rebuilds", "`backtrail reindex` rebuilds"),
    (", or give a tuple of keys and indexes", ""),
)
"""Words of the library's messages, and the words for the command line: options for arguments, commands for calls."""
_COMMAND: Final = re.compile("`backtrail ([^`]*)`")


class Failure(click.ClickException):
    """An error that a command prints in one line, with its exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(clean(message))
        self.code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """The exit code of the command."""
        return self.code

    def show(self, file: Any = None) -> None:
        """Print the error."""
        for each in for_stderr(f"backtrail: {self.message}"):
            click.echo(each, file=file, err=file is None)


# -- stores -----------------------------------------------------------------------------------------------


@dataclass
class Invocation:
    """The options of a call that select the store; users pass them before or after the command."""

    url: str | None = None
    schema: str | None = None
    key_file: str | None = None
    keyring: str | None = None
    debug: bool = False

    def take(
        self,
        url: str | None,
        schema: str | None = None,
        *,
        key_file: str | None = None,
        keyring: str | None = None,
        debug: bool = False,
    ) -> None:
        """Add the options that came after the command: they replace those before it."""
        given = {"url": url, "schema": schema, "key_file": key_file, "keyring": keyring}
        for option, value in zip(("--store", "--schema", "--key-file", "--keyring"), given.values(), strict=True):
            if value is not None and not value.strip():
                raise click.UsageError(f"{option} is empty: pass a value, or omit the option")
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        self.debug = self.debug or debug

    def read(self) -> Store:
        """Open an existing store to read."""
        return self._open(read_only=not self._in_memory())

    def write(self, *, create: bool = False) -> Store:
        """Open the store to write. Only some commands create a missing store."""
        if not create and not self._in_memory():
            self.read().close()
        return self._open(read_only=False)

    def command(self, *words: str, last: Sequence[str] = ()) -> str:
        """Return a command for this store, quoted for a shell, without the password."""
        from backtrail.urls import shown

        options = (
            ("--store", shown(self.url) if self.url else None),
            ("--schema", self.schema),
            ("--key-file", self.key_file),
            ("--keyring", shown(self.keyring) if self.keyring else None),
        )
        store = [word for option, value in options if value for word in (option, value)]
        return " ".join(map(quoted, ["backtrail", *words, *store, *last]))

    def exists(self) -> bool:
        """Tell whether the store exists."""
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

        if (self.url or default_url()).startswith("file:"):  # only the file backend logs
            print_log_warnings()
        return backtrail.open(self.url, read_only=read_only, schema=self.schema, key=self.key(), keyring=self.keyring)

    def key(self) -> Key | None:
        """Return the key of an encrypted store: from --key-file, else from the environment; None for a plain store."""
        file = self.key_file or os.environ.get("BACKTRAIL_KEY_FILE")
        if not file and not os.environ.get("BACKTRAIL_KEY"):
            return None
        from backtrail.sealed.keys import Key

        return Key.from_file(file) if file else Key.from_env("BACKTRAIL_KEY")


def translated(text: str, session: Invocation) -> str:
    """Return a message of the library with options and commands of the command line.

    A user can copy such a command: it includes the `--store` that the user passed.
    """
    for library, cli in _PHRASES:
        if library in text:
            phrase = _COMMAND.sub(lambda match: f"`{session.command(*match[1].split())}`", cli)
            text = text.replace(library, phrase)
    return text


def searchable(session: Invocation) -> Store:
    """Open a store to search, writable if possible: the search first adds the latest messages to the index."""
    from backtrail.errors import Unavailable

    try:
        return session.write()
    except Unavailable:
        return session.read()


def is_encrypted(store: Store) -> bool:
    """Tell whether a store is encrypted."""
    from backtrail.archive.copy import is_encrypted

    return is_encrypted(store)


def in_memory() -> Store:
    """Return a new empty store in memory."""
    import backtrail

    return backtrail.open("memory://")


_printed: Final[set[str]] = set()


def print_log_warnings() -> None:
    """Print the warnings that backends log, each once."""
    import logging

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message not in _printed:
                _printed.add(message)
                say(f"backtrail: warning: {clean(message)}")

    logger = logging.getLogger("backtrail")
    if not logger.handlers:
        logger.addHandler(Printer(logging.WARNING))
        logger.propagate = False


# -- commands ---------------------------------------------------------------------------------------------


class Command(click.Command):
    """A command with examples. docs/cli.md shows the output of each."""

    examples: tuple[str, ...] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options."""
        del ctx
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def command(*, examples: Sequence[str] = (), prints: bool = True, name: str | None = None) -> Callable[[Any], Command]:
    """Make a function a command with the common options. It gets the invocation and the output."""

    def decorated(function: Callable[..., None]) -> Command:
        @click.pass_context
        def run(ctx: click.Context, /, **options: Any) -> None:
            session = ctx.ensure_object(Invocation)
            names = ("schema", "key_file", "keyring", "debug")
            session.take(options.pop("store"), **{name: options.pop(name) for name in names})
            if prints:
                options["out"] = Output(_form(as_json=options.pop("as_json"), as_jsonl=options.pop("as_jsonl")))
            function(session, **options)

        update_wrapper(run, function)
        run = store_options(run)
        if prints:
            run = click.option("--jsonl", "as_jsonl", is_flag=True, help="Print JSON, one value per line.")(run)
            run = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(run)
        built = click.command(name, cls=Command)(run)
        built.params.sort(key=lambda param: _LAST.index(param.name) if param.name in _LAST else -1)
        built.examples = tuple(examples)
        return built

    return decorated


_LAST: Final = ("yes", "as_json", "as_jsonl", "store", "schema", "key_file", "keyring", "debug")


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the store."""
    for option in (
        click.option("--debug", is_flag=True, help="Show the stack trace of an error."),
        click.option("--keyring", metavar="URL", help="The keyring of an encrypted store, if it is not beside it."),
        click.option(
            "--key-file",
            metavar="FILE",
            help="The key of an encrypted store. Default: $BACKTRAIL_KEY_FILE, else $BACKTRAIL_KEY.",
        ),
        click.option("--schema", metavar="NAME", help="The schema of a PostgreSQL store."),
        click.option("--store", metavar="URL", help="The store. Default: $BACKTRAIL_URL, else the user's own store."),
    ):
        function = option(function)
    return function


def _form(*, as_json: bool, as_jsonl: bool) -> str | None:
    if as_json and as_jsonl:
        raise click.UsageError("--json excludes --jsonl: pass one of them")
    return "json" if as_json else "jsonl" if as_jsonl else None


# -- parameters -------------------------------------------------------------------------------------------


class Duration(click.ParamType):  # type: ignore[type-arg]  # older clicks have no type arguments
    """A duration such as 30d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration; write 45s, 90m, 12h, 30d or 2w", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time in the past: today, yesterday, 12h (ago), a date, or a date and time. Without a zone: local time."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dt.datetime:
        """Return the time with its zone."""
        if isinstance(value, dt.datetime):
            return value
        now, text = dt.datetime.fromtimestamp(time.time(), dt.UTC).astimezone(), str(value)
        match = _DURATION.fullmatch(text)
        try:
            if match is not None:
                return now - dt.timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
            if text in _DAYS_AGO:
                day = (now - dt.timedelta(days=_DAYS_AGO[text])).date()
                return dt.datetime.combine(day, dt.time()).astimezone()
            moment = dt.datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.astimezone()
        except (ValueError, OverflowError, OSError):
            forms = "today, yesterday, 12h, 30d, 2026-01-31 or 2026-01-31T12:00"
            self.fail(f"{text!r} is not a time; write {forms}", param, ctx)


_DAYS_AGO: Final = {"today": 0, "yesterday": 1}


def time_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--since` and `--until`."""
    until = click.option("--until", type=Moment(), metavar="TIME", help="Only before this time.")
    text = "Only from this time on: yesterday, 12h, 2026-01-31."
    since = click.option("--since", type=Moment(), metavar="TIME", help=text)
    return since(until(function))


class ThreadId(click.ParamType):  # type: ignore[type-arg]
    """The id of a thread. A shell completes ids that need no quotes."""

    name = "thread"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the ids with this prefix, latest activity first."""
        from click.shell_completion import CompletionItem

        from backtrail.errors import Error

        del param
        before = ctx.parent.params if ctx.parent else {}
        names = ("store", "schema", "key_file", "keyring")
        url, schema, key_file, keyring = (ctx.params.get(name) or before.get(name) for name in names)
        session = Invocation(url, schema, key_file, keyring)
        kinds = [ctx.params["kind"]] if ctx.params.get("kind") else KINDS
        try:
            with session.read() as store:
                return [
                    CompletionItem(info.id, help=info.kind)
                    for kind in kinds
                    for info in store.threads(kind=kind, prefix=incomplete, limit=_COMPLETED)
                    if _SAFE.fullmatch(info.id)
                ]
        except Error:
            return []


thread_argument: Final = click.argument("thread", type=ThreadId())
threads_option: Final = click.option(
    "--thread", "threads", type=ThreadId(), metavar="THREAD", multiple=True, help="Only this thread; repeatable."
)
kind_option: Final = click.option("--kind", type=click.Choice(KINDS), help="The kind of thing that has the id.")
agent_option: Final = click.option("--agent", metavar="AGENT", help="Only what this agent owns.")
passphrase_option: Final = click.option(
    "--passphrase-file",
    metavar="FILE",
    help="The passphrase of an encrypted FILE. Default: $BACKTRAIL_PASSPHRASE_FILE, else $BACKTRAIL_PASSPHRASE.",
)
yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def rows_option(default: int = 20) -> Callable[[Any], Any]:
    """Return the option for the number of rows."""
    return click.option(
        "-n",
        "rows",
        type=click.IntRange(min=0),
        callback=lambda _, __, rows: min(rows, _MOST),
        default=default,
        show_default=True,
        metavar="N",
        help="Number of rows; 0: all.",
    )


class NewFile(click.ParamType):  # type: ignore[type-arg]
    """The name of a new file; - is refused."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        if value == "-":
            self.fail("stdout is not supported: pass a file name (./- for a file called -)", param, ctx)
        return str(value)


def read_json(path: str) -> Any:
    """Return the JSON value in a file; - is stdin. An error names the position."""
    name = "stdin" if path == "-" else path
    try:
        with click.open_file(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise Failure(f"there is no file {path}", 3) from error
    except OSError as error:
        raise Failure(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:  # not UTF-8; or stdin is closed
        raise Failure(f"{name} cannot be read: {error}") from error
    return parse_json(text, name)


def parse_json(text: str, name: str, code: int = 1) -> Any:
    """Return the JSON value in a text, or fail with this exit code. An error names the position."""
    import json

    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise Failure(f"{name}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}", code) from error
    except RecursionError as error:
        raise Failure(f"{name} is nested too deeply", code) from error
    except ValueError as error:
        reason = "a number in it has too many digits" if "int_max_str_digits" in str(error) else str(error)
        raise Failure(f"{name} is not JSON: {reason}", code) from error


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"the number {text} is too large")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"JSON has no number {text}")


# -- questions -----------------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool) -> None:
    """Ask a question, unless `yes`. Any answer but yes is a `Failure`."""
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise Failure("not a terminal, so nothing was changed: pass --yes to skip the question", USAGE)
    try:
        *before, last = for_stderr(question, less=len(_ANSWERS))
        for each in before:
            say(each)
        agreed = click.confirm(last, err=True)
    except click.Abort as end:
        say("")  # ends the line of the question
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        agreed = False
    if not agreed:
        raise Failure("nothing was changed")


# -- threads and checkpoints --------------------------------------------------------------------------------


class LocatedThread(NamedTuple):
    """An existing thread, with its kind and its latest checkpoint."""

    thread: Thread[Any]
    kind: str
    latest: Checkpoint[Any] | None
    """None if the head is damaged."""

    @property
    def head(self) -> Checkpoint[Any]:
        """The head; raises `Corrupt` if it is damaged."""
        return self.thread.load() if self.latest is None else self.latest

    def is_head(self, checkpoint: Checkpoint[Any]) -> bool:
        """Tell whether a checkpoint is the head."""
        return self.latest is not None and self.latest.id == checkpoint.id


def handle(store: Store, kind: str, name: str) -> Thread[Any]:
    """Return a handle of a thread of any kind."""
    if kind == "thread":
        return store.thread(name)
    if kind == "run":
        return store.runs.thread(name)
    return (store.agents if kind == "agent" else store.conversations).thread(name)


def look_for(
    store: Store, name: str, kind: str | None = None, *, kinds: Sequence[str] = KINDS, prefix: bool = False
) -> LocatedThread | None:
    """Return the thread with this id; None if there is none. `kind` selects one of several threads with the id.

    `prefix`: accept the first digits of a UUID if only one thread has them. Only for commands that can be undone.
    """
    from backtrail.errors import Invalid

    matches = []
    for each in (kind,) if kind else kinds:
        info = store.info(name, kind=each)
        if info is None:  # so the module of this kind is not imported
            continue
        thread = handle(store, each, name)
        head = None if info.damaged else thread.latest()
        if head is not None or info.damaged:
            matches.append(LocatedThread(thread, each, head))
    if len(matches) > 1:
        options = [f"--kind {each.kind}" for each in matches]
        raise Invalid(f"{name!r} is ambiguous: pass {' or '.join(options)}", code="invalid.ambiguous")
    if matches or not prefix:
        return matches[0] if matches else None
    return _with_prefix(store, name, (kind,) if kind else kinds)


def _with_prefix(store: Store, name: str, kinds: Sequence[str]) -> LocatedThread | None:
    """Return the only thread whose id is a UUID with this prefix; None if there is none, `Invalid` if several."""
    from backtrail.errors import Invalid

    form = _SHORT.fullmatch(name)
    listed = (
        info for kind in kinds for info in (store.threads(kind=kind, prefix=form[1], limit=_NEAR) if form else ())
    )
    ids = {info.id: info.kind for info in listed if short(info.id) != info.id}
    if len(ids) > 1:
        names = ", ".join([*ids][:4])
        raise Invalid(f"{len(ids)} ids begin with {name!r} ({names}): pass more digits", code="invalid.ambiguous")
    return next((look_for(store, each, kind) for each, kind in ids.items()), None)


def find_thread(store: Store, name: str, kind: str | None = None) -> LocatedThread:
    """Return the thread with this id, or raise `NotFound` with a similar id as a hint."""
    return look_for(store, name, kind, prefix=True) or _missing(store, name, kind)


def find_ids(store: Store, names: Sequence[str], kind: str | None, *, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Return the arguments `threads` and `kind` of the library for these ids; `NotFound` if a thread is missing."""
    if not names:
        if kind is not None:
            raise click.UsageError("--kind requires --thread")
        return {"threads": None, "kind": None}
    present = {(look_for(store, name, kind, kinds=kinds) or _missing(store, name, kind)).kind for name in names}
    return {"threads": names, "kind": present.pop() if len(present) == 1 else None}


def find_ref(
    store: Store, text: str, kind: str | None = None, *, near: LocatedThread | None = None, prefix: bool = True
) -> tuple[LocatedThread, Checkpoint[Any]]:
    """Return the thread and the checkpoint that a REF names.

    A REF that begins with @ names a checkpoint of the thread `near`, if that is given.
    """
    if near is not None and text.startswith("@"):
        return near, at(near, text[1:])
    whole = look_for(store, text, kind, prefix=prefix) if text else None
    if whole is not None:
        return whole, whole.head
    for place in [place for place, char in enumerate(text) if char == "@" and place][::-1]:
        located = look_for(store, text[:place], kind, prefix=prefix)
        if located is not None:
            return located, at(located, text[place + 1 :])
    checkpoint = store.checkpoint(text) if text else None
    if checkpoint is None:
        _missing(store, text.partition("@")[0] or text, kind)
    owners = [look_for(store, checkpoint.thread_id, each) for each in ((kind,) if kind else KINDS)]
    owner = next((each for each in owners if each is not None and at(each, checkpoint.id, missing=True)), None)
    if owner is None:
        _missing(store, text, kind)
    return owner, checkpoint


def at(located: LocatedThread, ref: str, *, missing: bool = False) -> Any:
    """Return the checkpoint that `ref`, the part of a REF after the @, names in a thread.

    With `missing`, return None instead of raising `NotFound`.
    """
    from backtrail.errors import NotFound

    text = f"@{ref}" if ref in ("", "-") or ref.startswith("~") else ref
    try:
        if _STEP.fullmatch(ref):
            return _at_step(located, int(ref))
        return located.thread.load(text)
    except NotFound:
        if missing:
            return None
        raise


def _at_step(located: LocatedThread, step: int) -> Checkpoint[Any]:
    """Return the checkpoint of a step; if there is none, read the number as a label, a tag or the prefix of an id."""
    from backtrail.errors import NotFound

    try:
        return located.thread.load(step)
    except NotFound as error:
        try:
            return located.thread.load(str(step))
        except NotFound:
            raise error from None


def _missing(store: Store, name: str, kind: str | None) -> NoReturn:
    from difflib import get_close_matches
    from itertools import islice

    from backtrail.errors import NotFound

    kinds = {info.id: each for each in KINDS for info in islice(store.threads(kind=each), _NEAR)}
    near = get_close_matches(name, kinds, n=1, cutoff=0.75)
    hint = f"; there is {f'{kinds[name]} ' if name in near else ''}{near[0]!r}" if near else ""
    raise NotFound(f"there is no {kind or 'thread'} {name!r}{hint}", code="not_found.thread")


def require_agent(store: Store, agent: str) -> None:
    """Raise `NotFound` if there is no agent with this id and no thread that it owns."""
    from difflib import get_close_matches

    from backtrail.errors import NotFound

    if store.info(agent, kind="agent") is None and not any(owns(store, agent, kind) for kind in KINDS):
        known = sorted({info.agent or info.id for kind in KINDS for info in store.threads(kind=kind, limit=_NEAR)})
        near = get_close_matches(agent, known, n=1, cutoff=0.6)
        hint = f"; there is {near[0]!r}" if near else ""
        raise NotFound(f"there is no agent {agent!r}{hint}", code="not_found.agent")


def owns(store: Store, agent: str, kind: str) -> bool:
    """Tell whether an agent owns a thread of this kind."""
    return next(iter(store.threads(kind=kind, agent=agent, limit=1)), None) is not None
