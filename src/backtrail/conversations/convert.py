"""Messages of OpenAI and Anthropic: their formats, their common facts, and conversion between providers.

A provider's message is stored and returned unchanged. `facts` reads its role, text, tool calls, answered call and name,
for search, titles and views. It skips unexpected values and never fails. `read`, `to_chat` and `to_anthropic` convert a
message for another provider. If a part has no counterpart there, they raise `Invalid` with the path of the part.

Formats, the values of `Message.raw_format`:

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
"""The form of `Message.to_json`. It is never a `raw_format`, because such a message has no `raw`."""
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
        # services with OpenAI's protocol
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
"""Keys that concern the serving of a message, not its meaning."""
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
_TEXT_KEYS: Final = ("text", "refusal", "transcript")
"""The keys of the text of a content part."""
_DEPTH: Final = 32
"""Arguments that are nested deeper stay text."""
_ARGUMENT_KEYS: Final = ("arguments", "input", "action", "operation")
"""The keys of the arguments of a tool call."""


# -- formats -----------------------------------------------------------------------------------------------------


def plain(value: Any, path: str) -> Any:
    """Return a copy of a provider's message as plain data. Objects of its client (pydantic models) become dicts."""
    try:
        return _plain(value, path)
    except RecursionError:
        raise Invalid(f"{path} is nested too deeply", code="invalid.value", path=path) from None


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
        f"{path} has type {kind.__name__}; a provider's message may contain only text, numbers, lists and dicts",
        code="invalid.value",
        path=path,
    )


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    raise Invalid(f"{path} has a key that is not a string: {key!r:.60}", code="invalid.value", path=path)


def unwrapped(value: Any) -> Any:
    """Return a message as plain data if it is or contains an object of a provider's client; else unchanged."""
    if not isinstance(value, Mapping):
        return plain(value, "message") if _is_model(value) else value
    inner = (part for name in ("content", "tool_calls") for part in _parts(value.get(name)))
    return plain(value, "message") if any(_is_model(part) for part in inner) else value


class Model(Protocol):
    """An object of a provider's client."""

    def model_dump(self, *args: Any, **options: Any) -> Any:
        """Return the object as a dict."""


def provider_of(value: Any) -> str | None:
    """Return the provider of a client's object, or None."""
    root = type(value).__module__.partition(".")[0]
    return root if root in ("openai", "anthropic") and _is_model(value) else None


def _is_model(value: Any) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def format_of(raw: Mapping[str, Any]) -> str | None:
    """Return the format of a dict, or None if it has no known format.

    A dict with only a role and a text is `OWN`, because all formats share it. A list of texts counts as OpenAI's; it
    is the same in Anthropic's format. Unknown types of parts count as Anthropic's, because Chat Completions has only a
    few types, which are known.
    """
    role, kind = raw.get("role"), raw.get("type")
    if not isinstance(role, str):
        is_item = isinstance(kind, str) and (kind in _ITEMS or kind.endswith(("_call", "_call_output")))
        return RESPONSES if is_item and "role" not in raw else None
    types = _types(raw)
    if types & _RESPONSES_PARTS or kind in _ITEMS or not _ITEM_KEYS.isdisjoint(raw):
        return RESPONSES
    is_unknown = role in ("user", "assistant") and kind != "message" and types - _CHAT_PARTS - {"text"}
    if is_unknown or _is_anthropic(raw, types):
        return ANTHROPIC
    if kind == "message":
        return RESPONSES
    if role in _ROLES and (types & _CHAT_PARTS or _is_chat(raw)):
        return CHAT
    return OWN


def _types(raw: Mapping[str, Any]) -> set[str]:
    """Return the types of the parts of a message's content."""
    parts = (part for part in _parts(raw.get("content")) if isinstance(part, Mapping))
    return {part["type"] for part in parts if isinstance(part.get("type"), str)}


def _is_anthropic(raw: Mapping[str, Any], types: set[str]) -> bool:
    """Tell whether a message has something that only Anthropic's format has."""
    if types & _BLOCKS or any(each.endswith("_tool_result") for each in types) or not _REPLY_KEYS.isdisjoint(raw):
        return True
    parts = (part for part in _parts(raw.get("content")) if isinstance(part, Mapping))
    return any(not _BLOCK_KEYS.isdisjoint(part) for part in parts)


