import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import EmptyDocument, FileTooLarge, MalformedMarkup, ReadError, SourceError
from datapipe.sources import json_lines, sessions
from schemas import document as document_schema
from tests import make

PICTURE = make.picture(seed=3)
BASE64 = base64.b64encode(PICTURE).decode()
DATA_URI = f"data:image/png;base64,{BASE64}"


def seen(value: Any, uri: str = "runs/a.json") -> list[tuple[str, str | None]]:
    """Role and text of each item; of a picture or video whether its bytes are there, or its link."""
    document = sessions.read(json.dumps(value).encode(), uri)
    assert document.format == "session"
    return [
        (i.role, i.text) if i.kind == "text" else (i.kind, "PICTURE" if i.data == PICTURE else i.href)
        for i in document.items
    ]


def chat(*messages: Any, **more: Any) -> list[tuple[str, str | None]]:
    return seen({"messages": list(messages), **more})


def test_chat_with_tools_thinking_and_a_screenshot_keeps_its_order() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "cat", "arguments": '{"n": 2, "path": "a"}'}}
    assert chat(
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "image_url", "image_url": {"url": DATA_URI}},
            ],
        },
        {
            "role": "assistant",
            "reasoning_content": "Look first.",
            "content": None,
            "tool_calls": [call, call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "  line 1\n  line 2\n"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "image_url", "image_url": "shots/1.png"}],
        },
        {"role": "assistant", "content": "Done."},
        tools=[{"type": "function", "function": {"name": "cat", "description": "prints"}}],
    ) == [
        ("system", '{"function": {"description": "prints", "name": "cat"}, "type": "function"}'),
        ("system", "Be brief."),
        ("user", "See:"),
        ("image", "PICTURE"),
        ("thinking", "Look first."),
        ("tool_call", 'cat {"n": 2, "path": "a"}'),
        ("tool_call", 'cat {"n": 2, "path": "a"}'),
        ("tool_result", "  line 1\n  line 2\n"),
        ("image", "runs/shots/1.png"),
        ("assistant", "Done."),
    ]


def test_content_blocks_are_read_with_what_tools_gave_back() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    assert chat(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "screenshot", "input": {"b": 1, "a": "ä"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "taken"}, image],
                },
                {"type": "tool_result", "tool_use_id": "u", "content": "plain", "is_error": True},
                {"type": "document", "title": "Notes", "source": {"type": "text", "data": "Body"}},
                {"type": "text", "text": "And now?"},
            ],
        },
        system=[{"type": "text", "text": "You are a tester."}],
    ) == [
        ("system", "You are a tester."),
        ("thinking", "Hm."),
        ("assistant", "I look."),
        ("tool_call", 'screenshot {"a": "ä", "b": 1}'),
        ("tool_result", "taken"),
        ("image", "PICTURE"),
        ("tool_result", "plain"),
        ("user", "Notes"),
        ("user", "Body"),
        ("user", "And now?"),
    ]


def test_items_of_a_response_interface_are_read() -> None:
    screenshot = {"type": "computer_screenshot", "image_url": DATA_URI}
    value = {
        "instructions": "Click.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Go"},
                    {"type": "input_image", "image_url": "s.png"},
                ],
            }
        ],
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "First click."}]},
            {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "ok"},
            {"type": "computer_call", "call_id": "2", "action": {"type": "click", "x": 3, "y": 4}},
            {"type": "computer_call_output", "call_id": "2", "output": screenshot},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "There."}]},
        ],
    }
    assert seen(value) == [
        ("system", "Click."),
        ("user", "Go"),
        ("image", "runs/s.png"),
        ("thinking", "First click."),
        ("tool_call", "f {}"),
        ("tool_result", "ok"),
        ("tool_call", 'computer_call {"type": "click", "x": 3, "y": 4}'),
        ("image", "PICTURE"),
        ("assistant", "There."),
    ]


