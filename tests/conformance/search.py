"""Queries and messages: which texts match, and which values are messages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Invalid
from tests.conformance.base import Suite, chunks_read
from tests.support.effort import at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail import Hit, Store, Thread
    from tests.conformance.base import Opener


def say(store: Store, *texts: str, thread: str = "t") -> Thread[Any]:
    """Save messages with these texts to a thread, each with the number of the text as its id."""
    handle: Thread[Any] = store.thread(thread)
    if handle.latest() is None:
        handle.save({"messages": []})
    for n, text in enumerate(texts):
        handle.append("messages", {"role": "user", "content": text, "id": str(n)})
    return handle


def found(store: Store, query: str, **options: Any) -> list[str | None]:
    """Return the sorted ids of the matching messages."""
    return sorted((hit.message_id for hit in store.search(query, **options)), key=str)


def places(hits: Sequence[Hit]) -> list[tuple[str, int]]:
    """Return the threads and positions of hits."""
    return [(hit.conversation_id, hit.position) for hit in hits]


class Queries(Suite):
    """The meaning of queries."""

    def test_all_words_must_be_there_in_any_order(self, store: Store) -> None:
        say(store, "the red fox", "a fox that is red", "the red hen", "foxes are reddish")
        assert found(store, "red fox") == ["0", "1"]
        assert found(store, "fox   RED") == ["0", "1"]
        assert found(store, "fox blue") == []

    def test_quoted_words_stand_one_after_the_other(self, store: Store) -> None:
        say(store, "the red fox ran", "a fox red as that", "red, fox!", "red and fox")
        assert found(store, '"red fox"') == ["0", "2"]
        assert found(store, '"red fox" ran') == ["0"]
        assert found(store, '"red fox') == ["0", "2"]
        assert found(store, "\u201cred fox\u201d") == ["0", "2"]

    def test_a_star_ends_the_beginning_of_a_word(self, store: Store) -> None:
        say(store, "booking", "book", "rebook", "brook")
        assert found(store, "book*") == ["0", "1"]
        assert found(store, "book") == ["1"]
        assert found(store, "b*") == ["0", "1", "3"]
        assert found(store, '"boo"*') == ["0", "1"]
        assert found(store, "*book") == ["1"]

    def test_the_last_of_quoted_words_may_be_a_beginning(self, store: Store) -> None:
        say(store, "to be booked", "be booked to", "to bring")
        assert found(store, '"to b"*') == ["0", "2"]

    def test_word_with_punctuation_is_a_phrase(self, store: Store) -> None:
        say(store, "I don't know", "t don", "mail me@example.com", "example com me", "snake_case")
        assert found(store, "don't") == ["0"]
        assert found(store, "me@example.com") == ["2"]
        assert found(store, "snake case") == ["4"]
        assert found(store, "snake_case") == ["4"]

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Café NAÏVE", "cafe naive"),
            ("cafe\u0301", "CAFÉ"),
            ("Straße", "STRASSE"),
            ("İstanbul", "istanbul"),
            ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"),
            ("Ёлка", "елка"),
            ("\uff21\uff22\uff23 \u2460", "abc 1"),
            ("مُحَمَّد", "محمد"),
            ("हिन्दी भाषा", "भाषा"),
            ("한국어", "한*"),
        ],
    )
    def test_case_accents_and_forms_do_not_count(self, store: Store, text: str, query: str) -> None:
        say(store, text)
        assert found(store, query) == ["0"]
        assert found(store, query.rstrip("*"), contains=True) == ["0"]

    def test_a_sign_that_makes_another_letter_counts(self, store: Store) -> None:
        say(store, "が", "か", "हिन्दी", "हिन्द")
        assert found(store, "か") == ["1"]
        assert found(store, "हिन्दी") == ["2"]

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("私は東京に住んでいます", "東京"),
            ("我们明天去北京旅行", "北京旅"),
            ("ฉันอยากไปกรุงเทพ", "กรุงเทพ"),
            ("iPhone東京", "東京"),
        ],
    )
    def test_text_without_spaces_matches_any_part(self, store: Store, text: str, query: str) -> None:
        say(store, text, "something else", query[::-1])
        assert found(store, query) == ["0"]
        assert found(store, query, contains=True) == ["0"]

    def test_emoji_are_words(self, store: Store) -> None:
        say(store, "party 🎉", "party", "I ❤️ it")
        assert found(store, "🎉") == ["0"]
        assert found(store, "party 🎉") == ["0"]
        assert found(store, "❤") == ["2"]

    def test_contains_searches_the_literal_text(self, store: Store) -> None:
        say(store, "Booking.com: a hotel", "booking com", "hot ELEments", "100% - done!", "e\0f")
        assert found(store, "ooking.c", contains=True) == ["0"]
        assert found(store, "OOKING", contains=True) == ["0", "1"]
        assert found(store, "t ele", contains=True) == ["2"]
        assert found(store, "% - d", contains=True) == ["3"]
        assert found(store, "!", contains=True) == ["3"]
        assert found(store, "e\0f", contains=True) == ["4"]
        assert found(store, "hotel a", contains=True) == []
        assert found(store, '"a hotel"', contains=True) == []
        assert found(store, "book*", contains=True) == []

    def test_contains_finds_parts_of_very_many_words(self, store: Store) -> None:
        thread = store.thread("t")
        thread.save({"messages": [f"x{n}y z{n}" for n in range(1500)]})
        assert len(store.search("x7", contains=True, limit=2000)) == 111
        assert sorted(hit.position for hit in store.search("99y z", contains=True, limit=100)) == [
            n for n in range(1500) if n % 100 == 99
        ]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ('fox AND OR NOT NEAR("a b", 2)', ["1"]),
            ("content:fox", ["1"]),
            ("^fox", ["0", "1"]),
            ("fox)", ["0", "1"]),
            ("{fox}: + - ' \\ ; --", ["0", "1"]),
            ("'; DROP TABLE message; --", ["1"]),
            ("%s %d ${x}", ["1"]),
            ("fox & | ! <-> :*", ["0", "1"]),
            ("\ud800 fox \udfff", ["0", "1"]),
            ("fox\0bar", ["1"]),
        ],
    )
    def test_nothing_in_a_query_is_an_operator(self, store: Store, query: str, expected: list[str]) -> None:
        say(store, "the fox", query, "nothing of it")
        assert found(store, query) == expected
        assert found(store, query, contains=True) == ["1"]

    def test_a_query_of_ten_thousand_characters_is_answered(self, store: Store) -> None:
        say(store, "a b c " * 2000, "a b")
        assert found(store, "a b c " * 1666) == ["0"]
        assert found(store, '"' + "a b c " * 1666 + '"') == ["0"]
        assert found(store, "x" * 10_000) == []
        assert found(store, ("c a b " * 1666)[:9999], contains=True) == ["0"]
        with pytest.raises(Invalid):
            store.search("a" * 10_001)

    def test_a_query_of_too_many_words_is_refused(self, store: Store) -> None:
        words = [f"w{number}" for number in range(257)]
        say(store, " ".join(words), " ".join(words[:-2]))
        assert found(store, " ".join(words[:256])) == ["0"]
        assert found(store, f'"{" ".join(words)}"') == ["0"]
        assert found(store, " ".join(words), contains=True) == ["0"]
        with pytest.raises(Invalid, match="at most 256") as caught:
            store.search(" ".join(words))
        assert caught.value.code == "invalid.query"

    def test_long_phrase_costs_as_much_as_a_short_one(self, store: Store) -> None:
        say(store, *(f"b a {number}" for number in range(500)))
        store.search("a")
        for query in ('"a b"', f'"{"a b " * 1500}"', f'"{"a " * 3000}"'):
            with at_most(200_000):
                assert found(store, query) == []

    @pytest.mark.parametrize("query", ["", " ", "\n\t", "...", "*", '"', '""', '"*"*', "\0", "\ud800", "-"])
    def test_a_query_without_a_word_is_refused(self, store: Store, query: str) -> None:
        say(store, 'a ... * " \0 -')
        with pytest.raises(Invalid) as caught:
            store.search(query)
        assert caught.value.code == "invalid.query"

    def test_only_contains_looks_for_signs_and_not_for_nothing(self, store: Store) -> None:
        say(store, "what?!", "what")
        assert found(store, "?!", contains=True) == ["0"]
        with pytest.raises(Invalid):
            store.search("", contains=True)

    @pytest.mark.parametrize(
        "options",
        [
            {"query": None},
            {"query": b"fox"},
            {"limit": -1},
            {"limit": 1.5},
            {"limit": True},
            {"order": "oldest"},
            {"kind": "nothing"},
            {"agent": ""},
            {"thread": ""},
            {"after": 3},
            {"after": "x"},
            {"after": "1:2"},
        ],
    )
    def test_bad_arguments_are_refused(self, store: Store, options: dict[str, Any]) -> None:
        say(store, "fox")
        with pytest.raises(Invalid):
            store.search(**({"query": "fox"} | options))


class Messages(Suite):
    """Which values are messages."""

    def test_texts_in_parts_and_plain_strings_are_found(self, store: Store, thread: Thread[Any]) -> None:
        thread.save(
            {
                "messages": [
                    {
                        "content": [{"type": "text", "text": "red fox"}, {"type": "image", "url": "fox"}, "hen"],
                        "id": "0",
                    },
                    "fox alone",
                    {"content": {"text": "fox"}},
                    {"text": "fox"},
                    7,
                    None,
                    ["fox"],
                    {"content": b"fox"},
                    {"content": ""},
                ],
            }
        )
        assert places(store.search("fox")) == [("t", 1), ("t", 0)]
        assert places(store.search('"fox hen"')) == [("t", 0)]
        assert places(store.search("image")) == []

    def test_only_the_list_at_the_top_counts(self, store: Store) -> None:
        store.thread("deep").save({"inner": {"messages": ["fox"]}, "fox": "fox"})
        store.thread("list").save(["fox"])
        store.thread("text").save("fox")
        store.thread("dict").save({"messages": {"a": "fox"}})
        store.thread("str").save({"messages": "fox"})
        store.thread("none").save(None)
        store.thread("tuple").save({"messages": ("fox",)})
        assert places(store.search("fox")) == [("tuple", 0)]

    def test_instances_of_classes_count_and_need_not_be_known(self, opener: Opener) -> None:
        @dataclasses.dataclass
        class Line:
            content: str
            role: Role
            id: uuid.UUID
            created_at: dt.datetime

        @dataclasses.dataclass
        class State:
            messages: list[Line]

        class Role(enum.Enum):
            USER = "user"

        when = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
        with opener() as store:
            store.thread("t", State).save(State([Line("a fox", Role.USER, uuid.UUID(int=7), when)]))
        with opener() as store:
            (hit,) = store.search("fox")
            assert (hit.role, hit.message_id, hit.created_at) == ("user", str(uuid.UUID(int=7)), when)

    @pytest.mark.parametrize("size", [5_000, 100_000, 262_100])
    def test_long_messages_match_in_their_first_256_kb(self, store: Store, size: int) -> None:
        text = "é " * (size // 3) + " near " + "word " * 60_000 + " far"
        say(store, text, "x")
        store.thread("parts").save({"messages": [{"content": [{"text": text}, {"text": "later"}], "role": "user"}]})
        assert places(store.search("near")) == [("parts", 0), ("t", 0)]
        assert store.search("near")[0].role == "user"
        assert store.search("far") == store.search("far", contains=True) == store.search("later") == []
        assert found(store, "near w", contains=True, thread="t") == ["0"]

    def test_a_message_of_twenty_megabytes_is_not_read_whole(self, store: Store) -> None:
        say(store, "first " + "".join(f"line {n}\n" for n in range(1_600_000)))
        store.thread("parts").save(
            {"messages": [{"content": [{"text": "first " + f"{n} " * 40_000} for n in range(50)]}]}
        )
        with chunks_read(store) as asked:
            assert len(store.search("first")) == 2
        assert len(asked) < 60

    def test_lone_surrogates_and_nul_in_texts_ids_and_roles(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [{"content": "a \ud800 fox\0", "id": "\ud800\0", "role": "\udfff"}]})
        (hit,) = store.search("fox")
        assert (hit.message_id, hit.role, hit.snippet) == ("\ud800\0", "\udfff", "a \ud800 fox\0")

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC), dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)),
            (dt.datetime(2026, 5, 1, 12), dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)),
            ("2026-05-01T14:00:00+02:00", dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)),
            ("2026-05-01T12:00:00Z", dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)),
            (0, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
            (1.5, dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)),
            (dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
            ("yesterday", None),
            (1e300, None),
            (float("nan"), None),
            (True, None),
            ([], None),
        ],
    )
    @pytest.mark.parametrize("name", ["created_at", "timestamp"])
    def test_a_message_may_say_when_it_was_made(
        self, store: Store, thread: Thread[Any], name: str, given: Any, expected: dt.datetime | None
    ) -> None:
        saved = thread.save({"messages": [{"content": "fox", name: given}]})
        assert store.search("fox")[0].created_at == (expected or saved.created_at)