def _is_chat(raw: Mapping[str, Any]) -> bool:
    """Tell whether a message has something that only Chat Completions has."""
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
    """Return the format of a message of the given provider, or raise `Invalid`.

    This accepts more than `format_of`: unknown types of parts and items, too. They are stored unchanged.
    """
    form, role, content = format_of(raw), raw.get("role"), raw.get("content")
    openai = provider == "openai"
    formats = (CHAT, RESPONSES) if openai else (ANTHROPIC,)
    if form in formats:
        return str(form)
    texts = {"text"} >= {part.get("type") if isinstance(part, Mapping) else None for part in _parts(content)}
    roles = _ROLES if openai else ("user", "assistant", "system")
    if isinstance(role, str) and role in roles and (isinstance(content, str) or _is_list(content)):
        unknown_parts = openai and form == ANTHROPIC and not _is_anthropic(raw, _types(raw))
        if form in (OWN, None) or unknown_parts or (texts and raw.keys() <= {"role", "content"}):
            return formats[0]
    elif openai and role is None and isinstance(raw.get("type"), str):
        return RESPONSES
    other = {CHAT: "OpenAI", RESPONSES: "OpenAI", ANTHROPIC: "Anthropic"}.get(str(form))
    hint = f"it is a message of {other}; use Message.from_{other.lower()}" if other else f"it has {_keys(raw)}"
    name = "OpenAI" if openai else "Anthropic"
    raise Invalid(f"this is not a message of {name}: {hint}", code="invalid.schema")


def is_common(raw: Mapping[str, Any]) -> bool:
    """Tell whether a message has only a role and text, so that it is valid for Chat Completions and for Anthropic."""
    content = raw.get("content")
    texts = all(isinstance(part, Mapping) and part.keys() == {"type", "text"} for part in _parts(content))
    common = raw.keys() == {"role", "content"} and raw["role"] in ("system", "user", "assistant") and texts
    return common and (isinstance(content, str) or _is_list(content))


def _keys(raw: Mapping[str, Any]) -> str:
    names = [repr(key)[:40] for key in raw]
    return f"the keys {', '.join(names[:12])}" if names else "no keys"


def unknown(raw: Mapping[str, Any]) -> Invalid:
    """Return the error for a dict without a known format."""
    return Invalid(
        f"this dict is not a known message: it has {_keys(raw)}; known formats: {KNOWN}", code="invalid.schema"
    )


# -- facts ----------------------------------------------------------------------------------------------


class MessageCall(NamedTuple):
    """A tool call of a message."""

    id: str
    name: str
    arguments: dict[str, Any]


class Facts(NamedTuple):
    """The facts of a message of any format."""

    role: str
    content: str
    calls: tuple[MessageCall, ...] = ()
    answers: str | None = None
    """The id of the call that the message answers."""
    name: str | None = None


def facts(raw: Mapping[str, Any], form: str) -> Facts:
    """Return the facts of a provider's message."""
    if form == RESPONSES:
        return _of_item(raw)
    if form == ANTHROPIC:
        return _of_blocks(raw.get("role"), raw.get("content"))
    answers = raw.get("tool_call_id")
    name = raw.get("name")
    return Facts(
        _ROLES.get(raw.get("role"), "assistant"),  # type: ignore[arg-type]  # of any type
        text_of(raw.get("content")) or _refusal(raw),
        tuple(_chat_calls(raw)),
        answers if is_id(answers) else None,
        name if isinstance(name, str) else None,
    )


def is_id(value: Any) -> bool:
    """Tell whether a value can be the id of a call."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a text or a list of parts; parts are joined by line ends."""
    if isinstance(content, str):
        return content
    texts = (part.get(key) for part in _parts(content) if isinstance(part, Mapping) for key in _TEXT_KEYS)
    return "\n".join(text for text in texts if isinstance(text, str))


def _parts(content: Any) -> list[Any] | tuple[Any, ...]:
    return content if _is_list(content) else ()


