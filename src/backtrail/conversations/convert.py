"""Messages of OpenAI and Anthropic, as plain data: which format a dict has, what it says, and the same for the other.

A message of a provider is kept as it came: nothing here changes it, so it is given back exactly. `facts` reads of it
what every message has, for search, titles and views: the role, the text, the tool calls, what call it answers, a name.
That never fails; what is not as expected is passed over. `rendered` says the same in another provider's words: exactly,
or `Invalid` with the path of what has no counterpart there.

Formats, as `Message.raw_format` names them:

    openai.chat        a message of Chat Completions: {"role", "content", "tool_calls", "tool_call_id", "name" ...}
    openai.responses   an item of Responses: {"type": "function_call" ...}, or a message with parts such as input_text
    anthropic          a message of Messages: {"role", "content": blocks such as text, tool_use, tool_result, thinking}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from backtrail.errors import Invalid
from backtrail.validation import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT: Final = "openai.chat"
RESPONSES: Final = "openai.responses"
ANTHROPIC: Final = "anthropic"
OWN: Final = "backtrail"
"""What `Message.to_json` makes, or less. No message has it as its `raw_format`: it is not kept as it came."""
KNOWN: Final = (
    "a Message as JSON (role, content as text), an OpenAI chat message (role, content, tool_calls, tool_call_id, "
    "name), an item of OpenAI's Responses (type, call_id ...) or an Anthropic message (role, content blocks)"
)

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_CHAT_KEYS: Final = frozenset(
    {
        "tool_call_id",
        "name",
        "refusal",
        "audio",
        "function_call",
        "annotations",
        # of services that speak OpenAI's protocol
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "cache_control",
    }
)
_CHAT_PARTS: Final = frozenset({"image_url", "input_audio", "file", "refusal"})
_RESPONSES_PARTS: Final = frozenset({"input_text", "input_image", "input_file", "output_text"})
_ITEM_KEYS: Final = frozenset({"phase", "status"})
_BLOCKS: Final = frozenset(
    {
        "image",
        "document",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "container_upload",
    }
)
_BLOCK_KEYS: Final = frozenset({"cache_control", "citations"})
_HINTS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""What says how to serve a message, and nothing of what it says."""
_REPLY_KEYS: Final = frozenset({"stop_reason", "stop_sequence", "usage"})
_ITEMS: Final = frozenset(
    {
        "reasoning",
        "item_reference",
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "additional_tools",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "program",
        "program_output",
        "tool_search_output",
    }
)
_SAID: Final = ("text", "refusal", "transcript")
"""Where a part of a content has its text."""
_DEPTH: Final = 32
"""Arguments that are nested deeper stay the text that they came as."""
_GIVEN: Final = ("arguments", "input", "action", "operation")
"""Where an item that calls a tool has what the tool is given."""


# -- which format -----------------------------------------------------------------------------------------------------


def plain(value: Any, path: str) -> Any:
    """Return a copy of what a provider's message may hold; its own objects (pydantic models) become dicts."""
    try:
        return _plain(value, path)
    except RecursionError:
        raise Invalid(f"{path} is nested too deep", code="invalid.value", path=path) from None


