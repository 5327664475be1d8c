"""One batch, one statement: the only way into a store in PostgreSQL.

A single row, which most batches are, is an UPDATE of its thread and an INSERT in one statement: who moves `newest`
from seq - 1 to seq has the turn, and whoever comes second waits for the first, finds it moved, and writes nothing.
Everything else is one call of the store's function `commit_1`, which looks at all that the batch requires before it
writes, or of `commit_2`, which also shows rows again and untouches.

A batch that is too large for one message, or has gaps, is sent in pieces, in one transaction. So is one that requires
tags: they are looked at once it has hidden the rows. Who tags a row holds it until that is committed, and whoever hides
it waits for that; a statement that was waiting would not see the tag, but the next one does.

A batch is recognised by the uids of its threads and the op_ids of its rows, so one that comes again after a lost reply
is a success. The second attempt waits for the first, if that is still under way: both need the turn of the same thread.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.columns import encoded, text_of
from backtrail.backends.port import Batch, MissingChunks, Row, Stale, Vanished, as_tagged
from backtrail.backends.postgres.session import Statement
from backtrail.backends.postgres.tables import COLUMNS, LETTERS, SECOND
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from backtrail.backends.postgres.session import Session

PIECE: Final = 16 * 1024 * 1024
"""About how many bytes are sent at once."""
_MAX_VALUE: Final = (1 << 30) - 1024
"""PostgreSQL takes no larger one."""

_ROWS: Final = Batch._fields.index("rows")
_LABEL: Final = Row._fields.index("label")
_PAYLOAD: Final = Row._fields.index("payload")
_PLACE: Final = {field: f"${at}" for at, field in enumerate(Row._fields, 2)}


class Commit:
    """The statements that write to the store in a schema (its quoted name)."""

    def __init__(self, schema: str, *, durable: bool) -> None:
        self._durable = durable
        letters = "i" + LETTERS
        seq, at = _PLACE["seq"], _PLACE["created_at"]
        self._append = Statement(
            f"""
            WITH turn AS (
                UPDATE {schema}.thread SET newest = {seq}, updated_at = {at}, second = {at} / {SECOND},
                    alive = {_PLACE["head"]} > 0, dirty = true
                WHERE no = $1 AND newest = {seq} - 1 RETURNING no, {schema}.durable_1({str(durable).lower()}))
            INSERT INTO {schema}.row (thread, {", ".join(COLUMNS)})
            SELECT no, {", ".join(_PLACE.values())} FROM turn""",
            letters,
        )
        listed = ", ".join(f"unnest(${at})" for at in range(6, 6 + len(LETTERS)))
        self._append_sparse = Statement(
            f"""
            WITH turn AS (
                UPDATE {schema}.thread SET newest = $3, updated_at = $4, second = $4 / {SECOND}, alive = $5 > 0,
                    dirty = true
                WHERE no = $1 AND newest < $2 RETURNING no, {schema}.durable_1({str(durable).lower()}))
            INSERT INTO {schema}.row (thread, {", ".join(COLUMNS)}) SELECT no, {listed} FROM turn""",
            "iiiii" + LETTERS.upper(),
        )
        self._same_threads = Statement(
            f"""
            SELECT t.no FROM unnest($1, $2, $3) WITH ORDINALITY AS w(space, name, uid, at)
            JOIN {schema}.thread t ON t.space = w.space AND t.name = w.name AND t.uid = w.uid ORDER BY w.at""",
            "TBB",
        )
        self._same_rows = Statement(
            f"""
            SELECT count(*) FROM unnest($1, $2, $3) AS w(thread, seq, op_id)
            JOIN {schema}.row r ON r.thread = w.thread AND r.seq = w.seq AND r.op_id = w.op_id""",
            "IIB",
        )
        self._tags = Statement(
            f"""
            SELECT t.thread, t.seq, t.tag FROM unnest($1, $2) AS w(thread, seq)
            JOIN {schema}.tag t ON t.thread = w.thread AND t.seq = w.seq""",
            "II",
        )
        self._op_id = Statement(f"SELECT op_id FROM {schema}.row WHERE thread = $1 AND seq = $2", "ii")
        general = "oTBBBIB" + "IBIB" + "I" + LETTERS.upper() + "BBB" + "IIII" + "II" + "IIB" + "IIB"
        self._commit = Statement(_call(schema, "commit_1", len(general)), general)
        self._commit_2 = Statement(_call(schema, "commit_2", len(general) + 4), general + "IIII")
        self._put = Statement(_call(schema, "put_1", 3), "BBB")
        rewriting = "oi" + LETTERS.upper() + "BB"
        self._rewrite = Statement(_call(schema, "rewrite_1", len(rewriting)), rewriting)

    def write(self, session: Session, batch: Batch, *, alone: bool) -> tuple[int, ...]:
        """Write the batch and return the numbers of its new threads, or write nothing and raise.

        `alone`: no transaction is open, so this is one by itself.
        """
        if is_one_row(batch):
            self._append_row(session, *batch.rows[0])
            return ()
        if _weight(batch) <= PIECE and not batch.gaps and not batch.tags:
            return self._write_piece(session, batch)[0]
        if not alone:
            return self._write_steps(session, batch)
        session.script("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            numbers = self._write_steps(session, batch)
        except (Stale, Vanished, MissingChunks):
            session.script("ROLLBACK")
            raise
        session.script("COMMIT")
        return numbers

    def _write_steps(self, session: Session, batch: Batch) -> tuple[int, ...]:
        """Write what takes more than one statement, as a part of the transaction that is open."""
        if batch.gaps:
            numbers, already = self._write_sparse(session, batch)
        elif _weight(batch) > PIECE:
            numbers, already = self._write_pieces(session, batch)
        else:
            numbers, already = self._write_piece(session, batch)
        if not already and batch.tags:
            found: dict[tuple[int, int], list[str]] = {}
            for no, seq, tag in session.run(self._tags, _columns(batch.tags, 3)[:2]):
                found.setdefault((no, seq), []).append(text_of(tag))
            if not as_tagged(batch, lambda *row: found.get(row, ())):
                raise Stale
        return numbers

    def _append_row(self, session: Session, thread: int, row: Row) -> None:
        _check_sizes((row.payload,))
        if not session.count(self._append, (thread, *_values(row))) and not self.is_there(session, thread, row):
            raise Stale

    def _append_rows(self, session: Session, rows: Sequence[tuple[int, Row]]) -> None:
        """Append rows behind the newest ones of their threads, wherever that is."""
        by_thread: dict[int, list[Row]] = {}
        for no, row in rows:
            by_thread.setdefault(no, []).append(row)
        for no, listed in by_thread.items():
            _check_sizes(row.payload for row in listed)
            if any(a.seq >= b.seq for a, b in itertools.pairwise(listed)):
                raise Stale
            place = (no, listed[0].seq, listed[-1].seq, listed[-1].created_at, listed[-1].head)
            columns = _columns([_values(row) for row in listed], len(LETTERS))
            if not session.count(self._append_sparse, (*place, *columns)):
                raise Stale

    def is_there(self, session: Session, thread: int, row: Row) -> bool:
        """Tell whether this very row was written."""
        found = session.run(self._op_id, (thread, row.seq))
        return bool(found) and found[0][0] == row.op_id

    def _write_piece(self, session: Session, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write a batch that is small enough; return the numbers of its threads, and whether it was there already."""
        _check_sizes(itertools.chain((row.payload for _, row in batch.rows), (data for _, data in batch.chunks)))
        if batch.untouch or batch.show:
            more = (*_columns(batch.show, 2), *_columns(batch.untouch, 2))
            (found,) = session.run(self._commit_2, (*self._arguments(batch), *more))
            if found[0] == "vanished":  # commit_1, which refuses that, too, knows a batch that is there already
                required = batch._replace(visible=(*batch.visible, found[-2:]))
                (found,) = session.run(self._commit, tuple(self._arguments(required)))
        else:
            (found,) = session.run(self._commit, tuple(self._arguments(batch)))
        refused, already, numbers, missing, thread, seq = found
        if refused == "stale":
            raise Stale
        if refused == "vanished":
            raise Vanished(thread, seq)
        if refused == "missing":
            raise MissingChunks(frozenset(missing))
        return tuple(numbers), bool(already)

    def _write_pieces(self, session: Session, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write it as several batches, the first of which requires all that the whole one does."""
        for chunks in _pieces(batch.chunks, lambda chunk: len(chunk[1])):
            self.put(session, chunks)
        pieces = list(_pieces(batch.rows, lambda row: len(row[1].payload or b""))) or [[]]
        first = batch._replace(chunks=(), rows=tuple(pieces[0]), hide=(), show=(), tag=(), untag=(), untouch=())
        numbers, already = self._write_piece(session, first)
        if already:  # all of it was one transaction
            return numbers, True
        for rows in pieces[1:]:
            self._write_piece(session, Batch(rows=tuple((_number(no, numbers), row) for no, row in rows)))
        self._write_marks(session, batch, numbers)
        return numbers, False

    def _write_sparse(self, session: Session, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write a batch with gaps: what it requires, its rows, and the rest."""
        there = self._committed(session, batch)
        if there is not None:
            return there, True
        first = batch._replace(rows=(), chunks=(), touch=(), hide=(), tag=(), untag=(), untouch=(), gaps=False)
        numbers, already = self._write_piece(session, first)
        if already:
            raise Stale  # somebody else has made its threads, with other rows
        for rows in _pieces(batch.rows, lambda row: len(row[1].payload or b"")):
            self._append_rows(session, [(_number(no, numbers), row) for no, row in rows])
        for chunks in _pieces(batch.chunks, lambda chunk: len(chunk[1])):
            self.put(session, chunks)
        self._write_marks(session, batch, numbers)
        return numbers, False

    def _committed(self, session: Session, batch: Batch) -> tuple[int, ...] | None:
        """Return the numbers of the batch's threads if this very batch was committed before, else None."""
        if not batch.threads and not batch.rows:
            return None
        wanted = [(new.space, encoded(new.name), new.uid) for new in batch.threads]
        numbers = tuple(no for (no,) in session.run(self._same_threads, _columns(wanted, 3))) if wanted else ()
        if len(numbers) < len(wanted):
            return None
        rows = [(_number(no, numbers), row.seq, row.op_id) for no, row in batch.rows]
        ((count,),) = session.run(self._same_rows, _columns(rows, 3))
        return numbers if count == len(rows) else None

    def _write_marks(self, session: Session, batch: Batch, numbers: Sequence[int]) -> None:
        touch = batch.touch if batch.gaps else ()
        if touch or batch.hide or batch.show or batch.tag or batch.untag or batch.untouch:
            marks = Batch(
                touch=touch,
                hide=tuple((_number(no, numbers), seq) for no, seq in batch.hide),
                show=batch.show,
                tag=tuple((_number(no, numbers), seq, tag) for no, seq, tag in batch.tag),
                untag=tuple((_number(no, numbers), seq, tag) for no, seq, tag in batch.untag),
                untouch=tuple((_number(no, numbers), seq) for no, seq in batch.untouch),
            )
            self._write_piece(session, marks)

    def put(self, session: Session, chunks: Sequence[tuple[bytes, bytes]]) -> None:
        """Put chunks as a part of the transaction that is open."""
        _check_sizes(data for _, data in chunks)
        session.run(self._put, (*_columns(chunks, 2), ()))

    def rewrite(
        self, session: Session, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]], *, alone: bool
    ) -> int:
        """Replace rows, as the port says."""
        large = sum(len(data) for _, data in chunks) > PIECE
        if large:
            if alone:
                session.script("BEGIN ISOLATION LEVEL READ COMMITTED")
            for piece in _pieces(chunks, lambda chunk: len(chunk[1])):
                self.put(session, piece)
        replaced = 0
        for piece in _pieces(rows, lambda row: len(row.payload or b"")):
            _check_sizes(row.payload for row in piece)
            values = _columns([_values(row, keep=True) for row in piece], len(LETTERS))
            now = () if large else chunks
            ((count,),) = session.run(self._rewrite, (self._durable, thread, *values, *_columns(now, 2)))
            replaced += count
        if not rows and chunks and not large:
            self.put(session, chunks)
        if large and alone:
            session.script("COMMIT")
        return replaced

    def _arguments(self, batch: Batch) -> Iterator[Any]:
        yield self._durable
        threads = [
            (new.space, encoded(new.name), new.uid, encoded(new.agent), new.created_at, encoded(new.origin))
            for new in batch.threads
        ]
        yield from _columns(threads, 6)
        renew = [(no, encoded(new.agent), new.created_at, encoded(new.origin)) for no, new in batch.renew]
        yield from _columns(renew, 4)
        yield from _columns([(no, *_values(row)) for no, row in batch.rows], 1 + len(LETTERS))
        yield from _columns(batch.chunks, 2)
        yield batch.touch
        yield from _columns(batch.visible, 2)
        yield from _columns(batch.newest, 2)
        yield from _columns(batch.hide, 2)
        for marks in (batch.tag, batch.untag):
            yield from _columns([(no, seq, encoded(tag)) for no, seq, tag in marks], 3)