def _is_list(content: Any) -> bool:
    return isinstance(content, list | tuple)


def _refusal(raw: Mapping[str, Any]) -> str:
    refusal = raw.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _chat_calls(raw: Mapping[str, Any]) -> Iterator[MessageCall]:
    for call in _parts(raw.get("tool_calls")):
        if not isinstance(call, Mapping) or not is_id(call.get("id")):
            continue
        custom = "custom" in call and "function" not in call
        function = call.get("custom" if custom else "function")
        if isinstance(function, Mapping):
            yield MessageCall(call["id"], _name(function), arguments_of(function))
    old = raw.get("function_call")
    if isinstance(old, Mapping) and is_id(old.get("name")):
        yield MessageCall(old["name"], old["name"], arguments_of(old))


def _name(call: Mapping[str, Any]) -> str:
    name = call.get("name")
    return name if isinstance(name, str) else str(call.get("type", ""))


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool call as a dict. Text that is not JSON stays text under its key."""
    for name in _ARGUMENT_KEYS:
        value = call.get(name)
        if isinstance(value, str):
            parsed = _parsed(value)
            return {name: value} if parsed is None else parsed
        if isinstance(value, Mapping):
            return dict(value)
    return {}


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deep(value, _DEPTH) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)  # NaN is not JSON, although json.loads accepts it


def _finite(text: str) -> float:
    """Return a number as a float; ValueError for one that is too large, such as 1e999."""
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _is_deep(value: Any, left: int) -> bool:
    """Tell whether a value is nested deeper than `left` levels."""
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
    return Facts("assistant", "", (MessageCall(call_id, str(name), arguments_of(raw)),))  # type: ignore[arg-type]


def _of_blocks(role: Any, content: Any) -> Facts:
    results = [block["tool_use_id"] for block in blocks_of(content, "tool_result") if is_id(block.get("tool_use_id"))]
    calls = [
        MessageCall(block["id"], _name(block), dict(block["input"]) if isinstance(block.get("input"), Mapping) else {})
        for block in blocks_of(content, "tool_use")
        if is_id(block.get("id"))
    ]
    text = "\n".join(texts_of_blocks(content))
    kind = "tool" if results else _ROLES.get(role, "assistant")
    return Facts(kind, text, tuple(calls), results[0] if results else None)


def blocks_of(content: Any, kind: str) -> list[Mapping[str, Any]]:
    """Return the blocks of one type in the content of an Anthropic message."""
    return [block for block in _parts(content) if isinstance(block, Mapping) and block.get("type") == kind]


def texts_of_blocks(content: Any) -> Iterator[str]:
    """Give the texts in the content of an Anthropic message, including tool results, without thinking."""
    if isinstance(content, str):
        yield content
    for block in _parts(content):
        if not isinstance(block, Mapping):
            continue
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from texts_of_blocks(block.get("content"))


# -- conversion ------------------------------------------------------------------------------------------


class Image(NamedTuple):
    """A picture: its URL, or its type and its bytes in base64."""

    url: str | None
    mime_type: str = ""
    data: str = ""


class NeutralMessage(NamedTuple):
    """A message without a provider's format: texts and pictures in order, and its calls or its answered call."""

    role: str
    parts: tuple[str | Image, ...]
    is_list: bool
    """Whether the provider's content was a list, even if it had only one text."""
    calls: tuple[MessageCall, ...] = ()
    answers: str | None = None
    failed: bool = False
    """Whether the answered call failed."""
    name: str | None = None


def read(raw: Mapping[str, Any], form: str) -> NeutralMessage:
    """Return a provider's message in neutral form; `Invalid` for a part that other providers lack."""
    if form == CHAT:
        return _read_chat(raw)
    return _read_item(raw) if form == RESPONSES else _read_anthropic(raw)


def _lost(path: str, what: str) -> Invalid:
    return Invalid(
        f"{path} is {what}, which messages of the other provider cannot contain", code="invalid.value", path=path
    )


def _refuse_rest(raw: Mapping[str, Any], known: set[str], path: str = "") -> None:
    """Raise `Invalid` for a field that is not in `known`, unless it is empty or only a hint for the provider."""
    for key, value in raw.items():
        if key not in known and key not in _HINTS and value not in (None, [], (), {}):
            raise _lost(f"{path}[{key!r}]" if path else repr(key)[1:-1], "a field")