def _plain(value: Any, path: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {_key(key, path): _plain(part, f"{path}[{key!r}]") for key, part in value.items()}
    if kind in (list, tuple):
        return kind(_plain(part, f"{path}[{at}]") for at, part in enumerate(value))
    if isinstance(value, str):
        return str.__str__(value)
    if _is_model(value):
        return _plain(value.model_dump(mode="json", by_alias=True, exclude_unset=True), path)
    raise Invalid(
        f"{path} is {kind.__name__}, which no provider's message holds: put text, a number, a list or a dict there",
        code="invalid.value",
        path=path,
    )


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    raise Invalid(f"{path} has a key that is no string: {key!r:.60}", code="invalid.value", path=path)


def unwrapped(value: Any) -> Any:
    """Return a message as a dict where it, or a part of its content, is an object of a provider's client."""
    if not isinstance(value, Mapping):
        return plain(value, "message") if _is_model(value) else value
    inner = (part for name in ("content", "tool_calls") for part in _parts(value.get(name)))
    return plain(value, "message") if any(_is_model(part) for part in inner) else value


class Model(Protocol):
    """An object of a provider's client."""

    def model_dump(self, *args: Any, **options: Any) -> Any:
        """Return it as a dict."""


def provider_of(value: Any) -> str | None:
    """Return whose client an object is of, or None if it is of none."""
    root = type(value).__module__.partition(".")[0]
    return root if root in ("openai", "anthropic") and _is_model(value) else None


def _is_model(value: Any) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def format_of(raw: Mapping[str, Any]) -> str | None:
    """Return the format that a dict has, or None if it is of none that is known.

    A text in a dict with nothing else is ours: all formats have it so. A list of nothing but texts is taken for
    OpenAI's: Anthropic's is the same. Kinds of parts that are not known are taken for Anthropic's: those of Chat
    Completions are few, and known.
    """
    role, kind = raw.get("role"), raw.get("type")
    if not isinstance(role, str):
        item = isinstance(kind, str) and (kind in _ITEMS or kind.endswith(("_call", "_call_output")))
        return RESPONSES if item and "role" not in raw else None
    types = _types(raw)
    if types & _RESPONSES_PARTS or kind in _ITEMS or not _ITEM_KEYS.isdisjoint(raw):
        return RESPONSES
    strange = role in ("user", "assistant") and kind != "message" and types - _CHAT_PARTS - {"text"}
    if strange or _is_anthropic(raw, types):
        return ANTHROPIC
    if kind == "message":
        return RESPONSES
    if role in _ROLES and (types & _CHAT_PARTS or _is_chat(raw)):
        return CHAT
    return OWN


def _types(raw: Mapping[str, Any]) -> set[str]:
    """Return the kinds of the parts of a message's content."""
    parts = (part for part in _parts(raw.get("content")) if isinstance(part, Mapping))
    return {part["type"] for part in parts if isinstance(part.get("type"), str)}


def _is_anthropic(raw: Mapping[str, Any], types: set[str]) -> bool:
    """Tell whether something of a message is only in Anthropic's."""
    if types & _BLOCKS or any(each.endswith("_tool_result") for each in types) or not _REPLY_KEYS.isdisjoint(raw):
        return True
    parts = (part for part in _parts(raw.get("content")) if isinstance(part, Mapping))
    return any(not _BLOCK_KEYS.isdisjoint(part) for part in parts)


def _is_chat(raw: Mapping[str, Any]) -> bool:
    """Tell whether something of a message is only in Chat Completions."""
    content, calls = raw.get("content"), raw.get("tool_calls")
    if raw["role"] in ("developer", "function") or isinstance(content, list | tuple):
        return True
    if isinstance(calls, list | tuple) and any(isinstance(call, Mapping) and _is_chat_call(call) for call in calls):
        return True
    if (
        raw["role"] == "assistant"
        and not calls
        and (content is None or raw.keys() == {"role", "content", "tool_calls"})
    ):
        return True
    return isinstance(content, str) and not _CHAT_KEYS.isdisjoint(raw)


def _is_chat_call(call: Mapping[str, Any]) -> bool:
    return "function" in call or "custom" in call


def check(raw: Mapping[str, Any], provider: str) -> str:
    """Return the format of a dict that is said to be a provider's; `Invalid` if it is not.

    More is taken than `format_of` recognises: a kind of part or item that is not known yet is kept as it came.
    """
    found, role, content = format_of(raw), raw.get("role"), raw.get("content")
    openai = provider == "openai"
    formats = (CHAT, RESPONSES) if openai else (ANTHROPIC,)
    if found in formats:
        return str(found)
    texts = {"text"} >= {part.get("type") if isinstance(part, Mapping) else None for part in _parts(content)}
    roles = _ROLES if openai else ("user", "assistant", "system")
    if isinstance(role, str) and role in roles and (isinstance(content, str) or _listed(content)):
        unknown_parts = openai and found == ANTHROPIC and not _is_anthropic(raw, _types(raw))
        if found in (OWN, None) or unknown_parts or (texts and raw.keys() <= {"role", "content"}):
            return formats[0]
    elif openai and role is None and isinstance(raw.get("type"), str):
        return RESPONSES
    other = {CHAT: "OpenAI", RESPONSES: "OpenAI", ANTHROPIC: "Anthropic"}.get(str(found))
    hint = f"it is one of {other}: use Message.from_{other.lower()}" if other else f"it has {_keys(raw)}"
    name = "OpenAI" if openai else "Anthropic"
    raise Invalid(f"this is no message of {name}: {hint}", code="invalid.schema")


def is_common(raw: Mapping[str, Any]) -> bool:
    """Tell whether a message is one that Chat Completions and Anthropic have alike: a role, and nothing but text."""
    content = raw.get("content")
    texts = all(isinstance(part, Mapping) and part.keys() == {"type", "text"} for part in _parts(content))
    common = raw.keys() == {"role", "content"} and raw["role"] in ("system", "user", "assistant") and texts
    return common and (isinstance(content, str) or _listed(content))


def _keys(raw: Mapping[str, Any]) -> str:
    names = [repr(key)[:40] for key in raw]
    return f"the keys {', '.join(names[:12])}" if names else "no keys"


def unknown(raw: Mapping[str, Any]) -> Invalid:
    """Return the error for a dict that has none of the formats."""
    return Invalid(
        f"this dict is no message that is known: it has {_keys(raw)}; known are {KNOWN}", code="invalid.schema"
    )


# -- what a message says ----------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A tool that is called."""

    id: str
    name: str
    arguments: dict[str, Any]


class Facts(NamedTuple):
    """What every message has, whoever's it is."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """The id of the call that it is the result of."""
    name: str | None = None


def facts(raw: Mapping[str, Any], form: str) -> Facts:
    """Return what a provider's message says."""
    if form == RESPONSES:
        return _of_item(raw)
    if form == ANTHROPIC:
        return _of_blocks(raw.get("role"), raw.get("content"))
    answers = raw.get("tool_call_id")
    name = raw.get("name")
    return Facts(
        _ROLES.get(raw.get("role"), "assistant"),  # type: ignore[arg-type]  # whatever it is
        text_of(raw.get("content")) or _refusal(raw),
        tuple(_chat_calls(raw)),
        answers if is_id(answers) else None,
        name if isinstance(name, str) else None,
    )


def is_id(value: Any) -> bool:
    """Tell whether it can be the id of a call."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID


def text_of(content: Any) -> str:
    """Return what a content says: it is a text, or a list of parts."""
    if isinstance(content, str):
        return content
    found = (part.get(key) for part in _parts(content) if isinstance(part, Mapping) for key in _SAID)
    return "\n".join(text for text in found if isinstance(text, str))


def _parts(content: Any) -> list[Any] | tuple[Any, ...]:
    return content if _listed(content) else ()


def _listed(content: Any) -> bool:
    return isinstance(content, list | tuple)


def _refusal(raw: Mapping[str, Any]) -> str:
    refusal = raw.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _chat_calls(raw: Mapping[str, Any]) -> Iterator[Call]:
    for call in _parts(raw.get("tool_calls")):
        if not isinstance(call, Mapping) or not is_id(call.get("id")):
            continue
        custom = "custom" in call and "function" not in call
        given = call.get("custom" if custom else "function")
        if isinstance(given, Mapping):
            yield Call(call["id"], _name(given), arguments_of(given))
    old = raw.get("function_call")
    if isinstance(old, Mapping) and is_id(old.get("name")):
        yield Call(old["name"], old["name"], arguments_of(old))


def _name(given: Mapping[str, Any]) -> str:
    name = given.get("name")
    return name if isinstance(name, str) else str(given.get("type", ""))


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool is given, as a dict: JSON in a text is read; a text that is none stays under its name."""
    for name in _GIVEN:
        value = given.get(name)
        if isinstance(value, str):
            parsed = _parsed(value)
            return {name: value} if parsed is None else parsed
        if isinstance(value, Mapping):
            return dict(value)
    return {}


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _is_deep(found, _DEPTH) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)  # NaN is no JSON, whatever json.loads says


