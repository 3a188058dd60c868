"""Texts that anybody may have written: `plain` makes them harmless to show, `decoded_text` reads them of bytes."""

from __future__ import annotations

import codecs

_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {127: "\u2421"}
_HIDDEN = [*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF]
_NAMED = {code: f"\u27e8U+{code:04X}\u27e9" for code in _HIDDEN}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_VISIBLE = _PICTURES | _NAMED | _SURROGATES


def plain(text: str) -> str:
    """Return the text with all characters visible that would steer a terminal or turn the direction of writing.

    An escape becomes its picture, a direction mark its number. Letters of any script stay as they are.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE)


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Marks by which a file tells its encoding. That of UTF-32 begins with that of UTF-16."""


def decoded_text(data: bytes) -> str:
    """Return the text of a file: as UTF-8, as the mark at its beginning says, or else as Latin-1, which takes any."""
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(marked)
    except UnicodeDecodeError:
        return data.decode("latin-1")
