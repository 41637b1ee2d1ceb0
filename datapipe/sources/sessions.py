"""Agent sessions: chats with thinking, tool calls, tool results and screenshots, as documents.

Owns which part of a message becomes which item, in the order the session has them. Reads the messages of
chat-completions interfaces, content blocks (`tool_use`, `tool_result`, `thinking`), the items of response
interfaces (`function_call`, `function_call_output`, `reasoning`), and `conversations` of `from` and `value`.

    {"role": "user", "content": "What is in the file?"}                     user       What is in the file?
    {"role": "assistant", "reasoning_content": "Look.", "tool_calls":       thinking   Look.
      [{"function": {"name": "cat", "arguments": "{\"path\": \"a\"}"}}]}    tool_call  cat {"path": "a"}
    {"role": "tool", "content": [{"type": "image_url", ...}]}               figure

A tool call is its name and its arguments as canonical JSON. Definitions of tools come first, as system text,
one a line. Ids of calls, signatures and sounds are left out; a part that no rule here knows is an error, for
leaving it out would change what was said.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from datapipe.errors import MalformedMarkup, ReadError, SourceError
from datapipe.sources import json_lines, json_media
from datapipe.sources.items import Item, Member, RawDocument, document
from datapipe.sources.json_lines import canonical, tidy
from datapipe.sources.json_media import NOWHERE

FORMAT = "session"
MESSAGE_KEYS = ("messages", "conversations", "conversation", "history", "input", "output")

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "ai", "chatgpt", "bot"), "assistant"),
    **dict.fromkeys(
        ("tool", "function", "observation", "function_response", "tool_response", "ipython"), "tool_result"
    ),
    **dict.fromkeys(("function_call", "tool_call"), "tool_call"),
    **dict.fromkeys(("thinking", "thought", "reasoning"), "thinking"),
}
_TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_IMAGES = ("image", "image_url", "input_image", "output_image", "computer_screenshot")
_VIDEOS = ("video", "video_url", "input_video")
_SILENT = (
    "redacted_thinking",
    "reasoning.encrypted",
    "input_audio",
    "audio",
    "audio_url",
    "container_upload",
    "item_reference",
)
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
_MAX_DEPTH = 8  # of content inside content
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_MARKER = re.compile(r"<(image|video)>")


def read(data: bytes, uri: str) -> RawDocument:
    """Read a JSON file that holds one session: an object with messages, or the list of them.

    Raises:
        MalformedMarkup: it is no JSON or no session; the message names the field.
        EmptyDocument: nothing was said.
    """
    value = json_lines.parse(data)
    if isinstance(value, list) and value and isinstance(value[0], dict) and is_session(value[0]):
        if len(value) > 1:
            raise MalformedMarkup(f"a list of {len(value)} sessions; write them one a line, as .jsonl")
        value = value[0]
    return from_object({"messages": value} if isinstance(value, list) else value, uri)


def count(file: BinaryIO) -> int:
    """Return how many sessions a file of JSON lines holds."""
    return json_lines.count_lines(file)


def members(file: BinaryIO, start: int, stop: int) -> Iterator[Member]:
    """Yield the sessions `start` to `stop` (exclusive) of a file of JSON lines; a line's name is its number.

    Paths of screenshots are relative to the file. A broken line raises when its document is read.
    """
    for place, (number, line) in enumerate(json_lines.lines(file)):
        if place >= stop:
            return
        if place >= start:
            yield Member(str(number), line, functools.partial(_of_line, line, number), _load)


def is_session(value: Any) -> bool:
    """Return whether an object has messages."""
    return isinstance(value, dict) and any(
        isinstance(value.get(key), list) and value[key] and isinstance(value[key][0], dict)
        for key in MESSAGE_KEYS
    )


def from_object(value: Any, uri: str) -> RawDocument:
    """Return a session as a document.

    Args:
        uri: of the file; paths of pictures are relative to it.

    Raises:
        MalformedMarkup: it is no session; the message names the field.
        EmptyDocument: nothing was said.
    """
    if not isinstance(value, dict):
        raise MalformedMarkup(f"a session is an object with messages, not {type(value).__name__}")
    keys = [key for key in MESSAGE_KEYS if isinstance(value.get(key), list)]
    if not keys:
        raise MalformedMarkup(f"messages: none in an object with {sorted(map(str, value))[:8]}")
    reading = _Session(uri, value)
    items = list(reading.preamble(value))
    for key in keys if keys[0] == "input" else keys[:1]:
        for number, message in enumerate(value[key]):
            items += reading.message(message, f"{key}[{number}]")
    items += reading.media_left()
    return document(
        FORMAT, _string(value, "title"), _string(value, "lang") or _string(value, "language"), items
    )


def _of_line(line: bytes, number: int) -> RawDocument:
    try:
        return from_object(json_lines.parse(line), "")
    except ReadError as error:
        raise type(error)(f"line {number}: {error}") from error


def _load(href: str) -> bytes:
    """Refuse a path: the file holds its pictures inline, others lie beside it."""
    raise SourceError(f"{href!r} is not in the file of sessions")


class _Session:
    """A session while its messages are read: where it is from, and its pictures that only a marker names."""

    def __init__(self, uri: str, value: dict[str, Any]) -> None:
        self.uri = uri
        self.waiting = {
            kind: [item for key in (f"{kind}s", kind) for item in self.listed(value.get(key), kind)]
            for kind in ("image", "video")
        }

    def listed(self, values: Any, kind: str) -> list[Item]:
        values = values if isinstance(values, list) else [values]
        return [item for v in values if (item := json_media.medium(v, kind, self.uri)) is not None]

    def preamble(self, value: dict[str, Any]) -> Iterator[Item]:
        """Yield the definitions of tools and the system text that stand beside the messages."""
        tools = value.get("tools") or value.get("functions")
        if isinstance(tools, str):
            yield from _text("system", tools)
        elif isinstance(tools, list):
            yield from _text("system", "\n".join(t if isinstance(t, str) else canonical(t) for t in tools))
        for key in ("system", "system_prompt", "instructions"):
            yield from self.content(value.get(key), "system", key)

    def media_left(self) -> Iterator[Item]:
        """Yield the pictures and videos that no marker named."""
        for items in self.waiting.values():
            yield from items

    def message(self, message: Any, name: str) -> Iterator[Item]:
        """Yield the items of a message, or of an item of a response interface."""
        if not isinstance(message, dict):
            raise MalformedMarkup(f"{name}: {type(message).__name__}, not an object with role and content")
        said_by = message.get("role", message.get("from"))
        if said_by is None and isinstance(message.get("type"), str):
            yield from self.part(message, "assistant", name, 0)
            return
        role = _ROLES.get(said_by) if isinstance(said_by, str) else None
        if role is None:
            raise MalformedMarkup(f"{name}.role: {said_by!r} is none of {sorted(set(_ROLES))}")
        for key in _THINKING_KEYS:
            if message.get(key):  # the same words often stand under two of these
                yield from self.content(message[key], "thinking", f"{name}.{key}")
                break
        else:
            yield from self.content(message.get("reasoning_details"), "thinking", f"{name}.reasoning_details")
        for kind in ("image", "video"):
            yield from self.listed(message.get(f"{kind}s"), kind)
        content = message.get("content", message.get("value"))
        if role == "tool_call" and isinstance(content, str):
            yield from _text("tool_call", content)
        else:
            yield from self.content(content, role, f"{name}.content")
        yield from self.calls(message, name)

    def calls(self, message: dict[str, Any], name: str) -> Iterator[Item]:
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise MalformedMarkup(f"{name}.tool_calls: {type(calls).__name__}, not a list")
        for number, call in enumerate(calls):
            yield _call(call, f"{name}.tool_calls[{number}]")
        if message.get("function_call"):
            yield _call(message["function_call"], f"{name}.function_call")

    def content(self, content: Any, role: str, name: str, depth: int = 0) -> Iterator[Item]:
        """Yield the items of what a message says: a string, a part, or a list of both."""
        if content is None:
            return
        if isinstance(content, str):
            yield from self.string(content, role)
        elif isinstance(content, list):
            for number, part in enumerate(content):
                if isinstance(part, list):
                    raise MalformedMarkup(f"{name}[{number}]: a list in a list")
                yield from self.content(part, role, f"{name}[{number}]", depth)
        elif isinstance(content, dict) and role == "tool_result" and not _is_part(content):
            yield from _text(role, canonical(content))
        elif isinstance(content, dict):
            yield from self.part(content, role, name, depth)
        else:
            raise MalformedMarkup(f"{name}: {type(content).__name__}, not text or a list of parts")

    def string(self, text: str, role: str) -> Iterator[Item]:
        """Yield the items of a text: thinking in its tags apart, pictures where markers stand for them."""
        if role == "assistant" and (thought := _THINK.match(text)):
            yield from _text("thinking", thought.group(1).strip())
            text = text[thought.end() :]
        if not any(self.waiting.values()):
            yield from _text(role, text)
            return
        rest = 0
        for marker in _MARKER.finditer(text):
            waiting = self.waiting[marker.group(1)]
            if waiting:
                yield from _text(role, text[rest : marker.start()].strip())
                yield waiting.pop(0)
                rest = marker.end()
        yield from _text(role, text[rest:].lstrip() if rest else text)

    def part(self, part: dict[str, Any], role: str, name: str, depth: int) -> Iterator[Item]:
        """Yield the items of a part of a message; which one it is, its type says."""
        type = part.get("type") or next(
            (k for k in ("text", "image", "video", "image_url") if k in part), None
        )
        if depth > _MAX_DEPTH:
            raise MalformedMarkup(f"{name}: content inside content, more than {_MAX_DEPTH} deep")
        if type in _SILENT:
            return
        if type in _TEXTS:
            said = part.get(type, part.get("text", part.get("content")))
            if not isinstance(said, str):
                raise MalformedMarkup(f"{name}.text: {said.__class__.__name__}, not a string")
            yield from self.string(said, role)
        elif type in _IMAGES or type in _VIDEOS:
            yield from self.medium(part, "image" if type in _IMAGES else "video", type)
        elif type == "message":
            yield from self.message(part, name)
        elif type == "thinking" or (isinstance(type, str) and type.startswith("reasoning")):
            for key in ("thinking", "summary", "content", "text"):
                yield from self.content(part.get(key), "thinking", f"{name}.{key}", depth + 1)
        elif type == "document":
            yield from _text(role, _string(part, "title") or "")
            yield from self.document(part.get("source"), role, name, depth)
        elif isinstance(type, str) and _is_call(type, part):
            yield _call(part, name)
        elif isinstance(type, str) and type.endswith(("_result", "_output", "_response")):
            yield from self.result(part, name, depth)
        elif isinstance(part.get("text"), str):
            yield from self.string(part["text"], role)
        else:
            raise MalformedMarkup(f"{name}.type: {type!r} is no part that is known here")

    def medium(self, part: dict[str, Any], kind: str, type: str) -> Iterator[Item]:
        """Yield the picture or video of a part; one that names none takes the next beside the messages."""
        keys = (type, kind, f"{kind}_url", "source", "url", "path", "data", "file_id")
        for key in keys:
            value = {key: part[key]} if key == "file_id" and key in part else part.get(key)
            if (item := json_media.medium(value, kind, self.uri)) is not None:
                yield item
                return
        yield self.waiting[kind].pop(0) if self.waiting[kind] else Item(kind, "figure", href=NOWHERE)

    def document(self, source: Any, role: str, name: str, depth: int) -> Iterator[Item]:
        """Yield the text of a document part; a file in it (base64, a link) is not unpacked."""
        if not isinstance(source, dict):
            return
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            yield from _text(role, source["data"])
        elif source.get("type") == "content":
            yield from self.content(source.get("content"), role, f"{name}.source", depth + 1)

    def result(self, part: dict[str, Any], name: str, depth: int) -> Iterator[Item]:
        """Yield what a tool gave back; an object that is no part is its JSON."""
        found = part.get("content", part.get("output", part.get("result")))
        if found is None:
            shown = (_string(part, key) for key in ("title", "text", "url"))
            yield from _text("tool_result", "\n".join(line for line in shown if line))
        elif isinstance(found, (bool, int, float)):
            yield from _text("tool_result", canonical(found))
        else:
            yield from self.content(found, "tool_result", name, depth + 1)


def _is_part(content: dict[str, Any]) -> bool:
    return isinstance(content.get("type"), str) or "text" in content


def _is_call(type: str, part: dict[str, Any]) -> bool:
    is_named = isinstance(part.get("name"), str) or isinstance(part.get("function"), dict)
    return type == "function" or (type.endswith(("_call", "_use")) and (is_named or "action" in part))


def _call(call: Any, name: str) -> Item:
    """Return a tool call as an item: its name, then its arguments as JSON where they are JSON."""
    if not isinstance(call, dict):
        raise MalformedMarkup(f"{name}: {type(call).__name__}, not an object with name and arguments")
    function = call["function"] if isinstance(call.get("function"), dict) else call
    called = function.get("name") or (call.get("type") if "action" in call else None)
    if not isinstance(called, str) or not called:
        raise MalformedMarkup(f"{name}.name: {called!r}, not the name of a tool")
    keys = ("arguments", "input", "parameters", "args", "action")
    arguments = next((function[key] for key in keys if function.get(key) is not None), None)
    if isinstance(arguments, str):
        try:
            arguments = json_lines.parse(arguments.encode("utf-8", "surrogatepass"))
        except MalformedMarkup:
            return Item("text", "tool_call", text=tidy(f"{called} {arguments}".rstrip()))
    written = "" if arguments is None else " " + canonical(arguments)
    return Item("text", "tool_call", text=tidy(called) + written)


def _text(role: str, text: str) -> Iterator[Item]:
    if text.strip():
        yield Item("text", role, text=tidy(text))


def _string(value: dict[str, Any], key: str) -> str | None:
    found = value.get(key)
    return tidy(found) if isinstance(found, str) else None