def _finite(text: str) -> float:
    """Return a number; a text such as 1e999, which no float holds, is not read."""
    found = float(text)
    return found if math.isfinite(found) else _refuse(text)


def _is_deep(value: Any, left: int) -> bool:
    """Tell whether a value is nested deeper than the fields of a message may be."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return left <= 0 or any(_is_deep(part, left - 1) for part in inner)


def _of_item(raw: Mapping[str, Any]) -> Facts:
    role = raw.get("role")
    if isinstance(role, str) and role in _ROLES:
        return Facts(_ROLES[role], text_of(raw.get("content")))
    call_id = raw.get("call_id")
    if not is_id(call_id):
        return Facts("assistant", text_of(raw.get("content") or raw.get("summary")))
    if "output" in raw:
        return Facts("tool", text_of(raw["output"]), answers=call_id)
    name = raw.get("name") if isinstance(raw.get("name"), str) else str(raw.get("type"))
    return Facts("assistant", "", (Call(call_id, str(name), arguments_of(raw)),))  # type: ignore[arg-type]


def _of_blocks(role: Any, content: Any) -> Facts:
    results = [block["tool_use_id"] for block in blocks_of(content, "tool_result") if is_id(block.get("tool_use_id"))]
    calls = [
        Call(block["id"], _name(block), dict(block["input"]) if isinstance(block.get("input"), Mapping) else {})
        for block in blocks_of(content, "tool_use")
        if is_id(block.get("id"))
    ]
    said = "\n".join(texts_of_blocks(content))
    kind = "tool" if results else _ROLES.get(role, "assistant")
    return Facts(kind, said, tuple(calls), results[0] if results else None)


def blocks_of(content: Any, kind: str) -> list[Mapping[str, Any]]:
    """Return the blocks of one type among those of an Anthropic message."""
    return [block for block in _parts(content) if isinstance(block, Mapping) and block.get("type") == kind]


def texts_of_blocks(content: Any) -> Iterator[str]:
    """Give what is said in Anthropic's blocks: by people, by the model, by tools; not what is only thought."""
    if isinstance(content, str):
        yield content
    for block in _parts(content):
        if not isinstance(block, Mapping):
            continue
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from texts_of_blocks(block.get("content"))


