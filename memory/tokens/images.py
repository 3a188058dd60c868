"""Token counts of images and files, by the rules that providers publish.

The rules are those of OpenAI's guide "Images and vision", section on costs, and of Anthropic's guide "Vision", section
on image size: https://developers.openai.com/api/docs/guides/images-vision and
https://platform.claude.com/docs/en/build-with-claude/vision, as of 2026. If a rule depends on something unknown, such
as the size of an image at a URL, the highest possible count is used.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, kw_only=True)
class Patches:
    """One token per square of `side` pixels, after scaling the image down to at most `most` squares."""

    side: int
    most: int
    factor: float = 1.0
    """Tokens per patch."""

    def tokens(self, size: Size | None) -> int:
        """Return the tokens of an image; of the largest image if its size is unknown."""
        patches = ceil(size[0] / self.side) * ceil(size[1] / self.side) if size else self.most
        return ceil(min(patches, self.most) * self.factor)


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """`base` tokens, and `tile` per square of 512 pixels, after scaling the image down into 2048 by 768 pixels."""

    base: int
    tile: int

    def tokens(self, size: Size | None) -> int:
        """Return the tokens of an image; of the largest image if its size is unknown."""
        width, height = size or (2048, 768)
        long, short = max(width, height), min(width, height)
        scale = min(Fraction(1), Fraction(2048, long), Fraction(768, short))
        return self.base + self.tile * ceil(width * scale / 512) * ceil(height * scale / 512)


ImageRule = Patches | Tiles

OTHER = Patches(side=32, most=1536, factor=2.46)
"""The rule for unknown models: the most expensive of the rules by patches."""

_RULES: tuple[tuple[str, ImageRule], ...] = (
    ("gpt-5-mini", Patches(side=32, most=1536, factor=1.62)),
    ("gpt-5-nano", Patches(side=32, most=1536, factor=2.46)),
    ("gpt-5.1", Tiles(base=70, tile=140)),
    ("gpt-5.", OTHER),
    ("gpt-5", Tiles(base=70, tile=140)),
    ("gpt-4.1-mini", Patches(side=32, most=1536, factor=1.62)),
    ("gpt-4.1-nano", Patches(side=32, most=1536, factor=2.46)),
    ("gpt-4o-mini", Tiles(base=2833, tile=5667)),
    ("gpt-4", Tiles(base=85, tile=170)),
    ("o4-mini", Patches(side=32, most=1536, factor=1.72)),
    ("o1", Tiles(base=75, tile=150)),
    ("o3", Tiles(base=75, tile=150)),
    ("claude-3", Patches(side=28, most=1568)),
    ("claude-haiku-4", Patches(side=28, most=1568)),
    ("claude-sonnet-4", Patches(side=28, most=1568)),
    ("claude-opus-4-7", Patches(side=28, most=4784)),
    ("claude-opus-4-8", Patches(side=28, most=4784)),
    ("claude-opus-4", Patches(side=28, most=1568)),
    ("claude", Patches(side=28, most=4784)),
)
"""Rules by the beginning of the model's name. The first match applies."""


def image_rule(model: str) -> ImageRule:
    """Return the rule of a model: `gpt-4o`, also as `openai/gpt-4o` or `ft:gpt-4o:...`."""
    name = model.lower().rpartition("/")[2].removeprefix("ft:").removeprefix("chat")
    name = name[max(name.find("claude"), 0) :]
    return next((rule for start, rule in _RULES if name.startswith(start)), OTHER)


# Sizes

_HEAD = 1 << 20
"""Base64 characters in which an image's size is searched for. Previews in its metadata may come before it."""


def image_size(data: str) -> Size | None:
    """Return the size of a base64-encoded PNG, JPEG, GIF or WebP; None if it cannot be determined."""
    try:
        head = base64.b64decode(data[:_HEAD] + "=" * (-len(data[:_HEAD]) % 4))
        size = _size(head)
    except (ValueError, struct.error, IndexError):
        return None
    return size if size and min(size) > 0 else None


def _size(head: bytes) -> Size | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", head, 16)
    elif head.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", head, 6)
    elif head.startswith(b"\xff\xd8"):
        return _jpeg_size(head)
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    else:
        return None
    return width, height


_MARKER = 0xFF
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of JPEG frames, without the three markers of tables among them."""


def _jpeg_size(head: bytes) -> Size | None:
    """Return the size in the first frame header."""
    offset = 2
    while head[offset] == _MARKER:
        if head[offset + 1] in _FRAMES:
            height, width = struct.unpack_from(">HH", head, offset + 5)
            return width, height
        is_filler = head[offset + 1] == _MARKER
        offset += 1 if is_filler else 2 + struct.unpack_from(">H", head, offset + 2)[0]
    return None


def _webp_size(head: bytes) -> Size | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            wide, wider, high, higher = struct.unpack_from("<HBHB", head, 24)
            return (wider << 16 | wide) + 1, (higher << 16 | high) + 1
    return None


# Files

PAGE_TEXT = 3000
"""Tokens of a page's text: the upper end of Anthropic's range. Providers add an image of each page."""

UNSEEN_PAGES = 10
"""The assumed page count of a file that is given only by URL."""

_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_OBJECTS = re.compile(rb"/ObjStm.{0,400}?stream\r?\n", re.DOTALL)
_PAGE_BYTES = 2000
_MAX_OBJECTS = 1 << 22


def pdf_pages(data: bytes) -> int:
    """Return the number of pages; if it cannot be determined, one per 2,000 bytes."""
    pages = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(objects)) for objects in _packed_objects(data))
    return pages or max(1, len(data) // _PAGE_BYTES)


def _packed_objects(data: bytes) -> Iterator[bytes]:
    """Yield the beginnings of object streams, which contain the pages in newer files."""
    for match in _OBJECTS.finditer(data):
        try:
            yield zlib.decompressobj().decompress(data[match.end() :], _MAX_OBJECTS)
        except zlib.error:
            continue
