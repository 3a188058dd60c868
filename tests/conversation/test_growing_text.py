"""Texts that come in pieces: the pieces that are shown, and the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.values.growing_text import GrowingText, whole, whole_json

SUN = "\N{SUN WITH FACE}"
FIRST, SECOND = "\ud83c", "\udf1e"


def units(text: str) -> str:
    """Return a text with each character beyond the Basic Multilingual Plane as its two halves."""
    raw = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(raw[index : index + 2], "little")) for index in range(0, len(raw), 2))


@given(st.text(alphabet=st.sampled_from(["a", "é", SUN, FIRST, SECOND, "\N{REPLACEMENT CHARACTER}"])), st.data())
def test_pieces_join_to_the_text_wherever_it_is_cut(text: str, data: st.DataObject) -> None:
    remaining, growing, shown = units(text), GrowingText(), []
    while remaining:
        size = data.draw(st.integers(1, len(remaining)))
        shown.append(growing.add(remaining[:size]))
        remaining = remaining[size:]
    shown.append(growing.end())
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(shown) == str(growing) == expected
    assert len(growing) == len(expected)
    for piece in shown:
        piece.encode()


def test_half_a_character_waits_for_the_other_half() -> None:
    growing = GrowingText()
    assert [growing.add(piece) for piece in ("a" + FIRST, SECOND + "b", FIRST)] == ["a", f"{SUN}b", ""]
    assert growing.end() == "\N{REPLACEMENT CHARACTER}" and growing.end() == ""


@pytest.mark.parametrize(
    ("begun", "text", "rest"),
    [
        (["Su"], "Sun", "n"),
        (["S", FIRST], f"S{SUN}", SUN),
        (["Sun"], "Sun", ""),
        (["Sun"], "Rain", ""),
        ([], "Sun", "Sun"),
    ],
)
def test_a_whole_text_completes_its_beginning_and_no_other(begun: list[str], text: str, rest: str) -> None:
    growing = GrowingText()
    for piece in begun:
        growing.add(piece)
    assert growing.complete(text) == rest
    assert growing.end() == "", "no half is left"


def test_all_texts_of_a_json_value_are_made_whole() -> None:
    assert whole_json({FIRST + SECOND: [FIRST, {"a": (SECOND, 1, None)}]}) == {
        SUN: ["\N{REPLACEMENT CHARACTER}", {"a": ("\N{REPLACEMENT CHARACTER}", 1, None)}]
    }
    assert whole("plain") == "plain"
