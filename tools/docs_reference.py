"""Writes the reference of the site: the public names from their docstrings, the HTTP API from its OpenAPI document.

The docstrings are read from the source (griffe), not from imported modules: adapters need no framework for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import griffe

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from backtrail.server.openapi import document  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WIDTH = 88


class Part(NamedTuple):
    """A page of the reference: its names are attributes of `module`."""

    title: str
    module: str
    names: str
    intro: str


PARTS = {
    "store": Part(
        "Stores",
        "backtrail",
        "open Store Policy Scope copy restore_backup Key Keys",
        "Open a store, list what is in it, keep it small and sound. Guides: [threads](../threads.md), "
        "[upkeep](../upkeep.md), "
        "[moving](../moving.md), [encryption](../encryption.md).",
    ),
    "thread": Part(
        "Threads and checkpoints",
        "backtrail",
        "Thread Checkpoint Editor MISSING NEW",
        "The history of one state. Guide: [threads](../threads.md).",
    ),
    "agents": Part(
        "Agents and conversations",
        "backtrail",
        "Agents Conversations AgentState AgentVersion AgentCheckpoint AutoCheckpoint CheckpointType "
        "Conversation Message "
        "Role Attachment AttachmentType ToolCall ToolStatus",
        "Agents, their conversations and their checkpoints. Guides: [agents](../agents.md), "
        "[messages](../messages.md).",
    ),
    "runs": Part(
        "Runs",
        "backtrail",
        "Runs Run RunRecord RunState RunStatus Call CallError ToolCallRecord tool llm Done NotDone "
        "Irreversible Strategy "
        "AfterToolCall AfterLlmResponse EveryN Never Event repaired",
        "The work of an agent on one task, resumed after a crash. Guide: [runs](../runs.md).",
    ),
    "values": Part(
        "Values and reports",
        "backtrail",
        "ThreadInfo AgentInfo ConversationInfo Hit Hits Stats StatePart Items Diff Change Reordered PruneReport "
        "GcReport VerifyReport "
        "Damage Salvage MigrateReport ExportReport ImportReport CopyReport ErasureReport ErasedThread Erased "
        "KeyStatus KeyReport",
        "What calls return. The values are frozen.",
    ),
    "types": Part(
        "Typed states",
        "backtrail",
        "schema upcast Type Member Record",
        "States that are your own classes. Guide: [typed states](../types.md#typed-states).",
    ),
    "errors": Part(
        "Errors",
        "backtrail",
        "Error NotFound Conflict Invalid Corrupt Unavailable InDoubt CommitUnknown",
        "Every exception that backtrail raises on purpose. Each has a stable `code`: [the table of "
        "codes](../errors.md).",
    ),
    "builtins": Part(
        "Builtins and the server",
        "backtrail.builtins",
        "",
        "Tools for a model: `backtrail.builtins`. Guide: [builtins](../builtins.md). The ASGI application is "
        "`backtrail.server.app`: [the server](../server.md).",
    ),
    "langgraph": Part(
        "LangGraph's adapter",
        "backtrail.adapters.langgraph",
        "",
        "Guides: [saver](../langgraph.md), [store](../langgraph-store.md).",
    ),
    "openai": Part(
        "The OpenAI Agents SDK's adapter", "backtrail.adapters.openai", "", "Guide: [OpenAI Agents SDK](../openai.md)."
    ),
    "claude": Part(
        "The Claude Agent SDK's adapter", "backtrail.adapters.claude", "", "Guide: [Claude Agent SDK](../claude.md)."
    ),
    "pydantic-ai": Part(
        "Pydantic AI's adapter", "backtrail.adapters.pydantic_ai", "", "Guide: [Pydantic AI](../pydantic-ai.md)."
    ),
    "adk": Part("Google ADK's adapter", "backtrail.adapters.adk", "", "Guide: [Google ADK](../adk.md)."),
    "strands": Part("Strands' adapter", "backtrail.adapters.strands", "", "Guide: [Strands](../strands.md)."),
    "a2a": Part("A2A's adapter", "backtrail.adapters.a2a", "", "Guide: [A2A](../a2a.md)."),
    "agent-framework": Part(
        "Microsoft Agent Framework's adapter",
        "backtrail.adapters.agent_framework",
        "",
        "Guide: [Microsoft Agent Framework](../agent-framework.md).",
    ),
    "port": Part(
        "The port of backends",
        "backtrail.backends.port",
        "Reader Writer SearchIndex ChangeFeed Maintenance Backend",
        "The five protocols that a backend implements. Guide: [write a backend](../backends.md).",
    ),
}


class Names:
    """The public objects by page, and where a link to a name leads."""

    def __init__(self) -> None:
        self.package = griffe.load("backtrail", search_paths=[ROOT / "src"], allow_inspection=False)
        self.pages = {page: list(self._objects(part)) for page, part in PARTS.items()}
        self.homes = {name: page for page, listed in reversed(self.pages.items()) for name, _ in listed}

    def _objects(self, part: Part) -> Iterator[tuple[str, Any]]:
        module = self.package[part.module.partition(".")[2]] if "." in part.module else self.package
        for name in part.names.split() or [str(each).strip("'\"") for each in module.exports]:
            found = module[name]
            yield name, found.final_target if found.is_alias else found

    def missing(self) -> set[str]:
        """Return the public names of `backtrail` that no page has."""
        public = {str(each).strip("'\"") for each in self.package.exports}
        return public - {
            name for page, listed in self.pages.items() if PARTS[page].module == "backtrail" for name, _ in listed
        }

    def linked(self, text: str, page: str) -> str:
        """Return a docstring with its `Name`s as links to the reference."""

        def link(code: re.Match[str]) -> str:
            name = code[1].partition("(")[0]
            cls, _, member = name.partition(".")
            home = self.homes.get(cls)
            if home is None or (member and member not in self._members(home, cls)):
                return code[0]
            return f"[{code[0]}]({'' if home == page else home + '.md'}#{name})"

        text = re.sub(r"\bdocs/([\w-]+\.md)\b", r"[\1](../\1)", text)
        return re.sub(r"`([A-Z]\w+(?:\.\w+)?(?:\([^`]*\))?)`", link, text)

    def _members(self, page: str, name: str) -> set[str]:
        found = dict(self.pages[page])[name]
        return {each for each, member in found.all_members.items() if _shown(each, member)} if found.is_class else set()


def _shown(name: str, member: Any) -> bool:
    target = member.final_target if member.is_alias else member
    return not name.startswith("_") and (target.is_function or target.is_attribute)


# -- the pages of names ---------------------------------------------------------------------------------------------


def _page(names: Names, page: str) -> Iterator[str]:
    part = PARTS[page]
    yield f"# {part.title}\n"
    yield f"{part.intro}\n"
    if part.module != "backtrail":
        yield f"Import from `{part.module}`.\n"
    for name, found in names.pages[page]:
        yield f"## `{name}` {{#{name}}}\n"
        if found.is_class:
            yield from _class(names, page, name, found)
        elif found.is_function:
            yield from _function(names, page, name, found)
        else:
            yield from _text(names, page, found)


def _class(names: Names, page: str, name: str, cls: Any) -> Iterator[str]:
    is_enum = any("Enum" in str(base) for base in cls.bases)
    is_handle = name in ("Store", "Thread", "Checkpoint", "Agents", "Conversations", "Runs", "Run")
    if not (is_enum or is_handle) and len(cls.parameters) > 1:
        yield _signature(name, cls.parameters, None)
    yield from _text(names, page, cls)
    members = [(each, m.final_target if m.is_alias else m) for each, m in cls.all_members.items() if _shown(each, m)]
    fields = [(each, member) for each, member in members if member.is_attribute]
    if fields:
        yield "| attribute | type | |\n|---|---|---|"
        for each, member in fields:
            text = names.linked(" ".join(member.docstring.value.split()), page) if member.docstring else ""
            kind = "" if is_enum or member.annotation is None else f"`{member.annotation}`"
            yield f"| `{each}`{{#{name}.{each}}} | {kind} | {text} |"
        yield ""
    for each, member in members:
        if member.is_function:
            # An adapter's class is alone on its page, and "Backtrail" before each name would be found for "back up".
            title = each if name.startswith("Backtrail") else f"{name}.{each}"
            yield f"### `{title}` {{#{name}.{each}}}\n"
            yield from _function(names, page, each, member)


def _function(names: Names, page: str, name: str, function: Any) -> Iterator[str]:
    for each in function.overloads or [function]:
        yield _signature(name, each.parameters, each.returns)
    yield from _text(names, page, function)


def _signature(name: str, parameters: Iterable[Any], returns: Any) -> str:
    words, kinds = [], griffe.ParameterKind
    is_keyword_only = False
    for each in parameters:
        if each.name in ("self", "cls"):
            continue
        if each.kind is kinds.keyword_only and not is_keyword_only:
            words.append("*")
        is_keyword_only = is_keyword_only or each.kind in (kinds.keyword_only, kinds.var_positional)
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind, "")
        hint = f": {each.annotation}" if each.annotation is not None else ""
        default = f"{' = ' if hint else '='}{each.default}" if each.default is not None and not star else ""
        words.append(f"{star}{each.name}{hint}{default}")
    end = f" -> {returns}" if returns is not None else ""
    line = f"{name}({', '.join(words)}){end}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"
    return f"```python\n{line}\n```\n"


def _text(names: Names, page: str, found: Any) -> Iterator[str]:
    if found.docstring:
        yield names.linked(found.docstring.value, page) + "\n"


def _index(names: Names) -> Iterator[str]:
    yield "# Reference\n"
    yield "Made from the docstrings of this version. `backtrail.aio` has the same names and arguments; its"
    yield "calls are awaited: "
    yield "[asyncio](../async.md). Other references: [the command line](../cli.md), [the HTTP API](http.md), "
    yield "[the format of a store](../format.md).\n"
    for page, part in PARTS.items():
        listed = ", ".join(f"[`{name}`]({page}.md#{name})" for name, _ in names.pages[page])
        yield f"- **[{part.title}]({page}.md)**: {listed}"


# -- the HTTP API ---------------------------------------------------------------------------------------------------


def _http() -> Iterator[str]:
    described = document()
    yield "# The HTTP API\n"
    yield "Made from the OpenAPI document, which a server has at `/api/v1/openapi.json`. How to start a"
    yield "server, tokens, paging, "
    yield "compare-and-swap and errors: [the server](../server.md). Paths begin with `/api/v1`. Arguments of a"
    yield "`GET` or `DELETE` are in the "
    yield "path and in the query; other methods take a JSON object.\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path.replace('{', '&#123;')} {{#{operation['operationId']}}}\n"
            yield f"{operation['summary']} Operation `{operation['operationId']}`" + _effect(operation) + "\n"
            yield from _arguments(operation)
            yield from _result(operation)


def _effect(operation: dict[str, Any]) -> str:
    says = {"write": ", which changes the store.", "destroy": ", which removes data for good."}
    return says.get(operation.get("x-backtrail-effect", ""), ".")


def _arguments(operation: dict[str, Any]) -> Iterator[str]:
    rows = [
        (each["name"], each["in"], each["schema"], each.get("required", False), each.get("description", ""))
        for each in operation["parameters"]
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for name, schema in body.get("properties", {}).items():
        rows.append((name, "body", schema, name in body["required"], schema.get("description", "")))
    if rows:
        yield "| argument | in | type | |\n|---|---|---|---|"
        for name, place, schema, required, text in rows:
            yield f"| `{name}`{' (required)' if required else ''} | {place} | {_kind(schema)} | {_cell(text)} |"
        yield ""


def _result(operation: dict[str, Any]) -> Iterator[str]:
    (status, answer), *_ = operation["responses"].items()
    schema = answer["content"]["application/json"]["schema"]
    fields = ", ".join(f"`{name}`" for name in schema.get("properties", {}))
    yield f"Answer {status}{': ' + fields if fields else ''}.\n"


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"] if each is not None)
    if "anyOf" in schema:
        return " or ".join(kind for each in schema["anyOf"] if (kind := _kind(each)) != "null")
    kind = schema.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else [each for each in kind if each != "null"]
    return " or ".join(
        f"array of {_kind(schema['items'])}" if each == "array" and "items" in schema else each for each in kinds
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(folder: Path) -> None:
    """Write the pages; fail if a public name is on none of them."""
    names = Names()
    if missing := names.missing():
        raise SystemExit(f"tools/docs_reference.py: no page for {', '.join(sorted(missing))}")
    folder.mkdir(parents=True, exist_ok=True)
    for page in PARTS:
        (folder / f"{page}.md").write_text("\n".join(_page(names, page)))
    (folder / "index.md").write_text("\n".join(_index(names)) + "\n")
    (folder / "http.md").write_text("\n".join(_http()))
