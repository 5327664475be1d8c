"""The command for the keys of encrypted stores."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import count, size
from backtrail.cli.parameters import command
from backtrail.cli.summary import progress_in

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation


@command(
    examples=(
        "backtrail keys init agents.key",
        "backtrail copy sqlite:///agents.db sqlite:///encrypted.db --to-key-file agents.key",
        "backtrail threads --store sqlite:///encrypted.db --key-file agents.key",
    )
)
@click.argument("action", type=click.Choice(["init", "status", "backup", "rotate"]))
@click.argument("file", required=False)
@click.option("--data", is_flag=True, help="rotate: seal all data with new keys, and destroy the old ones.")
def keys(session: Invocation, *, out: Output, action: str, file: str | None, data: bool) -> None:
    """Make, show or replace the keys of an encrypted store.

    `init FILE` writes a new key to a new file. `status` shows which key opens the store, and counts its keys.
    `backup FILE` copies the keyring, without which the store cannot be read.
    `rotate FILE` makes the key in FILE the key that opens the store; no data is touched. With --data, everything is
    sealed with new keys, and backups from before can no longer be read.
    """
    from backtrail.sealed.keys import Key

    if action != "rotate" and data:
        raise click.UsageError("--data is for rotate")
    if action == "init":
        if file is None:
            raise click.UsageError("init needs the name of a new file for the key")
        Key.generate().save(file)
        _print(out, {"file": file}, f"{file}: a new key; without this file, what it encrypts cannot be read")
        return
    if action == "status":
        if file is not None:
            raise click.UsageError("status takes no file: pass the key with --key-file")
        with session.read() as store:
            status = store.keys.status()
        _print(
            out,
            asdict(status),
            f"store {status.store_id}, opened by {status.wrapped_by}; "
            f"{count(status.threads, 'thread')} with a key, {status.older:,} with older keys, "
            f"{count(status.destroyed, 'key')} destroyed, {count(status.orphans, 'orphan')}",
        )
        return
    if action == "backup":
        if file is None:
            raise click.UsageError("backup needs the name of a new file for the copy of the keyring")
        with session.read() as store:
            written = store.keys.backup(file)
        _print(out, {"path": file, "bytes": written}, f"{file}: {size(written)}")
        return
    if file is None and not data:
        raise click.UsageError("rotate needs the file of the new key, or --data")
    new = None if file is None else Key.from_file(file)
    with session.write() as store, progress_in(store) as progress:
        report = store.keys.rotate(new, data=data, progress=progress)
    opens = f"{file} opens the store now; " if file else ""
    done = f"{count(report.rows, 'row')} and {count(report.chunks, 'chunk')} sealed with new keys"
    _print(out, asdict(report), opens + (done if data else "no data was touched"))


def _print(out: Output, value: dict[str, Any], text: str) -> None:
    if out.human:
        out.tell(text)
    else:
        out.value(value)


COMMANDS: Final = (keys,)