# -- in the words of another ------------------------------------------------------------------------------------------


class Image(NamedTuple):
    """A picture: where it is, or its type and its bytes in base64."""

    url: str | None
    mime_type: str = ""
    data: str = ""


class Said(NamedTuple):
    """A message in nobody's format: texts and pictures in their order, what is called, or what is answered."""

    role: str
    parts: tuple[str | Image, ...]
    listed: bool
    """Whether its content is a list, also if that is one text."""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    failed: bool = False
    """Of what answers a call: whether that went wrong."""
    name: str | None = None


def read(raw: Mapping[str, Any], form: str) -> Said:
    """Return a provider's message in nobody's format; `Invalid` if it holds what the others do not have."""
    if form == CHAT:
        return _read_chat(raw)
    return _read_item(raw) if form == RESPONSES else _read_anthropic(raw)


def _lost(path: str, what: str) -> Invalid:
    return Invalid(f"{path} is {what}, which other providers' messages do not have", code="invalid.value", path=path)


def _rest(raw: Mapping[str, Any], known: set[str], path: str = "") -> None:
    """Refuse what says something and is not read."""
    for key, value in raw.items():
        if key not in known and key not in _HINTS and value not in (None, [], (), {}):
            raise _lost(f"{path}[{key!r}]" if path else repr(key)[1:-1], "a field")