def test_conversations_put_their_pictures_where_the_markers_are() -> None:
    turns = [
        {"from": "human", "value": "<image>\nWhat differs from <image>?"},
        {"from": "gpt", "value": "<think>\nLet me see.\n</think>\n\nThe colour."},
        {"from": "function_call", "value": '{"name": "f"}'},
        {"from": "observation", "value": "<video> out"},
    ]
    assert seen({"conversations": turns, "image": ["a.png", DATA_URI], "videos": ["v.mp4"]}) == [
        ("image", "runs/a.png"),
        ("user", "What differs from"),
        ("image", "PICTURE"),
        ("user", "?"),
        ("thinking", "Let me see."),
        ("assistant", "The colour."),
        ("tool_call", '{"name": "f"}'),
        ("video", "runs/v.mp4"),
        ("tool_result", "out"),
    ]


def test_pictures_beside_the_messages_fill_parts_that_name_none_and_the_rest_follow() -> None:
    part = {"type": "image"}
    pictures = {"images": [{"bytes": BASE64, "path": "x.png"}, {"path": "shot 1.png"}]}
    assert chat({"role": "user", "content": [part, {"type": "text", "text": "t"}]}, **pictures) == [
        ("image", "PICTURE"),
        ("user", "t"),
        ("image", "runs/shot 1.png"),
    ]
    assert chat({"role": "user", "content": [part, {"type": "text", "text": "<image> of it"}]}) == [
        ("image", "data:,unreadable"),
        ("user", "<image> of it"),
    ]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (DATA_URI, "PICTURE"),
        (f"data:image/png;base64,{BASE64.replace('=', '%3D').replace('/', '%2F')}", "PICTURE"),
        (BASE64, "PICTURE"),
        (BASE64.rstrip("=").replace("+", "-").replace("/", "_"), "PICTURE"),
        ("data:image/png;base64,####", "data:,unreadable"),
        ("data:image/png;base64,", "data:,unreadable"),
        ("../up.png", "up.png"),
        ("a%20b.png", "runs/a b.png"),
        ("https://example.org/x.png", "https://example.org/x.png"),
        ({"url": "x.png", "detail": "low"}, "runs/x.png"),
        ({"type": "url", "url": "https://example.org/x"}, "https://example.org/x"),
        ({"file_id": "f-1"}, "file:f-1"),
    ],
)
def test_pictures_are_named_in_many_ways(link: Any, expected: str) -> None:
    assert chat({"role": "user", "content": [{"type": "image", "image": link}]}) == [("image", expected)]


def test_arguments_are_canonical_and_kept_as_they_are_where_they_are_no_json() -> None:
    def call(arguments: Any) -> str | None:
        return chat({"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]})[0][1]

    assert call('{"b":1,"a":{"d":[1.0,2],"c":null}}') == 'f {"a": {"c": null, "d": [1.0, 2]}, "b": 1}'
    assert call({"a": "é"}) == 'f {"a": "é"}'
    assert call('{"a": 1') == 'f {"a": 1'
    assert call("") == call(None) == "f"


def test_a_tool_may_give_back_json_or_nothing() -> None:
    assert chat(
        {"role": "user", "content": "x"},
        {"role": "tool", "content": {"t": 20}},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": None},
    ) == [("user", "x"), ("tool_result", '{"t": 20}')]


def test_a_file_may_be_the_list_of_messages_or_hold_one_session_in_a_list() -> None:
    messages = [{"role": "user", "content": "x"}]
    assert seen(messages) == seen([{"messages": messages}]) == [("user", "x")]
    with pytest.raises(MalformedMarkup, match="2 sessions"):
        seen([{"messages": messages}] * 2)


def test_title_and_language_are_taken() -> None:
    value = {"messages": [{"role": "user", "content": "x"}], "title": "A  chat", "language": "de-DE"}
    document = sessions.read(json.dumps(value).encode(), "x.json")
    assert (document.title, document.lang) == ("A chat", "de")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": "x"}, "messages: none"),
        ("x", "not str"),
        ({"messages": ["x"]}, r"messages\[0\]: str"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]\.role: None"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "'wizard'"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\]\.content: int"),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            r"content\[0\]\.type: 'hologram'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, r"\.text: int"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, r"tool_calls\[0\]\.name"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, r"tool_calls: int"),
        ({"messages": [{"role": "user", "content": [["x"]]}]}, "a list in a list"),
    ],
)
def test_what_is_no_session_is_refused_by_the_field(value: Any, message: str) -> None:
    with pytest.raises(MalformedMarkup, match=message):
        seen(value)