def _texts(content: Any, path: str, kinds: tuple[str, ...] = ("text",)) -> Iterator[str | Image]:
    """Give the texts and pictures of a message's content; `Invalid` for a part of another type."""
    if isinstance(content, str):
        yield content
        return
    for at, part in enumerate(_parts(content)):
        where = f"{path}[{at}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in kinds and isinstance(part.get("text"), str):
            _refuse_rest(part, {"type", "text", "logprobs"}, where)
            yield part["text"]
        elif kind in ("image_url", "input_image", "image"):
            yield _image(part, where)
        else:
            raise _lost(where, f"a part of type {kind!r:.60}")


def _image(part: Mapping[str, Any], path: str) -> Image:
    if part["type"] == "image":
        _refuse_rest(part, {"type", "source"}, path)
        source = part.get("source")
        if isinstance(source, Mapping) and source.get("type") == "url" and isinstance(source.get("url"), str):
            return Image(source["url"])
        if isinstance(source, Mapping) and source.get("type") == "base64" and isinstance(source.get("data"), str):
            return Image(None, str(source.get("media_type")), source["data"])
        raise _lost(path, "an image that is neither a url nor base64")
    url = part.get("image_url")
    if isinstance(url, Mapping):
        _refuse_rest(url, {"url"}, f"{path}['image_url']")
        url = url.get("url")
    _refuse_rest(part, {"type", "image_url"}, path)
    if not isinstance(url, str):
        raise _lost(path, "an image without a url")
    mime, comma, data = url.removeprefix("data:").partition(";base64,")
    return Image(None, mime, data) if comma and url.startswith("data:") else Image(url)


def _checked_calls(calls: tuple[MessageCall, ...], raw: Any, path: str) -> tuple[MessageCall, ...]:
    """Return the calls of a message; `Invalid` if a call has no id, name or arguments."""
    if len(calls) != len(_parts(raw)) or any(each.name == "" for each in calls):
        raise _lost(path, "a list with a call without an id, name or arguments")
    return calls


def _read_chat(raw: Mapping[str, Any]) -> NeutralMessage:
    _refuse_rest(raw, {"role", "content", "tool_calls", "tool_call_id", "name"})
    parsed = facts(raw, CHAT)
    calls = _checked_calls(parsed.calls, raw.get("tool_calls"), "tool_calls")
    if any("custom" in call for call in _parts(raw.get("tool_calls"))):
        raise _lost("tool_calls", "a list with a custom call")
    for at, call in enumerate(_parts(raw.get("tool_calls"))):
        if _parsed(str(call["function"].get("arguments"))) is None:
            raise _lost(f"tool_calls[{at}]", "a call whose arguments are not a JSON object")
    content = raw.get("content")
    name = None if parsed.role == "tool" else parsed.name
    return NeutralMessage(
        parsed.role, tuple(_texts(content, "content")), _is_list(content), calls, parsed.answers, name=name
    )


def _read_item(raw: Mapping[str, Any]) -> NeutralMessage:
    parsed = facts(raw, RESPONSES)
    content = raw.get("content")
    if isinstance(raw.get("role"), str):
        _refuse_rest(raw, {"role", "content", "type", "id", "status", "phase"})
        texts = _texts(content, "content", ("input_text", "output_text"))
        return NeutralMessage(parsed.role, tuple(texts), _is_list(content))
    if raw.get("type") == "function_call" and parsed.calls and _parsed(str(raw.get("arguments"))) is not None:
        _refuse_rest(raw, {"type", "call_id", "name", "arguments", "id", "status"})
        return NeutralMessage("assistant", (), is_list=False, calls=parsed.calls)
    if raw.get("type") == "function_call_output" and parsed.answers is not None:
        _refuse_rest(raw, {"type", "call_id", "output", "id", "status"})
        output = raw.get("output")
        return NeutralMessage(
            "tool", tuple(_texts(output, "output", ("input_text",))), _is_list(output), answers=parsed.answers
        )
    raise _lost("type", f"{raw.get('type')!r:.60}")


