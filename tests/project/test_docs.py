"""The README, the docs, the examples and the demo are run, or compared with the code.

The blocks marked `python` of a page run in one namespace and in an empty directory. A block must print exactly the
block marked `text` right below it; without one it must print nothing. The server of $BACKTRAIL_URL runs the blocks
marked `sql` of its page.
"""

import ast
import contextlib
import gc
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
from blake3 import blake3

import backtrail
from backtrail import AgentState, errors
from backtrail.engine.schema import upcast as versions
from tests.support.servers import server

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(backtrail.__file__).resolve().parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEMO = ROOT / "examples" / "demo"
ELSEWHERE = {
    *("a2a.md", "a2a_tasks.py", "adk.md", "adk_session.py", "agent-framework.md", "agent_framework_workflow.py"),
    *("strands.md", "strands_session.py"),
}
"""Run in an environment of their own: `make test-frameworks`."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in ELSEWHERE]
SERVED = ("postgresql.md", "operations.md")
"""Pages that use a PostgreSQL server."""
LANGUAGES = {"python", "text", "console", "json", "mermaid", "sql"}
FENCED = re.compile(r"(?ms)^```.*?^```$")


# -- pages ------------------------------------------------------------------------------------------


class Block(NamedTuple):
    language: str
    line: int
    """Of the first line inside."""
    text: str
    follows: bool
    """Whether only blank lines are between it and the block before."""


def blocks(text):
    found, start, last = [], None, 0
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = at
            continue
        assert line == "```", f"line {at + 1}: a block begins inside a block"
        follows = bool(found) and not any(map(str.strip, lines[last + 1 : start]))
        found.append(Block(lines[start][3:], start + 2, "\n".join(lines[start + 1 : at]) + "\n", follows))
        start, last = None, at
    assert start is None, f"line {start + 1}: a block without an end"
    return found


def run(page, tmp_path, monkeypatch):
    """Run the Python blocks of a page; give each with what it printed and what the page says that it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKTRAIL_URL", raising=False)
    if page.name in SERVED:
        monkeypatch.setenv("BACKTRAIL_URL", server().url)
    monkeypatch.setattr(versions, "_UPCASTERS", weakref.WeakKeyDictionary())  # a page may declare some for our classes
    monkeypatch.setattr(versions, "_SCHEMAS", weakref.WeakKeyDictionary())
    module = types.ModuleType(f"page_{page.stem}")  # a real one, since annotations are looked up in it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listed = blocks(page.read_text())
    for block, after in zip(listed, [*listed[1:], None], strict=False):  # a page may have no block
        if block.language == "sql":
            server().execute(block.text)
        if block.language == "json":
            json.loads(block.text)
        if block.language != "python":
            continue
        shown = after.text if after is not None and after.follows and after.language == "text" else ""
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, vars(module))
        yield block, printed.getvalue(), shown


@pytest.fixture(autouse=True)
def nothing_is_left_of_a_page(request):
    if "page" not in request.fixturenames or "tmp_path" not in request.fixturenames:
        yield  # it runs nothing of a page
        return
    gc.freeze()  # so that the collection below looks only at what the page made
    yield
    gc.collect()  # a lost task of a page prints a traceback; Python 3.11 fails if that happens while it parses a module
    if any(name in request.node.name for name in SERVED):
        server().execute("DROP SCHEMA IF EXISTS trips CASCADE; DROP ROLE IF EXISTS trips_agent, trips_reader")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_every_python_block_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    for block, printed, shown in run(page, tmp_path, monkeypatch):
        assert printed == shown, f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_names_its_language(page):
    assert {block.language for block in blocks(page.read_text())} <= LANGUAGES


def test_wrong_output_is_detected(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n")
    assert [(printed, shown) for _, printed, shown in run(page, tmp_path, monkeypatch)] == [("", ""), ("1\n", "2\n")]


def test_text_block_after_prose_is_not_output(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\nA picture:\n\n```text\n+--+\n```\n")
    assert [(printed, shown) for _, printed, shown in run(page, tmp_path, monkeypatch)] == [("", "")]


# -- links and commands -----------------------------------------------------------------------------


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / each for each in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))],
    ids=lambda page: page.name,
)
def test_links_have_targets(page):
    words = re.sub(r"`[^`\n]+`", "", FENCED.sub("", page.read_text()))
    for link in re.findall(r"\]\(([^)\s]+)\)", words):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page.name}: {link}"


