"""Token counts: by a vocabulary, by bytes, and cached by log and position."""

import base64
import hashlib
import pickle
import random
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import requests
import tiktoken
from tiktoken import registry
from tiktoken.load import load_tiktoken_bpe

from turnwise.errors import ConfigError, CorruptRecordError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.tokens import counter as tokens
from turnwise.memory.tokens.counter import FRAMING, ByteCounter, TiktokenCounter, TokenCounter, counter_for
from turnwise.memory.tokens.images import OTHER, Patches, Tiles, image_rule, image_size, pdf_pages
from turnwise.memory.tokens.index import TokenIndex

URL = "https://example.org/tiny.tiktoken"
MERGES = [b"th", b"the", b" the", b"at", b"cat"]
RANKS = {bytes([byte]): byte for byte in range(256)} | {piece: 256 + index for index, piece in enumerate(MERGES)}


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vocabulary of five merges where tiktoken looks for one, as o200k_base. Returns its file."""
    file = tmp_path / hashlib.sha1(URL.encode()).hexdigest()
    file.write_bytes(b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in RANKS.items()))

    def tiny() -> dict[str, Any]:
        ranks = load_tiktoken_bpe(URL)
        return {
            "name": "o200k_base",
            "pat_str": r" ?\w+|\W",
            "mergeable_ranks": ranks,
            "special_tokens": {"<|end|>": 999},
        }

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(registry, "ENCODINGS", {})
    monkeypatch.setattr(registry, "ENCODING_CONSTRUCTORS", {"o200k_base": tiny})
    monkeypatch.setattr(tokens, "_loads", {})
    return file


# By a vocabulary


def test_text_is_counted_by_the_models_vocabulary(vocabulary: Path) -> None:
    counter = counter_for("gpt-5-mini")
    assert counter == TiktokenCounter("gpt-5-mini")
    assert counter.count(User(text="the cat")) == FRAMING + len(["the", " ", "cat"])
    assert counter.count(User(text="cat the")) == FRAMING + len(["cat", " the"])
    assert counter.count(User(text="<|end|>")) == FRAMING + 7, "what looks like a special token is text"
    assert counter.count(User(text="\ud800")) > FRAMING, "half a surrogate pair is no reason to fail"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-5-mini", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("claude-opus-4-7", "o200k_base"),
        ("qwen3:8b", "o200k_base"),
    ],
)
def test_an_unknown_model_gets_the_newest_vocabulary(model: str, name: str) -> None:
    assert tokens.vocabulary_name(model) == name


def test_a_counter_pickles_as_its_settings(vocabulary: Path) -> None:
    for counter in (TiktokenCounter("gpt-5-mini"), ByteCounter("gpt-5-mini")):
        again = pickle.loads(pickle.dumps(counter))
        assert again == counter
        assert again.count(User(text="the cat")) == counter.count(User(text="the cat"))


def test_without_the_vocabulary_bytes_are_counted_with_one_warning(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(url: str) -> None:
        raise requests.ConnectionError("no network")

    vocabulary.unlink()
    monkeypatch.setattr(requests, "get", refuse)
    assert [counter_for(model) for model in ("gpt-5", "gpt-5", "gpt-4o")] == [
        ByteCounter("gpt-5"),
        ByteCounter("gpt-5"),
        ByteCounter("gpt-4o"),
    ]
    (warning,) = caplog.records
    assert "no network" in warning.getMessage() and "TIKTOKEN_CACHE_DIR" in warning.getMessage()
    with pytest.raises(ConfigError, match=r"model='gpt-5': its vocabulary o200k_base cannot be loaded .*no network"):
        TiktokenCounter("gpt-5").count(User(text="hi"))


def test_a_hanging_network_is_waited_for_once(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released, ended = threading.Event(), threading.Event()

    def hang(url: str) -> None:
        released.wait(60)
        ended.set()
        raise requests.ConnectionError("at last")

    vocabulary.unlink()
    monkeypatch.setattr(requests, "get", hang)
    try:
        assert counter_for("gpt-5", load_timeout_s=0.05) == ByteCounter("gpt-5")
        assert counter_for("gpt-5", load_timeout_s=60) == ByteCounter("gpt-5")
        assert not ended.is_set(), "the network hangs still"
    finally:
        released.set()
    (warning,) = caplog.records
    assert "loading took too long" in warning.getMessage()


# By bytes, and what is no text


def test_bytes_are_never_less_than_tokens(vocabulary: Path) -> None:
    by_bytes, by_tokens = ByteCounter("gpt-4o"), TiktokenCounter("gpt-4o")
    for block in EACH:
        assert by_bytes.count(block) >= by_tokens.count(block)
    assert by_bytes.overhead("the cat", [{"name": "the"}]) >= by_tokens.overhead("the cat", [{"name": "the"}])
    assert by_bytes.count(User(text="äö\ud800")) == FRAMING + 7


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1024, 2000)).decode()
EACH: list[Block] = [
    System(text="the"),
    User(text="the cat"),
    Text(text="the cat", interrupted=True),
    Thinking(text="the", signature="x" * 400),
    Thinking(redacted="x" * 400),
    ToolUse(call_id="a", name="look", input={"at": "the cat"}),
    ToolResult(call_id="a", text="the cat", is_error=True),
    Image(data=PNG, media_type="image/png"),
    Image(url="https://example.org/cat.png"),
    Document(name="a.txt", text="the cat"),
    Document(name="a.pdf", data=base64.b64encode(b"%PDF /Type /Page ").decode(), media_type="application/pdf"),
    Document(name="a.csv", data=base64.b64encode(b"the,cat").decode(), media_type="text/csv"),
    Document(name="a.pdf", url="https://example.org/a.pdf"),
    Summary(text="the cat"),
]


def test_each_kind_of_block_is_counted_as_it_is_sent() -> None:
    counter = ByteCounter("gpt-4o")
    assert [counter.count(block) - FRAMING for block in EACH] == [
        3,
        7,
        7 + len(" [interrupted]"),
        3,
        100,
        1 + 4 + len('{"at": "the cat"}') + 8,
        1 + 7 + len("[error] "),
        85 + 6 * 170,
        85 + 8 * 170,
        5 + 7,
        5 + 3000 + 85 + 8 * 170,
        5 + 7,
        5 + 10 * (3000 + 85 + 8 * 170) + len("https://example.org/a.pdf"),
        7 + len("[summary of the conversation so far]\n"),
    ]
    never_sent = [
        CacheCheckpoint(),
        Unknown(stored_kind="hologram"),
        Citations(items=({"url": "https://example.org"},)),
    ]
    assert list(map(counter.count, never_sent)) == [0, 0, 0]


def test_the_system_prompt_and_the_tools_of_a_request_are_counted() -> None:
    """Case 39."""
    counter = ByteCounter()
    bare = counter.overhead(None, [])
    assert counter.overhead("Be brief.", []) == bare + FRAMING + 9
    tool = {"name": "look", "parameters": {"type": "object"}}
    assert counter.overhead(None, [tool, tool]) > bare + 2 * len(str(tool))


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [
        (image_rule("gpt-4o"), (1024, 1024), 765),
        (image_rule("gpt-4o"), (2048, 4096), 1105),
        (image_rule("gpt-4o"), (512, 512), 255),
        (image_rule("gpt-5"), (768, 768), 630),
        (image_rule("gpt-4.1-mini"), (1024, 1024), 1659),
        (image_rule("gpt-4.1-mini"), (1800, 2400), 2489),
        (image_rule("claude-sonnet-4-6"), (1000, 1000), 1296),
        (image_rule("claude-sonnet-4-6"), (3000, 2000), 1568),
        (image_rule("us.anthropic.claude-opus-4-7"), (3000, 2000), 4784),
        (image_rule("openai/gpt-4o-mini"), (512, 512), 8500),
        (image_rule("ft:gpt-4o:acme"), None, 1445),
        (image_rule("llava"), None, 3779),
    ],
)
def test_images_are_counted_as_in_the_providers_examples(
    rule: Patches | Tiles, size: tuple[int, int] | None, expected: int
) -> None:
    assert rule.tokens(size) == expected


@pytest.mark.parametrize("rule", [image_rule("gpt-4o"), image_rule("claude-sonnet-4-6"), OTHER], ids=repr)
def test_an_image_of_unknown_size_has_the_highest_count(rule: Patches | Tiles) -> None:
    sides = [1, 31, 32, 33, 511, 512, 513, 768, 769, 1999, 2048, 2049, 8000]
    assert max(rule.tokens((width, height)) for width in sides for height in sides) == rule.tokens(None)


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 2 + 500) + b"\xff" * 500
    return (
        b"\xff\xd8"
        + exif
        + b"\xff\xc4"
        + struct.pack(">HB", 3, 0)
        + b"\xff\xc2"
        + struct.pack(">HBHH", 8, 8, height, width)
    )


@pytest.mark.parametrize(
    "data",
    [
        base64.b64decode(PNG)[:16] + struct.pack(">II", 300, 200),
        jpeg(300, 200),
        b"GIF89a" + struct.pack("<HH", 300, 200),
        b"RIFF....WEBPVP8X" + bytes(8) + (299).to_bytes(3, "little") + (199).to_bytes(3, "little"),
        b"RIFF....WEBPVP8L" + bytes(5) + struct.pack("<I", 299 | 199 << 14),
        b"RIFF....WEBPVP8 " + bytes(10) + struct.pack("<HH", 300, 200),
    ],
)
def test_the_size_of_an_image_is_read_from_it(data: bytes) -> None:
    assert image_size(base64.b64encode(data).decode()) == (300, 200)
    assert image_size(base64.b64encode(data + bytes(2_000_000)).decode()) == (300, 200)
    for end in range(len(data)):
        assert image_size(base64.b64encode(data[:end]).decode()) in (None, (300, 200))


@pytest.mark.parametrize(
    "data", ["", "aGk=", "a", "%%%", PNG[:20], base64.b64encode(b"\xff\xd8" + b"\xff" * 99).decode()]
)
def test_data_that_is_not_an_image_has_no_size(data: str) -> None:
    assert image_size(data) is None


def test_pages_in_compressed_streams_are_counted() -> None:
    plain = b"%PDF-1.4 /Type /Pages /Count 2 /Type /Page /Type/Page "
    packed = zlib.compress(b"<</Type/Page>> <</Type /Page>> <</Type /Page>>")
    objects = b"<</Type/ObjStm/Filter/FlateDecode>>stream\r\n" + packed + b"\r\nendstream"
    assert pdf_pages(plain) == 2
    assert pdf_pages(plain + objects) == 5
    assert pdf_pages(b"%PDF" + bytes(9000)) == 4
    assert pdf_pages(b"/ObjStm stream\nnonsense") == 1


# The index


class Counting:
    """A counter that says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def count(self, block: Block) -> int:
        self.asked += 1
        return len(getattr(block, "text", ""))

    def overhead(self, system: str | None, tools: Any) -> int:
        return 0