def _texts(content: Any, path: str, kinds: tuple[str, ...] = ("text",)) -> Iterator[str | Image]:
    """Give the texts and pictures of a content."""
    if isinstance(content, str):
        yield content
        return
    for at, part in enumerate(_parts(content)):
        where = f"{path}[{at}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in kinds and isinstance(part.get("text"), str):
            _rest(part, {"type", "text", "logprobs"}, where)
            yield part["text"]
        elif kind in ("image_url", "input_image", "image"):
            yield _image(part, where)
        else:
            raise _lost(where, f"a part of type {kind!r:.60}")


def _image(part: Mapping[str, Any], path: str) -> Image:
    if part["type"] == "image":
        _rest(part, {"type", "source"}, path)
        source = part.get("source")
        if isinstance(source, Mapping) and source.get("type") == "url" and isinstance(source.get("url"), str):
            return Image(source["url"])
        if isinstance(source, Mapping) and source.get("type") == "base64" and isinstance(source.get("data"), str):
            return Image(None, str(source.get("media_type")), source["data"])
        raise _lost(path, "an image that is neither a url nor base64")
    url = part.get("image_url")
    if isinstance(url, Mapping):
        _rest(url, {"url"}, f"{path}['image_url']")
        url = url.get("url")
    _rest(part, {"type", "image_url"}, path)
    if not isinstance(url, str):
        raise _lost(path, "an image without a url")
    mime, comma, data = url.removeprefix("data:").partition(";base64,")
    return Image(None, mime, data) if comma and url.startswith("data:") else Image(url)


def _called(calls: tuple[Call, ...], raw: Any, path: str) -> tuple[Call, ...]:
    """Return the calls of a message, if each of those that it holds is one that others have, too."""
    if len(calls) != len(_parts(raw)) or any(each.name == "" for each in calls):
        raise _lost(path, "a list with a call that has no id, name or arguments")
    return calls


def _read_chat(raw: Mapping[str, Any]) -> Said:
    _rest(raw, {"role", "content", "tool_calls", "tool_call_id", "name"})
    found = facts(raw, CHAT)
    calls = _called(found.calls, raw.get("tool_calls"), "tool_calls")
    if any("custom" in call for call in _parts(raw.get("tool_calls"))):
        raise _lost("tool_calls", "a list with a custom call")
    for at, call in enumerate(_parts(raw.get("tool_calls"))):
        if _parsed(str(call["function"].get("arguments"))) is None:
            raise _lost(f"tool_calls[{at}]", "a call whose arguments are no JSON object")
    content = raw.get("content")
    name = None if found.role == "tool" else found.name
    return Said(found.role, tuple(_texts(content, "content")), _listed(content), calls, found.answers, name=name)


def _read_item(raw: Mapping[str, Any]) -> Said:
    found = facts(raw, RESPONSES)
    content = raw.get("content")
    if isinstance(raw.get("role"), str):
        _rest(raw, {"role", "content", "type", "id", "status", "phase"})
        texts = _texts(content, "content", ("input_text", "output_text"))
        return Said(found.role, tuple(texts), _listed(content))
    if raw.get("type") == "function_call" and found.calls and _parsed(str(raw.get("arguments"))) is not None:
        _rest(raw, {"type", "call_id", "name", "arguments", "id", "status"})
        return Said("assistant", (), listed=False, calls=found.calls)
    if raw.get("type") == "function_call_output" and found.answers is not None:
        _rest(raw, {"type", "call_id", "output", "id", "status"})
        output = raw.get("output")
        return Said("tool", tuple(_texts(output, "output", ("input_text",))), _listed(output), answers=found.answers)
    raise _lost("type", f"{raw.get('type')!r:.60}")