def test_the_commands_of_the_readme_are_in_the_makefile():
    named = {
        command
        for block in blocks((ROOT / "README.md").read_text())
        if block.language == "console"
        for command in re.findall(r"(?m)^make (\w+)", block.text)
    }
    targets = set(re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_readme_shows_real_command_output():
    real = {block.text for block in blocks((ROOT / "docs/cli.md").read_text())}  # made by running it
    shown = [block.text for block in blocks((ROOT / "README.md").read_text()) if block.text.startswith("$ backtrail")]
    assert shown
    assert set(shown) <= real


def test_tests_named_beside_promises_exist():
    named = re.findall(r"`((?:src|tests)/[\w/]+\.py)::([\w:]+)`", (ROOT / "docs/reliability.md").read_text())
    assert named
    for file, test in named:
        names = re.findall(r"(?m)^\s*(?:def|class) (\w+)", (ROOT / file).read_text())
        assert set(test.split("::")) <= set(names), f"{file}::{test}"


# -- names ------------------------------------------------------------------------------------------


def in_code(text):
    """All that a page sets in code: its blocks and its `words`."""
    listed = [block.text for block in blocks(text)]
    return " ".join([*listed, *re.findall(r"`([^`\n]+)`", FENCED.sub("", text))])


def test_every_public_name_is_in_the_docs():
    code = " ".join(in_code(page.read_text()) for page in PAGES)
    assert not [name for name in backtrail.__all__ if not re.search(rf"(?<!\w){name}(?!\w)", code)]


@pytest.mark.parametrize("cls", [backtrail.Thread, backtrail.Store, backtrail.Checkpoint], ids=lambda cls: cls.__name__)
def test_every_public_method_is_in_a_guide(cls):
    guide = ("threads", "types", "watching", "retention", "upkeep")
    code = " ".join(in_code((ROOT / "docs" / f"{page}.md").read_text()) for page in guide)
    public = {name for name in vars(cls) if not name.startswith("_")}
    assert not [name for name in sorted(public) if not re.search(rf"(?<!\w){name}(?!\w)", code)]


CLASSES = {"store": backtrail.Store, "thread": backtrail.Thread, "checkpoint": backtrail.Checkpoint}
OTHERS = {"checkpoint": backtrail.models.AgentCheckpoint}
"""What the same name means in another section."""


def test_the_calls_that_replace_others_exist():
    text = (ROOT / "docs" / "coming-from.md").read_text()
    calls = re.findall(r"(?<![\w-])(store|thread|checkpoint)\.(\w+)", text)
    assert len(calls) > 20
    known = calls_of(CLASSES) | calls_of(OTHERS)
    assert not [f"{handle}.{name}" for handle, name in calls if f"{handle}.{name}" not in known]


def calls_of(classes):
    return {f"{handle}.{name}" for handle, cls in classes.items() for name in dir(cls)}


# What each call of the table of agent persistence gives, or leaves true.
WALKED = {
    "PersistenceManager": "store.stats().agents == 0",
    "MemoryBackend": "isinstance(given, backtrail.Store)",
    "FileBackend": "isinstance(given, backtrail.Store)",
    "AgentState": "state.version == 1 and state.custom_state == {}",
    "set custom state": "state.modified_at > state.created_at",
    "get custom state": "given == 1 and state.get_state('absent') is None",
    "save an agent": "store.agents.get('a') == state",
    "load an agent": "given == state",
    "list agents": "[info.agent_id for info in given] == ['a']",
    "state versioning": "[version.state for version in given] == [state]",
    "migrate between versions": "given.ok and given.migrated == 0",
    "Conversation": "conversation.messages[0].role == 'user' and conversation.title is None",
    "add a message to a value": "conversation.messages[1].content == 'Hi'",
    "message count": "given == 2",
    "auto-title": "conversation.title == 'Hello there'",
    "Message of a user, assistant, system": "[m.role for m in given] == ['user', 'assistant', 'system']",
    "tool result": "message.role == 'tool' and message.metadata['tool_call_id'] == 'call-1'",
    "Attachment": "given.to_bytes() == b'...' and given.size == 3",
    "ToolCall": "given.status == 'completed' and given.result == 'found'",
    "save a conversation": "store.conversations.get('c') == conversation",
    "load a conversation": "given == conversation",
    "add a message to a stored conversation": "store.conversations.load('c').messages[2] == message",
    "list an agent's conversations": "[(info.id, info.message_count) for info in given] == [('c', 3)]",
    "search an agent's conversations": "[hit.conversation_id for hit in given] == ['c']",
    "create a checkpoint": "checkpoint.agent_id == 'a' and checkpoint.kind == 'manual'",
    "checkpoint types": "given == 'pre_operation'",
    "checkpoint before risky operations": "rolls_back(store, given)",
    "list an agent's checkpoints": "given[-1] == checkpoint and [c.kind for c in given][-2] == 'pre_operation'",
    "size, checksum": "given[0] > 100 and given[1].startswith('blake3:')",
    "delete a conversation": "given is True and store.conversations.get('c') is None",
    "restore a checkpoint": "given == state and store.conversations.load('c').message_count == 3",
    "(nothing)": "given == state and store.conversations.get('c') is None",
    "delete a checkpoint": "given is True and checkpoint not in store.agents.checkpoints('a')",
    "CheckpointConfig: enabled, interval, keep": "store.agents.checkpoints('a')[0].name.startswith('Auto checkpoint ')",
    "stop the scheduler": "not auto.running",
    "StorageStats": "stats == store.stats()",
    "agent_count, conversation_count": "given == (1, 0)",
    "checkpoint_count, total_messages, total_size_bytes": "given[0] == 4 and given[1] == 0 and given[2] > 0",
    "delete an agent": "given is True and store.stats().agents == 0",
}


def rolls_back(store, guard):
    with pytest.raises(ZeroDivisionError), guard:
        store.agents.save(AgentState("a", "Wrong", "x"), replace=True)
        raise ZeroDivisionError
    return store.agents.load("a").name == "Ann"


# The same for the checkpoints of runs.
RUN = {
    "CheckpointStore": "store.stats().runs == 0",
    "MemoryCheckpointStore": "isinstance(given, backtrail.Store)",
    "FileCheckpointStore": "Path('new/runs.db').exists()",
    "CheckpointStrategy: every N iterations": "strategy.n == 2",
    "after each tool call": "given.should_checkpoint(1, 'tool_call_complete') and given == store.run('x').strategy",
    "after each LLM response": "[each for each in Event if given.should_checkpoint(1, each)] == ['llm_response']",
    "never": "not any(given.should_checkpoint(1, event) for event in Event)",
    "should I checkpoint?": "given and not strategy.should_checkpoint(2, 'llm_response')",
    "CheckpointEvent": "given == ('tool_call_complete', 'llm_response', 'iteration')",
    "the conversation, its system prompt and token budget": "enter(run).messages[0].role == 'system'",
    "save": "checkpoint.label == 'good' and checkpoint.state['state'] == {'budget': 100_000}",
    "Checkpoint: id, agent_id, created_at, metadata": "given[1] == 'a' and given[3] == {'by': 'me'}",
    "conversation, iteration": "given[0][0]['content'] == 'Be brief' and given[1] == 0",
    "to bytes and back": "given == checkpoint and given.state == checkpoint.state",
    "load by id": "given == checkpoint and store.checkpoint('0' * 32) is None",
    "load_latest of an agent": "given == checkpoint and store.runs.latest('b') is None",
    "list, newest first": "given == [checkpoint] and (run.checkpoint(), checkpoint) == (*store.runs.checkpoints('a'),)",
    "prune to the newest": "given == 1 and len(store.runs.checkpoints('a')) == 1 and store.runs.prune('a', 1) == 0",
}
SESSION = {
    "CheckpointManager, default_dir": "Path('data/backtrail').is_dir() and store.stats().runs == 0",
    "a directory of one's own": "Path('new/sessions.db').exists()",
    "a session of an agent_name": "run.__enter__().agent == 'Ann' and (run.iteration, run.resumed) == (0, False)",
    "CheckpointMessage": "run.messages[1] == given and given.role == 'assistant' and given.content == 'Hi'",
    "a tool call": "given == 'LISBON'",
    "ToolCallRecord": "isinstance(record, ToolCallRecord) and len(run.tool_calls) == 1",
    "tool_name, arguments, result, success": "given == ('search', {'args': ['lisbon'], 'kwargs': {}}, 'LISBON', True)",
    "partial results": "run.partial_results == ['draft 1']",
    "save": "checkpoint.state['partial_results'] == ['draft 1'] and checkpoint.state['session_id'] == 'latest'",
    "step, timestamp": "given[:2] == (0, 2) and given[2].tzinfo is not None",
    "CheckpointStatus": "given == ('in_progress', None)",
    "list_checkpoints by step": "[each.step for each in given] == [1, 2] and given[1] == checkpoint",
    "has_checkpoint": "given is True and 'latest_b' not in store.runs",
    "halted(reason), failed(reason)": "halts(run) and run.status == RunStatus('halted', 'enough')",
    "load latest": "str(given.status) == 'halted(enough)' and store.runs.get('latest_b') is None",
    "continue from the last good step": "resumes(given) and store.runs.load('latest').status.name == 'completed'",
    "cleanup": "given == 4 and 'latest' not in store.runs and store.runs.cleanup('latest') == 0",
}


def halts(run):
    with contextlib.ExitStack() as block:  # which was entered some rows before
        block.push(run.__exit__)
        run.halt("enough")
    return True


def resumes(run):
    with run:
        return run.resumed and run.tool("search", str.upper, "lisbon") == "LISBON" and len(run.tool_calls) == 1


@pytest.mark.parametrize(
    ("heading", "facts"), [("Agent persistence", WALKED), ("Run checkpoints", RUN), ("Session checkpoints", SESSION)]
)
def test_every_foreign_operation_is_covered(heading, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKTRAIL_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    section = (ROOT / "docs" / "coming-from.md").read_text().partition(f"\n## {heading}")[2].partition("\n## ")[0]
    with contextlib.ExitStack() as stack:
        names = {name: getattr(backtrail, name) for name in backtrail.__all__}
        names |= {"backtrail": backtrail, "Path": Path, "enter": stack.enter_context}
        walk(section, facts, {**names, "rolls_back": rolls_back, "halts": halts, "resumes": resumes})


def walk(section, facts, scope):
    """Run the calls of a section's table, and look after each whether what is said of it is true."""
    ((_, rows),) = list(tables(section))
    walked = []
    for there, here, _ in rows:
        code = here[1 : here.index("`", 1)].replace("`", "")
        name, equals, expression = re.fullmatch(r"(?:(\w+) (=) )?(.*)", code).groups()
        scope["given"] = eval(expression, scope)
        if equals:
            scope[name] = scope["given"]
        walked.append(re.sub(r", (PersistenceBackend|S[Qq][Ll]ite).*", "", there.replace("`", "")))
        assert eval(facts[walked[-1]], scope), walked[-1]
    assert walked == list(facts)


def test_every_foreign_name_has_an_answer():
    text = (ROOT / "docs" / "coming-from.md").read_text()
    first = " ".join(row[0] for _, rows in tables(text) for row in rows)
    names = (
        "CheckpointMetadata with_parent with_label with_tag with_custom CheckpointBuilder save_with_label load_latest"
    )
    names += " history fork rewind find_by_tag find_by_label current_step list_threads max_checkpoints ttl compress"
    names += " PersistenceManager PersistenceBackend FileBackend MemoryBackend CheckpointConfig StorageStats"
    names += " agent_count conversation_count checkpoint_count total_messages total_size_bytes"
    names += " CheckpointStrategy CheckpointEvent CheckpointStore MemoryCheckpointStore FileCheckpointStore in_memory"
    names += " SqliteCheckpointStore open prune CheckpointManager default_dir has_checkpoint list_checkpoints cleanup"
    names += " CheckpointMessage ToolCallRecord CheckpointStatus"
    assert not [name for name in names.split() if not re.search(rf"\b{name}\b", first)]


# -- errors -----------------------------------------------------------------------------------------

KINDS = {name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, errors.Error)}


def parsed(file):
    """The tree of a file. Python 3.11 fails once in a process in which a recursion error was met, and then no more."""
    try:
        return ast.parse(file.read_text())
    except SystemError:
        return ast.parse(file.read_text())


def codes_in_the_code():
    """Every code that an error may have: those written out, and the class's own where an error is made without one."""
    roots = "|".join(re.escape(cls.default_code) for cls in KINDS.values())
    found = set()
    for file in SOURCE.rglob("*.py"):
        tree = parsed(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update([node.value] if re.fullmatch(rf"(?:{roots})(?:\.(?!html)\w+)+", node.value) else [])
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                given = {keyword.arg for keyword in node.keywords}
                found.update([] if {"code", None} & given else [KINDS[node.func.id].default_code])
                codes = [each.value for each in node.keywords if each.arg == "code"]
                found.update(each.value for each in codes if isinstance(each, ast.Constant))
    return found - {"error.type"}  # an attribute of OpenTelemetry


def test_error_codes_match_the_guide():
    page = (ROOT / "docs" / "errors.md").read_text()
    ((_, rows),) = [table for table in tables(page) if table[0][0] == "code"]
    assert sorted(row[0].strip("`") for row in rows) == sorted(codes_in_the_code())


# -- the format -------------------------------------------------------------------------------------


def tables(text):
    """The tables of a page: each as its header and its rows, all as lists of cells."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            found.append((rows[0], rows[2:]))
            rows = []
    return found


FORMAT = (ROOT / "docs" / "format.md").read_text()
# The modules whose constants make the format, and those among them that do not.
FORMATTED = [
    "archive.format",
    "engine.compression",
    "engine.log",
    "engine.payload",
    "engine.tree.msgpack",
    "engine.tree.nodes",
    "engine.tree.chunked",
    "engine.tree.text",
    "engine.tree.tree",
]
UNRELATED = {"engine.tree.msgpack.SUBCLASSES", "engine.log.AUTOMATIC"}


def documented_constants():
    """(name, value) for every row of a table of the format whose last cell names a constant of the code."""
    found = {}
    for _, rows in tables(FORMAT):
        for row in rows:
            name = re.fullmatch(r"`((?:archive|engine|backends)\.[\w.]+)`", row[-1])
            if name:
                (value,) = re.findall(r"^`([^`]+)`", row[0])
                found[name[1]] = ast.literal_eval(value)
    return found


def value_of(name):
    module, _, constant = name.rpartition(".")
    return getattr(importlib.import_module(f"backtrail.{module}"), constant)


def test_the_constants_of_the_format_are_those_of_the_code():
    found = documented_constants()
    assert found == {name: value_of(name) for name in found}


@pytest.mark.parametrize("module", FORMATTED)
def test_no_constant_of_the_format_is_left_out(module):
    tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text())
    named = [target for node in tree.body if isinstance(node, ast.AnnAssign) for target in [node.target]]
    named += [name for node in tree.body if isinstance(node, ast.Assign) for name in ast.walk(node.targets[0])]
    names = {node.id for node in named if isinstance(node, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*", node.id)}
    plain = {name for name in names if type(value_of(f"{module}.{name}")) in (int, bytes)}
    listed = {name.split(".")[-1] for name in documented_constants() if name.startswith(f"{module}.")}
    assert plain - {name.split(".")[-1] for name in UNRELATED if name.startswith(f"{module}.")} <= listed


def test_the_tables_of_the_format_are_those_of_the_file(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    connection = apsw.Connection(str(tmp_path / "a.db"))
    # what FTS5 makes for itself is SQLite's to describe
    listed = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    names = [name for (name,) in connection.execute(listed)]
    there = {
        name: [(column, kind) for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({name})")]
        for name in names
        if not name.startswith("sqlite_")
    }
    written = {}
    for name, section in re.findall(r"(?ms)^#### Table `(\w+)`\n(.*?)(?=^#)", FORMAT):
        ((_, rows),) = tables(section)
        written[name] = [(row[0].strip("`"), row[1]) for row in rows]
    assert written == there


def test_the_dictionary_is_the_one_that_the_format_names():
    (named,) = re.findall(r"`dictionary1\.bin`[^`]*`([0-9a-f]{64})`", FORMAT)
    assert blake3((SOURCE / "engine" / "dictionary1.bin").read_bytes()).hexdigest() == named


# -- the demo and the examples ----------------------------------------------------------------------


def _demo():
    spec = importlib.util.spec_from_file_location("demo", DEMO / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


demo = _demo()


def test_demo_output_is_true_and_leaves_no_files(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        check=False,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(SOURCE.parent), "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "~ budget: 120 -> 30" in done.stdout
    assert "Conflict: " in done.stdout
    assert "Invalid: state.messages[0].lock: " in done.stdout
    assert done.stdout.count("    killed\n") == 2
    assert "InDoubt: " in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "scene",
    [
        demo.Scene("What is not true.", "x = 1", ("x == 2",)),
        demo.Scene("What cannot be looked at.", "x = 1", ("y == 2",)),
        demo.Scene("An error that does not belong there.", "raise ValueError", ()),
        demo.Scene("An error that does not come.", "x = 1", (), raises="ValueError"),
    ],
    ids=lambda scene: scene.says,
)
def test_untrue_demo_fails(scene, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SCENES", (scene,))
    assert demo.main() == 1
    assert "NOT TRUE: " in capsys.readouterr().err


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_runs(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE.parent), "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