def is_one_row(batch: Batch) -> bool:
    """Tell whether the batch is a row and nothing else."""
    return len(batch.rows) == 1 and not (any(batch[:_ROWS]) or any(batch[_ROWS + 1 :]))


def _call(schema: str, function: str, count: int) -> str:
    return f"SELECT * FROM {schema}.{function}({', '.join(f'${at}' for at in range(1, count + 1))})"


def _values(row: Row, *, keep: bool = False) -> Sequence[Any]:
    """Return a row's fields as parameters; `keep` a payload that is None, else it becomes an empty one."""
    if row.label is None and row.payload is not None:
        return row
    values = list(row)
    values[_LABEL] = encoded(row.label)
    if row.payload is None and not keep:
        values[_PAYLOAD] = b""
    return values


def _columns(records: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Return records of that width as columns."""
    return list(zip(*records, strict=True)) if records else [()] * width


def _number(thread: int, created: Sequence[int]) -> int:
    """Return the number of a thread that a batch names: -1, -2 ... are those that it creates."""
    return created[-thread - 1] if -len(created) <= thread < 0 else thread


def _weight(batch: Batch) -> int:
    chunks = sum(len(data) for _, data in batch.chunks)
    return chunks + sum(len(row.payload or b"") + 300 for _, row in batch.rows)


def _pieces(items: Sequence[Any], size: Any) -> Iterator[list[Any]]:
    """Cut a list into parts that can be sent."""
    piece: list[Any] = []
    weight = 0
    for item in items:
        if piece and weight + size(item) > PIECE:
            yield piece
            piece, weight = [], 0
        piece.append(item)
        weight += size(item) + 300
    if piece:
        yield piece


def _check_sizes(payloads: Iterable[bytes | None]) -> None:
    for payload in payloads:
        if payload is not None and len(payload) > _MAX_VALUE:
            raise Invalid(
                f"a single value of {len(payload)} bytes is more than PostgreSQL takes: cut it into parts",
                code="invalid.size",
            )