def _read_anthropic(raw: Mapping[str, Any]) -> NeutralMessage:
    _refuse_rest(raw, {"role", "content", "id", "type", "model", "container", *_REPLY_KEYS})
    content = raw.get("content")
    uses, results = blocks_of(content, "tool_use"), blocks_of(content, "tool_result")
    parsed = facts(raw, ANTHROPIC)
    if results:
        if len(_parts(content)) > 1:
            raise _lost("content", "the results of several calls, or a result and something else, in one message")
        (result,) = results
        _refuse_rest(result, {"type", "tool_use_id", "content", "is_error"}, "content[0]")
        parts = tuple(_texts(result.get("content"), "content[0]['content']"))
        is_list = _is_list(result.get("content"))
        return NeutralMessage("tool", parts, is_list, answers=parsed.answers, failed=result.get("is_error") is True)
    for at, block in enumerate(_parts(content)):
        if block in uses:
            _refuse_rest(block, {"type", "id", "name", "input"}, f"content[{at}]")
    others = [block for block in _parts(content) if block not in uses]
    if uses and [*_parts(content)] != [*others, *uses]:
        raise _lost("content", "a list with other content after a call")
    calls = _checked_calls(parsed.calls, uses, "content")
    is_list = _is_list(content) and not (uses and len(others) <= 1)
    return NeutralMessage(
        parsed.role, tuple(_texts(others if _is_list(content) else content, "content")), is_list, calls
    )


def to_chat(message: NeutralMessage) -> dict[str, Any]:
    """Return a message in the format of Chat Completions."""
    raw: dict[str, Any] = {"role": message.role}
    if message.name is not None:
        raw["name"] = message.name
    if message.role == "tool":
        raw["tool_call_id"] = _answered_call(message)
    if message.failed:
        raise _lost("content[0]['is_error']", "the mark of a call that failed")
    if any(isinstance(part, Image) for part in message.parts) and message.role != "user":
        raise _lost("content", f"a picture in a message of role {message.role}")
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part.url or f"data:{part.mime_type};base64,{part.data}"}}
        for part in message.parts
    ]
    raw["content"] = _content(message, parts, None if message.calls else "")
    if message.calls:
        raw["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call)}}
            for call in message.calls
        ]
    return raw


def to_anthropic(message: NeutralMessage) -> dict[str, Any]:
    """Return a message in the format of Anthropic."""
    if message.name is not None:
        raise _lost("name", "the name of the author")
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "source": _source(part)}
        for part in message.parts
    ]
    if message.role == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _answered_call(message)}
        result["content"] = _content(message, blocks, "")
        if message.failed:
            result["is_error"] = True
        return {"role": "user", "content": [result]}
    if message.role == "system" and any(isinstance(part, Image) for part in message.parts):
        raise _lost("content", "a picture in a message of role system")
    if not message.calls:
        return {"role": message.role, "content": _content(message, blocks, "")}
    uses = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in message.calls]
    return {
        "role": message.role,
        "content": [block for block in blocks if block != {"type": "text", "text": ""}] + uses,
    }


def _content(message: NeutralMessage, parts: list[dict[str, Any]], nothing: str | None) -> Any:
    """Return the content: a text if the provider's was one, else a list."""
    if not message.is_list and len(message.parts) <= 1 and all(isinstance(part, str) for part in message.parts):
        return message.parts[0] if message.parts and (message.parts[0] or nothing is not None) else nothing
    return parts


def _source(image: Image) -> dict[str, Any]:
    if image.url is not None:
        return {"type": "url", "url": image.url}
    return {"type": "base64", "media_type": image.mime_type, "data": image.data}


def _answered_call(message: NeutralMessage) -> str:
    if message.answers is None:
        raise Invalid(
            "a message of role tool must name the call that it answers: use Message.tool_result(tool_call_id, ...)",
            code="invalid.value",
            path="metadata['tool_call_id']",
        )
    return message.answers


def _json(call: MessageCall) -> str:
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"the arguments of call {call.id!r} are not JSON: {error}", code="invalid.value", path="tool_calls"
        ) from error
