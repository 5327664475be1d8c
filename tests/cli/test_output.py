"""What tables, graphs and values look like: widths counted in cells, nothing that wraps, nothing that lies."""

import datetime as dt
import enum
import io
import json
import random
import sys
import time

import pytest
from rich.cells import cell_len

from backtrail.cli import output
from backtrail.cli.graph import ASCII, LINES, graph_lines
from backtrail.cli.output import Column, Output, age, brief, clean, count, cut, pad, plain, size, width
from backtrail.engine.graph import GraphNode
from backtrail.urls import shown
from tests.support.commands import run


def lines(nodes, signs=LINES):
    return [drawing for drawing, _, _ in graph_lines(nodes, signs)]


def node(name, parent, kind="v"):
    return GraphNode(name, parent, kind in "vh", kind == "h")


def test_a_straight_history_is_one_lane():
    assert lines([node("c", "b", "h"), node("b", "a"), node("a", None)]) == ["@", "●", "●"]


def test_rewound_branch_joins_its_origin():
    nodes = [node("d", "a", "h"), node("c", "b", "o"), node("b", "a", "o"), node("a", None)]
    assert lines(nodes) == ["@", "│ ○", "│ ○", "├─╯", "●"]
    assert lines(nodes, ASCII) == ["@", "| o", "| o", "|_/", "*"]


def test_several_branches_join_at_once():
    nodes = [node("e", "a", "h"), node("d", "a", "o"), node("c", "a", "o"), node("a", None)]
    assert lines(nodes) == ["@", "│ ○", "│ │ ○", "├─┴─╯", "●"]


def test_above_the_head_the_first_lane_is_empty():
    nodes = [node("c", "b", "o"), node("b", "a", "o"), node("a", None, "h")]
    assert lines(nodes) == ["  ○", "  ○", "╭─╯", "@"]


def test_lane_continues_below_a_page():
    assert lines([node("z", "y", "h"), node("x", "w", "o")]) == ["@", "│ ○"]


@pytest.mark.parametrize("seed", range(30))
def test_every_checkpoint_is_drawn_once(seed):
    dice = random.Random(seed)
    parents = {1: None} | {seq: dice.randint(max(1, seq - 4), seq - 1) for seq in range(2, 25)}
    head = dice.randint(1, 24)
    view, at = set(), head
    while at:
        view.add(at)
        at = parents[at]
    nodes = [
        GraphNode(str(s), str(p) if p else None, s in view, s == head) for s, p in sorted(parents.items(), reverse=True)
    ]
    found = [(drawing, each, place) for drawing, each, place in graph_lines(nodes, LINES)]
    assert [each for _, each, _ in found if each] == nodes
    for drawing, each, place in found:
        if each:
            assert drawing[place] == ("@" if each.is_head else "●" if each.in_view else "○")
            assert (place == 0) == each.in_view
            assert sum(drawing.count(sign) for sign in "@●○") == 1


@pytest.mark.parametrize("text", ["plain", "日本語の旅行", "e\u0301te\u0301", "👩‍👩‍👧 trip", "ｗｉｄｅ", "a日b本c語"])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 13])
def test_cut_text_fits_its_cells(text, most):
    assert cell_len(cut(text, most)) <= most
    assert cut(text, 99) == text
    assert cell_len(pad(cut(text, most), 20)) == 20


def test_cut_text_ends_with_an_ellipsis():
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"


@pytest.mark.parametrize("room", [40, 80, 200])
def test_table_lines_fit_into_the_terminal(room, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(room))
    columns = (Column("ID"), Column("LABEL"), Column("TAGS"), Column("WORDS", wide=True))
    Output().table(columns, [("1f83", "旅" * 40, "tag " * 30, "word " * 99), ("2a", "b", "", "short")])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert max(map(cell_len, printed)) <= room


def test_empty_columns_and_tables_are_left_out(monkeypatch, capsys):
    Output().table((Column("A"), Column("B")), [("x", ""), ("y", "")])
    assert capsys.readouterr().out == "A\nx\ny\n"
    Output().table((Column("A"), Column("B")), [])
    assert capsys.readouterr().out == ""


def test_control_characters_are_escaped():
    assert clean("a\x1b[31mb\nc\td\u202ee") == "a\\x1b[31mb c d\\u202ee"


