"""Texts are made harmless to show, and stay readable."""

import pytest

from turnwise.console.elements.text import ago, json_text
from turnwise.memory.values.plain_text import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab\r\n", "two\nlines\tand a tab\n"),
        ("\x1b[2J\x1b]8;;http://x\x07", "\u241b[2J\u241b]8;;http://x\u2407"),
        ("\x00\x7f\x9b31m", "\u2400\u2421\u27e8U+009B\u27e931m"),
        ("\u202eexe.gnp\u2069", "\u27e8U+202E\u27e9exe.gnp\u27e8U+2069\u27e9"),
        ("\ud800", "\ufffd"),
        ("<b>&amp;</b> {{ 1 }}", "<b>&amp;</b> {{ 1 }}"),
        ("שלום مرحبا 你好 👩\u200d💻", "שלום مرحبا 你好 👩\u200d💻"),
    ],
)
def test_control_and_direction_characters_are_shown_as_signs(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(shown) == shown


def test_json_and_times_are_read_by_people() -> None:
    assert json_text({"é": ["\x1b"]}) == '{\n  "é": [\n    "\\u001b"\n  ]\n}'
    assert [ago(time, 100_000) for time in (99_990, 99_000, 90_000, 0)] == [
        "just now",
        "17 min ago",
        "3 h ago",
        "1970-01-01 00:00:00 UTC",
    ]
