"""`plain`: texts that anybody may have written, made harmless to show."""

from __future__ import annotations

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