def test_sizes_ages_and_counts_for_people(monkeypatch):
    assert [size(n) for n in (0, 999, 1000, 1_234_567, 5 * 10**12)] == ["0 B", "999 B", "1.0 KB", "1.2 MB", "5.0 TB"]
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    now = dt.datetime.fromtimestamp(1_000_000_000, dt.UTC)
    ages = [age(now - dt.timedelta(seconds=s)) for s in (0, 59, 60, 7200, 86_400 * 3, 86_400 * 15, 86_400 * 800, -5)]
    assert ages == ["0s", "59s", "1m", "2h", "3d", "2w", "2y", "0s"]
    assert age(None) == ""
    assert [count(1, "row"), count(2, "row"), count(1234, "row")] == ["1 row", "2 rows", "1,234 rows"]


def test_brief_is_one_line():
    assert brief({"a": 1}) == '{"a": 1}'
    assert brief("x\ny") == "x y"
    assert width(brief("word " * 10_000, 30)) <= 30
    assert brief("word " * 10_000, 30).endswith("…")


def test_instances_become_their_fields():
    class Colour(enum.StrEnum):
        RED = "red"

    assert plain({"c": Colour.RED, None: 1, (1, 2): 2}) == {"c": "red", "null": 1, "[1, 2]": 2}
    assert plain(Column("A")) == {
        "title": "A",
        "style": None,
        "right": False,
        "wide": False,
        "words": False,
        "spare": 0,
    }


def test_a_list_of_values_is_one_document(capsys):
    output.Output("json").values([{"a": 1}, {"b": [2]}])
    assert __import__("json").loads(capsys.readouterr().out) == [{"a": 1}, {"b": [2]}]
    output.Output("json").values([])
    assert capsys.readouterr().out == "[]\n"
    output.Output("jsonl").values([{"a": "\n"}, 2])
    assert capsys.readouterr().out == '{"a": "\\n"}\n2\n'


def test_progress_appears_only_in_a_terminal(monkeypatch, capsys):
    with output.Progress() as progress:
        progress("threads", 1200)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    with output.Progress() as progress:
        progress("threads", 1200)
        progress("threads", 1201)  # too soon
    assert capsys.readouterr().err == "\r\x1b[Kthreads 1,200 \r\x1b[K"
    for number, bar in ((1200, f"{'█' * 12}{'░' * 12}  50%  "), (2400, f"{'█' * 24} 100%  "), (2401, "")):
        with output.Progress(lambda: {"threads": 2400}) as progress:
            progress("threads", number)
        assert capsys.readouterr().err == f"\r\x1b[K{bar}threads {number:,} \r\x1b[K"


ODD = "a\x7f\x85\x9b\u2028\u2029\u202eb\U0001f600é"


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252"])
def test_json_output_is_always_valid(monkeypatch, form, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    out = output.Output(form)
    out.value({"x": ODD})
    out.values([{"x": ODD}])
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    if form == "jsonl":
        assert [json.loads(line) for line in text.splitlines()] == [{"x": ODD}] * 2
    else:
        decoder = json.JSONDecoder()
        first, end = decoder.raw_decode(text)
        assert (first, decoder.raw_decode(text[end:].strip())[0]) == ({"x": ODD}, [{"x": ODD}])


def test_without_a_terminal_only_words_are_cut(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    output.Output().table([Column("A", wide=True), Column("W", wide=True, words=True)], [("x" * 300, "y" * 300)])
    row = capsys.readouterr().out.splitlines()[1]
    assert "x" * 300 in row
    assert row.endswith("y…")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:hunter2@h:5432/db?sslpassword=hunter2&port=6000", "postgresql://u@h:5432/db?port=6000"),
        ("postgresql://u@/db?host=/tmp/x&password=hunter2&port=1", "postgresql://u@/db?host=/tmp/x&port=1"),
        ("Postgresql://u:hunter2@h/db", "Postgresql://u@h/db"),
        ("POSTGRES://u:hunter2@h/db", "POSTGRES://u@h/db"),
        (" postgresql://u:hunter2@h/db", "postgresql://u@h/db"),
        ("mysql://u:hunter2@h/db", "mysql://..."),
        ("sqlite://u:hunter2@h/x", "sqlite://..."),
        ("host=h password=hunter2", "..."),
        ("sqlite:////var/a@b.db", "sqlite:////var/a@b.db"),
        ("a@b.db", "a@b.db"),
    ],
)
def test_no_url_is_shown_with_its_password(tmp_path, monkeypatch, url, told):
    monkeypatch.chdir(tmp_path)
    assert shown(url) == told
    for words in (["where"], ["log", "x"], ["copy", "memory://", url]):
        done = run(*words, *([] if words[0] == "copy" else ["--store", url]), "--debug")
        assert "hunter2" not in done.out + done.err
    assert not [path for path in tmp_path.rglob("*") if "hunter2" in str(path)]
