"""The arguments that a model writes for a tool call, and the answer to the model if they are no JSON object."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.conversation.blocks import ToolUse, decode, encode
from turnwise.memory.conversation.calls.call_arguments import read_call, refusal

FLAWED = [
    ('{"path": "/a', "line 1, column 13 (character 12 of 12)"),
    ('```json\n{"path": "/a"}\n```', "line 1, column 1 (character 0 of 26)"),
    ('{"path": "/a"}{"path": "/a"}', "line 1, column 15 (character 14 of 28)"),
    ('["/a"]', "it is a list, at line 1, column 1"),
    ('"/a"', "it is a text"),
    ("17", "it is a number"),
    ("true", "it is a truth value"),
    ("/a", "line 1, column 1"),
    ('{"size": NaN}', "line 1, column 10"),
    ('{"size": -Infinity}', "line 1, column 11"),
    ('{"size": 1e999}', "out of range, at line 1, column 10"),
    ('{"path": "/a", "more": {"path": 1}, "path": "/b"}', "'path' comes twice in one object, at line 1, column 37"),
    ('{"path":\n "\\ud83d"}', "line 2"),
    ('{"path": "\\x"}', "invalid escape"),
    ("{\"é\": 'x'}", "line 1, column 7 (character 6 of 10), near "),
    ('{"a":' * 150 + "1" + "}" * 150, "nested more than 100 levels deep, at line 1, column 501"),
    ('{"a":' * 5000, "recursion limit"),
]
"""Arguments that are no JSON object, and a part of the flaw that the model reads for each."""


@pytest.mark.parametrize(("text", "flaw"), FLAWED)
def test_the_model_is_told_what_is_wrong_with_arguments_and_where(text: str, flaw: str) -> None:
    use = read_call("c1", "delete", text)
    assert use.flaw and flaw in use.flaw
    assert use.input == {"unparsed": text}
    assert (refused := refusal(use)) and refused.is_error and refused.call_id == "c1"
    assert use.flaw in refused.text and "'delete' was not called" in refused.text
    assert len(refused.text) < 500
    assert decode(encode(use)) == use


def test_an_error_quotes_the_text_around_it() -> None:
    flaw = read_call("c1", "delete", '{"first": "' + "x" * 100 + '", "path": /all, "last": "' + "y" * 100 + '"}').flaw
    assert flaw and '"path": /all, "last"' in flaw


@pytest.mark.parametrize("text", ["", '{"path": "/a', '{"path": "/a"}{'])
def test_the_model_is_told_that_its_answer_may_have_been_cut(text: str) -> None:
    flaw = read_call("c1", "delete", text, is_cut=True).flaw
    assert flaw and "maximum length" in flaw
    assert "maximum length" not in (read_call("c1", "delete", text).flaw or "")


@pytest.mark.parametrize("text", ["", " ", "null", "{}", " {} "])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    assert read_call("c1", "look", text) == ToolUse(call_id="c1", name="look")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), VALUES), st.booleans())
def test_each_json_object_is_read_as_it_is(value: dict[str, object], ascii_only: bool) -> None:
    use = read_call("c1", "look", json.dumps(value, ensure_ascii=ascii_only, indent=1), is_cut=True)
    assert use.flaw is None
    assert json.loads(json.dumps(use.input)) == value


@given(st.text(alphabet='{}[]":,\\ aé\ud83d\U0001f31e1.eN-\n', max_size=30), st.booleans())
def test_any_text_is_read_or_has_a_flaw_and_can_be_stored(text: str, is_cut: bool) -> None:
    use = read_call("c1", "look", text, is_cut=is_cut)
    assert decode(encode(use)) == use
    assert json.dumps(use.input).encode()