def _read_anthropic(raw: Mapping[str, Any]) -> Said:
    _rest(raw, {"role", "content", "id", "type", "model", "container", *_REPLY_KEYS})
    content = raw.get("content")
    uses, results = blocks_of(content, "tool_use"), blocks_of(content, "tool_result")
    found = facts(raw, ANTHROPIC)
    if results:
        if len(_parts(content)) > 1:
            raise _lost("content", "the results of several calls, or a result and something else, in one message")
        (result,) = results
        _rest(result, {"type", "tool_use_id", "content", "is_error"}, "content[0]")
        parts = tuple(_texts(result.get("content"), "content[0]['content']"))
        listed = _listed(result.get("content"))
        return Said("tool", parts, listed, answers=found.answers, failed=result.get("is_error") is True)
    for at, block in enumerate(_parts(content)):
        if block in uses:
            _rest(block, {"type", "id", "name", "input"}, f"content[{at}]")
    others = [block for block in _parts(content) if block not in uses]
    if uses and [*_parts(content)] != [*others, *uses]:
        raise _lost("content", "a list in which something stands behind a call")
    calls = _called(found.calls, uses, "content")
    listed = _listed(content) and not (uses and len(others) <= 1)
    return Said(found.role, tuple(_texts(others if _listed(content) else content, "content")), listed, calls)


def to_chat(said: Said) -> dict[str, Any]:
    """Return a message as Chat Completions has it."""
    made: dict[str, Any] = {"role": said.role}
    if said.name is not None:
        made["name"] = said.name
    if said.role == "tool":
        made["tool_call_id"] = _answered(said)
    if said.failed:
        raise _lost("content[0]['is_error']", "the mark of a call that failed")
    if any(isinstance(part, Image) for part in said.parts) and said.role != "user":
        raise _lost("content", f"a picture in a message of role {said.role}")
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part.url or f"data:{part.mime_type};base64,{part.data}"}}
        for part in said.parts
    ]
    made["content"] = _content(said, parts, None if said.calls else "")
    if said.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call)}}
            for call in said.calls
        ]
    return made


def to_anthropic(said: Said) -> dict[str, Any]:
    """Return a message as Anthropic's Messages has it."""
    if said.name is not None:
        raise _lost("name", "the name of who says it")
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "source": _source(part)}
        for part in said.parts
    ]
    if said.role == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _answered(said)}
        result["content"] = _content(said, blocks, "")
        if said.failed:
            result["is_error"] = True
        return {"role": "user", "content": [result]}
    if said.role == "system" and any(isinstance(part, Image) for part in said.parts):
        raise _lost("content", "a picture in a message of role system")
    if not said.calls:
        return {"role": said.role, "content": _content(said, blocks, "")}
    uses = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in said.calls]
    return {"role": said.role, "content": [block for block in blocks if block != {"type": "text", "text": ""}] + uses}


def _content(said: Said, parts: list[dict[str, Any]], nothing: str | None) -> Any:
    """Return a content: a text if it was one, a list if it was one or has to be."""
    if not said.listed and len(said.parts) <= 1 and all(isinstance(part, str) for part in said.parts):
        return said.parts[0] if said.parts and (said.parts[0] or nothing is not None) else nothing
    return parts


def _source(image: Image) -> dict[str, Any]:
    if image.url is not None:
        return {"type": "url", "url": image.url}
    return {"type": "base64", "media_type": image.mime_type, "data": image.data}


def _answered(said: Said) -> str:
    if said.answers is None:
        raise Invalid(
            "a message of role tool says which call it answers: make it with Message.tool_result(tool_call_id, ...)",
            code="invalid.value",
            path="metadata['tool_call_id']",
        )
    return said.answers


def _json(call: Call) -> str:
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"the arguments of call {call.id!r} are no JSON: {error}", code="invalid.value", path="tool_calls"
        ) from error