def test_a_session_in_which_nothing_is_said_is_empty() -> None:
    with pytest.raises(EmptyDocument):
        chat({"role": "user", "content": "  "})


def lines(*values: Any) -> io.BytesIO:
    return io.BytesIO(
        b"".join((v if isinstance(v, bytes) else json.dumps(v).encode()) + b"\n" for v in values)
    )


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_each_line_is_a_session_and_a_broken_one_does_not_stop_the_others() -> None:
    file = lines(said("one"), b"", b'{"messages": [', said("two"), {"no": 1}, b"\xff\xfe{", said("three"))
    assert sessions.count(file) == 6
    found = list(sessions.members(file, 0, 6))
    assert [member.name for member in found] == ["1", "3", "4", "5", "6", "7"]
    texts = []
    for member in found:
        try:
            texts.append(member.document().items[0].text)
        except ReadError as error:
            texts.append(f"{type(error).__name__}: {str(error)[:7]}")
    assert texts == [
        "one",
        "MalformedMarkup: line 3:",
        "two",
        "MalformedMarkup: line 5:",
        "MalformedMarkup: line 6:",
        "three",
    ]
    with pytest.raises(SourceError):
        found[0].load("a.png")


def test_a_byte_order_mark_and_a_last_line_without_its_end_are_read() -> None:
    file = io.BytesIO(
        b"\xef\xbb\xbf" + lines(said("one"), said("two")).getvalue().rstrip(b"\n").replace(b"\n", b"\r\n")
    )
    assert [m.document().items[0].text for m in sessions.members(file, 0, 9)] == ["one", "two"]


def test_a_range_of_lines_is_read_without_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_CHUNK_BYTES", 64)
    file = lines(*(said(str(number)) for number in range(100)))
    assert [m.document().items[0].text for m in sessions.members(file, 10, 13)] == ["10", "11", "12"]
    assert file.tell() < len(file.getvalue()) / 4
    assert sessions.count(file) == 100


def test_a_line_that_is_too_long_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 256)
    long, last = sessions.members(lines(said("x" * 100_000), said("last")), 0, 2)
    assert len(long.content) < 1000
    with pytest.raises(FileTooLarge, match="line 1"):
        long.document()
    assert last.document().items[0].text == "last"


def test_half_surrogate_pairs_do_not_reach_a_table() -> None:
    [item] = sessions.read(
        b'{"messages": [{"role": "user", "content": "a\\ud83d b \\ud83d\\ude00"}]}', "x"
    ).items
    assert item.text == "a\ufffd b \U0001f600"


KEYS = (
    *(
        "role",
        "content",
        "type",
        "text",
        "image",
        "image_url",
        "source",
        "data",
        "url",
        "tool_calls",
        "function",
    ),
    *(
        "name",
        "arguments",
        "thinking",
        "input",
        "output",
        "messages",
        "from",
        "value",
        "images",
        "tools",
        "system",
    ),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_a_session_or_refused(value: Any) -> None:
    try:
        document = sessions.from_object(
            {"messages": value if isinstance(value, list) else [value]}, "a/b.json"
        )
    except ReadError:
        return
    assert {i.role for i in document.items} <= set(document_schema.ROLES)
    for item in document.items:
        assert (item.text or "").encode() or item.href or item.data


roles = st.sampled_from(["system", "user", "assistant", "tool"])


@given(
    st.lists(st.tuples(roles, st.text(min_size=1).filter(lambda t: t.strip() and "<" not in t)), min_size=1)
)
def test_every_word_is_kept_in_its_order(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    assert chat(*messages) == [("tool_result" if role == "tool" else role, text) for role, text in turns]
