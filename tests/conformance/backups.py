"""Backups: a separate store with a snapshot of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backtrail import Conflict, Invalid
from tests.conformance.base import Suite, changing, fill, head, messages
from tests.support.sample_store import everything, furnish
from tests.support.sealing import open_copy

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail import Store


def size_of(path: Path) -> int:
    """Return the size of a file, or of those in a directory."""
    return sum(each.stat().st_size for each in path.iterdir()) if path.is_dir() else path.stat().st_size


class Backups(Suite):
    """`backup`."""

    def test_backup_is_complete_and_writable(self, store: Store, tmp_path: Path) -> None:
        furnish(store)
        wanted = everything(store)
        path = tmp_path / "backups" / "backup"
        assert store.backup(path) == size_of(path)
        for read_only in (True, False):
            with open_copy(store, path, read_only=read_only) as saved:
                assert everything(saved) == wanted
                assert saved.verify().ok
        with open_copy(store, path) as saved:
            assert [hit.conversation_id for hit in saved.search("later")] == ["c"]
            assert saved.thread("trip").append("messages", "one more").step == head(saved.thread("trip")).step
            saved.gc()
        assert everything(store) == wanted
        assert store.verify().ok
        assert [each.name for each in path.parent.iterdir()] == ["backup"]

    def test_a_backup_beside_writers_is_one_moment(self, store: Store, tmp_path: Path) -> None:
        done, meanwhile = changing(store)
        before = everything(store)
        store.backup(tmp_path / "backup", progress=meanwhile)
        assert len(done) == 1
        assert everything(store) != before
        with open_copy(store, tmp_path / "backup") as saved:
            assert everything(saved) == before
            assert head(saved.thread("c")).state == {"messages": messages(300)}
            assert saved.verify().ok

    def test_an_empty_store_has_a_backup(self, store: Store, tmp_path: Path) -> None:
        store.backup(tmp_path / "backup")
        with open_copy(store, tmp_path / "backup") as saved:
            assert everything(saved) == {}
            saved.thread("t").save({"n": 1})

    def test_existing_files_are_not_changed(self, store: Store, tmp_path: Path) -> None:
        fill(store.thread("t"), 3)
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to("nowhere")
        (tmp_path / "directory").mkdir()
        for name in ("file", "link"):
            with pytest.raises(Conflict) as conflict:
                store.backup(tmp_path / name)
            assert conflict.value.code == "conflict.exists"
        with pytest.raises(Invalid) as invalid:
            store.backup(tmp_path / "directory")
        assert invalid.value.code == "invalid.argument"
        assert {each.name for each in tmp_path.iterdir()} >= {"file", "link", "directory"}
        assert (tmp_path / "file").read_text() == "mine"
        assert not [*(tmp_path / "directory").iterdir()]

    def test_a_file_that_appears_meanwhile_is_not_replaced(self, store: Store, tmp_path: Path) -> None:
        fill(store.thread("t"), 3)
        path = tmp_path / "backups" / "mine"
        for make in (lambda: path.write_text("theirs"), path.mkdir):
            with pytest.raises(Conflict) as caught:
                store.backup(path, progress=lambda *_, make=make: None if path.exists() else make())
            assert caught.value.code == "conflict.exists"
            assert [each.name for each in path.parent.iterdir()] == ["mine"]
            if path.is_dir():
                path.rmdir()
            else:
                assert path.read_text() == "theirs"
                path.unlink()