def test_each_block_is_counted_once() -> None:
    counter: Any = Counting()
    index = TokenIndex(counter)
    blocks = [User(text="x" * index) for index in range(10)]
    index.add("a", 0, blocks[:5])
    index.add("a", 5, blocks[5:])
    index.add("a", 3, blocks[3:])
    assert counter.asked == 10
    assert index.sum([Span("a", 2, 5)]) == 2 + 3 + 4
    assert counter.asked == 10


def test_reading_uncounted_blocks_is_an_error() -> None:
    counter: TokenCounter = ByteCounter()
    index, cache = TokenIndex(counter), BlockCache()
    index.add("a", 5, [User(text="x")])
    assert index.missing([Span("a", 0, 9), Span("b", 0, 1)]) == (Span("a", 0, 5), Span("a", 6, 9), Span("b", 0, 1))
    assert index.missing([Span("a", 5, 6), Span("a", 6, 6)]) == ()
    for span, position in ((Span("a", 5, 7), 6), (Span("a", 4, 6), 4)):
        with pytest.raises(KeyError, match=f"a:{position} is not counted"):
            index.sum([span])
    with pytest.raises(CorruptRecordError, match="a:0"):
        index.cover([Span("a", 0, 6)], cache)


def test_the_index_agrees_with_reading_all_blocks() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        logs = {name: [a_block(dice) for _ in range(dice.randrange(30))] for name in "ab"}
        index, cache = TokenIndex(ByteCounter()), BlockCache()
        for name, blocks in logs.items():
            cache.add(name, 0, blocks)
        for _ in range(6):
            spans = some_spans(dice, {name: len(blocks) for name, blocks in logs.items()})
            index.cover(spans, cache)
            assert index.missing(spans) == ()
            read = cache.read(spans)
            places = [(span.log, index) for span in spans for index in range(span.start, span.stop)]
            for kind in (System, Summary):
                taken = sum(index.counter.count(block) for block in read if isinstance(block, kind))
                assert index.sum(spans, kind) == taken, seed
                indexed = [(span.log, position) for span in spans for position in index.places(span, kind)]
                assert indexed == [
                    place for place, block in zip(places, read, strict=True) if isinstance(block, kind)
                ], seed
            assert index.sum(spans) == sum(map(index.counter.count, read)), seed
            systems = [place for place, block in zip(places, read, strict=True) if isinstance(block, System)]
            assert index.last_system(spans) == (systems[-1] if systems else None), seed


def a_block(dice: random.Random) -> Block:
    kinds: list[type[System | User | Text | Summary]] = [System, User, Text, Summary]
    return dice.choice(kinds)(text="x" * dice.randrange(9))


def some_spans(dice: random.Random, sizes: dict[str, int]) -> tuple[Span, ...]:
    spans = []
    for _ in range(dice.randrange(4)):
        log = dice.choice(list(sizes))
        start, stop = sorted(dice.choices(range(sizes[log] + 1), k=2))
        spans.append(Span(log, start, stop))
    return join(spans)


def test_vocabularies_are_encodings_of_tiktoken(vocabulary: Path) -> None:
    """What these tests build goes through the same door as the real ones."""
    assert isinstance(tiktoken.get_encoding("o200k_base"), tiktoken.Encoding)
