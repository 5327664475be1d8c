"""Names and listings: ids are data, threads are listed by activity, invalid arguments are refused without a trace."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import TYPE_CHECKING, Any, Final

import pytest

from backtrail import AgentState, Conflict, Conversation, Invalid, NotFound, Thread
from tests.conformance.base import Clock, Suite, fill, head, states

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from tests.conformance.base import Opener

HOSTILE: Final = (
    *(
        "a",
        "a_b",
        "ab",
        "A",
        "a ",
        " a",
        "a.b",
        "../x",
        "..",
        ".",
        "/",
        "/etc/passwd",
        "C:\\x",
        "CON",
        "a/b",
        "a%",
        "%",
        "_",
    ),
    *(
        "\0",
        "a\0b",
        "\n",
        "é",
        "e\u0301",
        "😀",
        "\ud800",
        "\udfff\ud800",
        "\u202e",
        "'; DROP TABLE row; --",
        '"',
        "@",
        "@-",
    ),
    *("latest", "NULL", "0", "1", "x" * 512, "x" * 511, "é" * 512, "😀" * 512, "\ud800" * 512),
)


class Names(Suite):
    """Any string of 1 to 512 characters is an id, and no two of them meet."""

    def test_hostile_ids_are_only_data(self, opener: Opener) -> None:
        with opener() as store:
            for n, name in enumerate(HOSTILE):
                store.thread(name).save({"n": n, "name": name})
        with opener() as store:
            assert {info.id for info in store.threads()} == set(HOSTILE)
            for n, name in enumerate(HOSTILE):
                made = head(store.thread(name))
                assert (made.state, made.thread_id, made.step) == ({"n": n, "name": name}, name, 1)
            for name in HOSTILE[::2]:
                assert store.thread(name).delete() is True
            store.gc()
            assert {info.id for info in store.threads()} == set(HOSTILE[1::2])
            for name in HOSTILE[1::2]:
                assert head(store.thread(name)).state["name"] == name
            for name in HOSTILE[::2]:
                assert store.thread(name).save({"again": 1}).step == 1

    @pytest.mark.parametrize("name", ["../x", "a_b", "\0", "\ud800", "😀" * 512])
    def test_forks_agents_labels_and_tags_take_hostile_names_too(self, opener: Opener, name: str) -> None:
        with opener() as store:
            thread: Thread[Any] = store.thread("t", agent=name)
            made = thread.save({"n": 1}, label=name, tags=[name], metadata={"name": name})
            thread.fork(name)
        with opener() as store:
            assert head(store.thread(name)).state == {"n": 1}
            assert store.thread("t").load(name) == made
            assert store.thread("t").find(label=name, tag=name) == [made]
            assert store.thread("t").load("@").metadata == {"name": name}
            assert {info.id for info in store.threads(agent=name)} == {"t", name}
            assert store.thread("t").untag("@", name).tags == ()

    @pytest.mark.parametrize("name", ["", "x" * 513, "😀" * 513, None, 5, b"a", ["a"], True])
    def test_invalid_id_is_refused(self, store: Store, thread: Thread[Any], name: Any) -> None:
        thread.save({"n": 1})
        with pytest.raises(Invalid):
            store.thread(name)
        with pytest.raises(Invalid):
            thread.fork(name)
        if name is not None:
            with pytest.raises(Invalid):
                store.thread("x", agent=name)
        assert [info.id for info in store.threads()] == ["t"]

    def test_each_kind_has_its_own_name_space(self, store: Store) -> None:
        for space in ("thread", "agent", "conversation", "run"):
            other: Thread[Any] = Thread(store._engine, space, "x", agent="x")
            other.save({"space": space})
        for space in ("thread", "agent", "conversation", "run"):
            thread: Thread[Any] = Thread(store._engine, space, "x", agent="x")
            assert states(thread.history()) == [{"space": space}]
            assert [(info.id, info.kind) for info in store.threads(kind=space)] == [("x", space)]
        assert [info.kind for info in store.threads()] == ["thread"]
        assert store.thread("x").delete() is True
        assert [info.id for info in store.threads(kind="run")] == ["x"]
        assert store.stats().threads == 0


class Listing(Suite):
    """`threads`."""

    @pytest.fixture
    def clock(self, store: Store) -> Clock:
        return Clock(store)

    def test_the_newest_activity_comes_first(self, store: Store, clock: Clock) -> None:
        for name in ("a", "b", "c"):
            fill(store.thread(name), 2)
            clock.advance(1)
        assert [info.id for info in store.threads()] == ["c", "b", "a"]
        store.thread("a").save({"n": 3})
        clock.advance(1)
        assert [info.id for info in store.threads()] == ["a", "c", "b"]
        store.thread("b").rewind(1)
        assert [info.id for info in store.threads()] == ["b", "a", "c"]

    def test_thread_info_shows_head_and_counts(self, store: Store, clock: Clock) -> None:
        began = clock.now
        thread: Thread[Any] = store.thread("t", agent="planner")
        a, b, c = fill(thread, 3)
        clock.advance(5)
        thread.delete_checkpoint(a)
        thread.rewind(b)
        (info,) = store.threads()
        assert (info.id, info.kind, info.agent, info.forked_from) == ("t", "thread", "planner", None)
        assert (info.step, info.checkpoints, info.head_id) == (2, 1, b.id)
        assert info.created_at == dt.datetime.fromtimestamp(began / 1e6, dt.UTC)
        assert info.updated_at == info.created_at + dt.timedelta(seconds=5)
        assert c.id != info.head_id
        assert store.info("t") == info
        assert [store.info("t", kind=kind) for kind in ("agent", "conversation", "run")] == [None] * 3
        with store.transaction():
            thread.save({})
            now = store.info("t")
            assert now is not None
            assert (now.checkpoints, now.step) == (2, 3)
            assert len(thread) == 2
        thread.delete()
        assert store.info("t") is None
        assert store.info("nobody") is None
        with pytest.raises(Invalid):
            store.info("t", kind="odd")

    def test_counts_follow_the_view(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        assert len(thread) == 0
        for n in range(40):
            thread.save({"n": n})
            if n % 3 == 2:
                thread.rewind("@~1")
            if n % 7 == 6:
                thread.delete_checkpoint("@")
            in_view = sum(1 for _ in thread.history())
            info = store.info("t")
            assert info is not None
            assert (len(thread), info.checkpoints) == (in_view, in_view)

    def test_a_prefix_is_taken_literally(self, store: Store) -> None:
        names = ("a", "ab", "a_b", "a%b", "aB", "b", "a\0", "a\U0010ffff", "a\ud800", "é")
        for name in names:
            store.thread(name).save({})
        for prefix in ("a", "a_", "a%", "ab", "A", "a\0", "a\U0010ffff", "a\ud800", "é", "x", ""):
            assert {info.id for info in store.threads(prefix=prefix)} == {n for n in names if n.startswith(prefix)}

    def test_agents_are_separate(self, store: Store) -> None:
        store.thread("a", agent="x").save({})
        store.thread("b", agent="y").save({})
        store.thread("c").save({})
        assert [info.id for info in store.threads(agent="x")] == ["a"]
        assert [info.id for info in store.threads(agent="nobody")] == []
        assert [info.id for info in store.threads(agent="y", prefix="a")] == []
        assert len(list(store.threads())) == 3

    def test_pages_go_on_where_the_last_one_ended(self, store: Store, clock: Clock) -> None:
        for n in range(7):
            store.thread(f"t{n}").save({})
            clock.advance(n % 2)  # some at the same moment
        whole = list(store.threads())
        assert len(whole) == 7
        for by_id in (True, False):
            seen: list[str] = []
            after: Any = None
            while page := list(store.threads(limit=3, after=after)):
                seen += [info.id for info in page]
                after = page[-1].id if by_id else page[-1]
            assert seen == [info.id for info in whole]
        assert list(store.threads(limit=0)) == []
        assert list(store.threads(limit=99)) == whole

    def test_many_threads_are_listed_whole(self, store: Store) -> None:
        for n in range(450):
            store.thread(f"t{n}").save(n)
        assert {info.id for info in store.threads()} == {f"t{n}" for n in range(450)}
        assert len(list(store.threads(limit=250))) == 250

    def test_a_place_that_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            list(store.threads(after="nothing"))

    @pytest.mark.parametrize(
        "options",
        [
            {"kind": "x"},
            {"kind": 5},
            {"limit": -1},
            {"limit": True},
            {"limit": "1"},
            {"after": 5},
            {"prefix": 5},
            {"agent": 5},
        ],
    )
    def test_listing_by_nonsense_is_invalid(self, store: Store, options: dict[str, Any]) -> None:
        store.thread("t").save({})
        with pytest.raises(Invalid):
            list(store.threads(**options))


def _cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _deep(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


def _step(thread: Thread[Any], **options: Any) -> None:
    with thread.step(**options):
        pass


class _Reordering(dict[str, int]):
    """A subclass of a plain type."""


BAD: Final[dict[str, tuple[type[Exception], Callable[[Thread[Any]], object]]]] = {
    "an object": (Invalid, lambda t: t.save(object())),
    "an object deep inside": (Invalid, lambda t: t.save({"a": [{"b": object()}]})),
    "a function": (Invalid, lambda t: t.save({"f": len})),
    "a class": (Invalid, lambda t: t.save({"f": dict})),
    "a subclass of dict": (Invalid, lambda t: t.save(_Reordering())),
    "a generator": (Invalid, lambda t: t.save({"g": (n for n in range(3))})),
    "a state that contains itself": (Invalid, lambda t: t.save(_cyclic())),
    "a state nested too deep": (Invalid, lambda t: t.save(_deep(100_000))),
    "a number as label": (Invalid, lambda t: t.save({}, label=5)),  # type: ignore[arg-type]
    "an empty label": (Invalid, lambda t: t.save({}, label="")),
    "a label too long": (Invalid, lambda t: t.save({}, label="x" * 513)),
    "a label that looks like a ref": (Invalid, lambda t: t.save({}, label="@-")),
    "a str as tags": (Invalid, lambda t: t.save({}, tags="abc")),  # type: ignore[arg-type]
    "a number as tags": (Invalid, lambda t: t.save({}, tags=5)),  # type: ignore[arg-type]
    "a number among tags": (Invalid, lambda t: t.save({}, tags=["a", 5])),  # type: ignore[list-item]
    "an empty tag": (Invalid, lambda t: t.save({}, tags=[""])),
    "a tag too long": (Invalid, lambda t: t.save({}, tags=["x" * 513])),
    "metadata that is no dict": (Invalid, lambda t: t.save({}, metadata=[1])),  # type: ignore[arg-type]
    "metadata with odd keys": (Invalid, lambda t: t.save({}, metadata={1: 2})),  # type: ignore[dict-item]
    "metadata that cannot be kept": (Invalid, lambda t: t.save({}, metadata={"a": object()})),
    "an unknown kind": (Invalid, lambda t: t.save({}, kind="other")),
    "no kind": (Invalid, lambda t: t.save({}, kind=None)),  # type: ignore[arg-type]
    "an expectation that is none": (Invalid, lambda t: t.save({}, expect="@x")),
    "a stale expectation": (Conflict, lambda t: t.save({}, expect=t.load(1))),
    "append without items": (Invalid, lambda t: t.append("l")),
    "append of an object": (Invalid, lambda t: t.append("l", object())),
    "append to a number": (Invalid, lambda t: t.append("n", 1)),
    "append to nothing": (NotFound, lambda t: t.append("nothing", 1)),
    "append of a number to text": (Invalid, lambda t: t.append("s", 1)),
    "a path that cannot be read": (Invalid, lambda t: t.append("a..b", 1)),
    "an open bracket": (Invalid, lambda t: t.set("l[", 1)),
    "a number as path": (Invalid, lambda t: t.set(5, 1)),  # type: ignore[arg-type]
    "no path": (Invalid, lambda t: t.set(None, 1)),  # type: ignore[arg-type]
    "a list as key": (Invalid, lambda t: t.set(([],), 1)),
    "set of an object": (Invalid, lambda t: t.set("n", object())),
    "set behind the end": (NotFound, lambda t: t.set("l[7]", 1)),
    "set inside a number": (NotFound, lambda t: t.set("n.x", 1)),
    "delete_at nothing": (NotFound, lambda t: t.delete_at("nothing")),
    "delete_at the state": (Invalid, lambda t: t.delete_at("")),
    "a step with a bad label": (Invalid, lambda t: _step(t, label=5)),
    "update without a result": (Invalid, lambda t: Thread(t._engine, "thread", "no").update(lambda _: None)),
    "update with fewer than no retries": (Invalid, lambda t: t.update(lambda s: s, retries=-1)),
    "load of None": (Invalid, lambda t: t.load(None)),
    "load of nothing": (NotFound, lambda t: t.load("nothing")),
    "rewind to nothing": (NotFound, lambda t: t.rewind("nothing")),
    "rewind to True": (Invalid, lambda t: t.rewind(True)),
    "redo without an undo": (Invalid, lambda t: t.redo()),
    "fork of nothing": (NotFound, lambda t: t.fork("x", at="nothing")),
    "fork onto itself": (Conflict, lambda t: t.fork(t.id)),
    "fork without a name": (Invalid, lambda t: t.fork("")),
    "tag without tags": (Invalid, lambda t: t.tag("@")),
    "tag with a number": (Invalid, lambda t: t.tag("@", 5)),  # type: ignore[arg-type]
    "tag nothing": (NotFound, lambda t: t.tag("nothing", "x")),
    "untag without tags": (Invalid, lambda t: t.untag("@")),
    "prune without a policy": (Invalid, lambda t: t.prune()),
    "prune to a negative number": (Invalid, lambda t: t.prune(keep_last=-1)),
    "prune by an endless age": (Invalid, lambda t: t.prune(older_than=float("inf"))),
    "find without anything": (Invalid, lambda t: t.find()),
    "history with a negative limit": (Invalid, lambda t: list(t.history(limit=-1))),
    "history of an unknown kind": (Invalid, lambda t: list(t.history(kind="x"))),
    "history before nothing": (NotFound, lambda t: list(t.history(before="nothing"))),
    "history with odd metadata": (Invalid, lambda t: list(t.history(metadata=5))),  # type: ignore[arg-type]
    "diff with nothing": (NotFound, lambda t: t.diff("nothing")),
    "diff with None": (Invalid, lambda t: t.diff(None)),
    "delete_checkpoint None": (Invalid, lambda t: t.delete_checkpoint(None)),
}


class BadInput(Suite):
    """Wrong arguments raise the right error class and leave no trace."""

    @pytest.mark.parametrize("what", list(BAD))
    def test_it_is_refused_and_nothing_has_changed(self, store: Store, thread: Thread[Any], what: str) -> None:
        thread.save({"n": 0})
        thread.save({"l": [1], "n": 1, "s": "x"}, label="kept", tags=["kept"])
        before = _held(store, thread)
        expected, call = BAD[what]
        with pytest.raises(expected):
            call(thread)
        assert _held(store, thread) == before
        assert head(thread).tags == ("kept",)
        assert thread.append("l", 2).state == {"l": [1, 2], "n": 1, "s": "x"}
        assert thread.save({"n": 2}).step == 4
        assert store.verify().ok


@enum.unique
class _Colour(enum.Enum):
    RED = 1


class Slips(Suite):
    """One thing where several are taken, or a misspelt name: taken as it must be meant, or refused with the remedy."""

    @pytest.mark.parametrize("write", [lambda t, tags: t.save(2, tags=tags), lambda t, tags: t.set((), 2, tags=tags)])
    def test_one_string_as_tags_is_refused_with_the_list(
        self, thread: Thread[Any], write: Callable[[Thread[Any], str], object]
    ) -> None:
        thread.save(1)
        with pytest.raises(Invalid, match=r"tags=\['draft'\]"):
            write(thread, "draft")
        assert head(thread).state == 1

    def test_id_of_another_kind_is_named_in_the_error(self, store: Store) -> None:
        store.agents.save(AgentState("data agent", "n", "t"))
        with pytest.raises(NotFound, match=r"id of an agent: use store\.agents\.thread\('data agent'\)"):
            store.thread("data agent").load()

    def test_string_as_keep_tagged_is_refused_with_a_hint(self, store: Store, thread: Thread[Any]) -> None:
        thread.save(1)
        for prune in (store.prune, thread.prune):
            with pytest.raises(Invalid, match=r"keep_tagged=\['draft'\]"):
                prune(keep_last=1, keep_tagged="draft")

    def test_one_string_as_tags_of_a_conversation_is_refused(self, store: Store) -> None:
        with pytest.raises(Invalid, match=r"\['draft'\]"):
            Conversation("a", tags="draft")
        store.conversations.save(Conversation("a", id="c"))
        with pytest.raises(Invalid, match=r"\['draft'\]"):
            store.conversations.update("c", tags="draft")

    def test_a_list_among_tags_is_refused_by_name(self, thread: Thread[Any]) -> None:
        thread.save(1)
        with pytest.raises(Invalid, match=r"a tag must be a string of 1 to 512 characters, not \['a', 'b'\]"):
            thread.tag("@", ["a", "b"])  # type: ignore[arg-type]

    def test_a_misspelt_label_that_is_expected_is_named(self, thread: Thread[Any]) -> None:
        thread.save(1, label="start")
        with pytest.raises(Conflict, match="no checkpoint with the label 'strat'") as caught:
            thread.save(2, expect="strat")
        assert "'start'" in str(caught.value)
        assert "has changed" not in str(caught.value)
        assert (caught.value.code, caught.value.expected) == ("conflict.stale", "strat")
        with pytest.raises(Conflict, match="no checkpoint with the label 'strat'"):
            thread.fork("other").save(2, expect="strat")
        thread.save(2, label="middle")
        with pytest.raises(Conflict, match="has changed"):
            thread.save(3, expect="start")

    def test_expecting_a_label_of_a_missing_thread_conflicts(self, store: Store) -> None:
        with pytest.raises(Conflict, match="there is no thread 'none'"):
            store.thread("none").save(1, expect="start")

    def test_one_ref_to_keep_is_one_ref(self, thread: Thread[Any]) -> None:
        made = fill(thread, 4)
        thread.tag(made[0], "x")
        for keep in ("x", 1, made[0], made[0].id):
            report = thread.prune(keep_last=1, keep_tagged=False, keep=keep, dry_run=True)
            assert [checkpoint for checkpoint, _ in report.removed] == [made[1].id, made[2].id]

    def test_one_string_as_changed_keys_is_refused(self, thread: Thread[Any]) -> None:
        thread.save({"name": 1})
        with pytest.raises(Invalid, match=r"changed=\['name'\]"):
            thread.save({"name": 2}, changed="name")
        assert head(thread).state == {"name": 1}

    def test_labels_and_tags_that_are_no_strings_are_refused(self, thread: Thread[Any]) -> None:
        thread.save(1)
        for wrong in ({"label": 5}, {"label": [5]}, {"tag": ["a"]}, {"tag": 5}):
            with pytest.raises(Invalid, match="string"):
                thread.find(**wrong)
        for wrong in ({"label": 5}, {"tag": ["a"]}):
            with pytest.raises(Invalid, match="string"):
                thread.history(**wrong)

    def test_one_class_as_types_is_one_class(self, opener: Opener) -> None:
        with opener(types=_Colour) as store:
            store.thread("t").save({"c": _Colour.RED})
            assert head(store.thread("t")).state == {"c": _Colour.RED}
        with opener() as store:
            assert head(store.thread("t", types=_Colour)).state == {"c": _Colour.RED}

    @pytest.mark.parametrize("types", [5, "x", None])
    def test_types_that_are_no_classes_are_refused(self, opener: Opener, types: Any) -> None:
        with pytest.raises(Invalid, match="types="):
            opener(types=types).close()


def _held(store: Store, thread: Thread[Any]) -> tuple[Any, ...]:
    """Return a store's stats without its size on disk, which a vacuum may change at any time."""
    stats = dataclasses.replace(store.stats(), stored_bytes=0)
    return list(thread.history()), stats, [info.id for info in store.threads()]
