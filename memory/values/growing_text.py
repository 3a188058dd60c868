"""`GrowingText`: a text that comes in pieces, such as an answer that is streamed."""

from __future__ import annotations

from typing import Any


class WholeCharacters:
    """Passes a text on in pieces of whole characters.

    Providers escape a character beyond the Basic Multilingual Plane as two halves, and some cut their streams between
    them. A first half at the end of a piece is kept back until the second one comes.
    """

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Return the kept half and the piece, without a first half at the end of the piece. O(the piece)."""
        if self._half:
            piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return whole(piece)

    def end(self) -> str:
        """Return the replacement of a kept half whose other half never came; an empty text if no half is kept."""
        half, self._half = self._half, ""
        return whole(half)


class GrowingText:
    """A text that comes in pieces. To add one is O(its length); to read the text joins the pieces, once.

    No piece ends in half a character (see `WholeCharacters`), and the text is always one that UTF-8 and JSON can hold.
    """

    __slots__ = ("_characters", "_pieces", "_size")

    def __init__(self, text: str = "") -> None:
        self._pieces: list[str] = []
        self._characters = WholeCharacters()
        self._size = 0
        self._append(whole(text))

    def add(self, piece: str) -> str:
        """Add a piece; return the whole characters of the half kept before it and of the piece."""
        return self._append(self._characters.add(piece))

    def end(self) -> str:
        """End the text; return the replacement of a half that was kept back, which is added, or an empty text."""
        return self._append(self._characters.end())

    def complete(self, text: str) -> str:
        """End the text: add the rest of a whole text that begins with it, and return that rest.

        Of a whole text that does not begin with this one, nothing is added. O(the whole text).
        """
        text = whole(text)
        if not text.startswith(str(self)):
            return self.end()
        self._characters = WholeCharacters()
        return self._append(text[self._size :])

    def _append(self, text: str) -> str:
        if text:
            self._pieces.append(text)
            self._size += len(text)
        return text

    def __str__(self) -> str:
        """The text so far, without a half that is kept back."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def __len__(self) -> int:
        """The number of its characters, so that a text without any is false."""
        return self._size


def whole(text: str) -> str:
    """Return the text with surrogate pairs as the characters that they stand for, and lone halves replaced.

    Half of a pair is valid in JSON's escapes, but no store and no provider takes it.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_json(value: Any) -> Any:
    """Return a JSON value, frozen or not, with all its texts and names `whole`, in containers of the same kinds."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return type(value)({whole_json(key): whole_json(item) for key, item in value.items()})
    return type(value)(map(whole_json, value)) if isinstance(value, list | tuple) else value
