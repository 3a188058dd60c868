"""`TokenCounter` and its implementations: how many tokens blocks take in a request."""

from __future__ import annotations

import base64
import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.providers.arrangement import author_line
from turnwise.memory.providers.openai_chat import ERROR, INTERRUPTED, SUMMARY, arguments_of
from turnwise.memory.tokens.images import PAGE_TEXT, UNSEEN_PAGES, ImageRule, image_rule, image_size, pdf_pages

if TYPE_CHECKING:
    import tiktoken

_log = logging.getLogger(__name__)


class TokenCounter(Protocol):
    """Counts tokens of blocks. It must be immutable and deterministic, since counts are cached."""

    def count(self, block: Block) -> int:
        """Return the tokens of a block in a request, including its part of the framing; 0 if it is never sent."""

    def overhead(self, system: str | None, tools: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of a request besides its blocks.

        Args:
            system: instructions that are in no block; None if there are none.
            tools: the declarations of tools, as JSON objects.
        """


FRAMING = 4
"""Tokens of a message besides its text: three, and one for the role, by OpenAI's guide to counting with tiktoken. Each
block counts as a message of its own, so the estimate is rather too high."""

_CALL = 8
"""Tokens of a call besides its text."""

_REPLY = 3
"""Tokens at the end of a request, where the answer begins."""

_TOOLS, _TOOL = 12, 8
"""Tokens of all tools and of each tool besides their text. Tools are counted as JSON, which is rather too much."""

_HIDDEN_CHARACTERS = 4
"""Characters of an encrypted thought per token."""


class _Counter(ABC):
    """Base of counters. Counts everything except text, which subclasses count."""

    @abstractmethod
    def text(self, text: str) -> int:
        """Return the tokens of a text."""

    @property
    @abstractmethod
    def images(self) -> ImageRule:
        """The rule for the tokens of images."""

    def count(self, block: Block) -> int:
        texts: tuple[str, ...]
        more = 0
        match block:
            case User():
                texts = (block.text, author_line(block.author)) if block.author else (block.text,)
            case System() | Recalled():
                texts = (block.text,)
            case Summary():
                texts = (SUMMARY, block.text)
            case Text():
                texts = (block.text, INTERRUPTED * block.interrupted)
            case Thinking():
                texts = (block.text,)
                more = len(block.redacted or (not block.text and block.signature) or "") // _HIDDEN_CHARACTERS
            case ToolUse():
                texts = (block.call_id, block.name, arguments_of(block))
                more = _CALL
            case ToolResult():
                texts = (block.call_id, ERROR * block.is_error, block.text)
                more = sum(map(self.count, block.blocks))
            case Image():
                texts = ()
                more = self.images.tokens(image_size(block.data) if block.data else None)
            case Document():
                texts = (block.name,)
                more = self._document(block)
            case _:
                return 0
        return FRAMING + sum(map(self.text, texts)) + more

    def overhead(self, system: str | None, tools: Sequence[Mapping[str, Any]]) -> int:
        system_tokens = FRAMING + self.text(system) if system else 0
        declared = [_TOOL + self.text(json.dumps(tool, ensure_ascii=False)) for tool in tools]
        return _REPLY + system_tokens + (_TOOLS + sum(declared) if declared else 0)

    def _document(self, block: Document) -> int:
        """Return the tokens of a file: of its text or, for a PDF, of text and image of each page."""
        if block.plain:
            return self.text(block.plain)
        page = PAGE_TEXT + self.images.tokens(None)
        if block.file and (block.media_type or "").startswith("text/"):
            return (block.size or 0) // _BYTES_PER_TOKEN
        if not block.data:
            return UNSEEN_PAGES * page + self.text(block.url or "")
        try:
            data = base64.b64decode(block.data)
        except ValueError:
            return self.text(block.data)
        if block.media_type == "application/pdf":
            return pdf_pages(data) * page
        return self.text(data.decode(errors="replace"))


_BYTES_PER_TOKEN = 4
"""Of texts in files, which are not read to be counted."""


@dataclass(frozen=True)
class ByteCounter(_Counter):
    """Counts UTF-8 bytes: an upper bound, since each token of a byte-level vocabulary has at least one byte.

    For English the count is about four times too high, so a window seems that much fuller than it is.
    """

    model: str = ""
    """The model whose rule for images applies."""

    @property
    def images(self) -> ImageRule:
        return image_rule(self.model)

    def text(self, text: str) -> int:
        return len(text.encode(errors="surrogatepass"))


_BYTES = 4
"""UTF-8 bytes per token, about, in English."""


@dataclass(frozen=True)
class RoughCounter(_Counter):
    """Counts four UTF-8 bytes as a token: an estimate that takes no time, for usage that no provider reports."""

    model: str = ""
    """The model whose rule for images applies."""

    @property
    def images(self) -> ImageRule:
        return image_rule(self.model)

    def text(self, text: str) -> int:
        return -(-len(text.encode(errors="surrogatepass")) // _BYTES)


@dataclass(frozen=True)
class TiktokenCounter(_Counter):
    """Counts by the model's vocabulary, or by o200k_base for models that tiktoken does not know.

    Each process loads the vocabulary at first use: from TIKTOKEN_CACHE_DIR, else over the network. A pickle has the
    settings only.

    Raises:
        ConfigError: from `count` and `overhead`: the vocabulary cannot be loaded. `counter_for` avoids this error.
    """

    model: str
    load_timeout_s: float = field(default=10.0, kw_only=True, compare=False)
    """How long the first count in a process waits for the vocabulary to load, in seconds."""

    @property
    def images(self) -> ImageRule:
        return image_rule(self.model)

    def text(self, text: str) -> int:
        return len(_vocabulary(self.model, self.load_timeout_s).encode_ordinary(text))


def counter_for(model: str, *, load_timeout_s: float = 10.0) -> TokenCounter:
    """Return a counter for a model: by its vocabulary if that can be loaded, else by bytes.

    The first call in a process blocks for up to `load_timeout_s`, so do not call it on an event loop. If a vocabulary
    cannot be loaded, one warning is logged, and loading is not tried again.
    """
    try:
        _vocabulary(model, load_timeout_s)
    except ConfigError as error:
        load = _load_of(model)
        if not load.has_warned:
            load.has_warned = True
            _log.warning("tokens are counted as bytes, which is too much for most texts: %s", error)
        return ByteCounter(model)
    return TiktokenCounter(model, load_timeout_s=load_timeout_s)


# Vocabularies


class _Load:
    """Loads a vocabulary on a thread of its own, since tiktoken waits for the network without a limit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._done = threading.Event()
        self._waited = False
        self._encoding: tiktoken.Encoding | None = None
        self._failure = "loading took too long"
        self.has_warned = False
        threading.Thread(target=self._run, name=f"turnwise-vocabulary-{name}", daemon=True).start()

    def _run(self) -> None:
        try:
            import tiktoken

            self._encoding = tiktoken.get_encoding(self._name)
        except Exception as error:  # noqa: BLE001 - network, disk or file errors: bytes are counted instead
            self._failure = f"{type(error).__name__}: {error}"[:300]
        self._done.set()

    def vocabulary(self, model: str, timeout_s: float) -> tiktoken.Encoding:
        self._done.wait(0 if self._waited else timeout_s)
        self._waited = True
        if self._encoding is None:
            remedy = "put it into TIKTOKEN_CACHE_DIR, or pass a TokenCounter, such as ByteCounter"
            raise ConfigError(
                "model", model, f"its vocabulary {self._name} cannot be loaded ({self._failure}): {remedy}"
            )
        return self._encoding


_loads: dict[str, _Load] = {}
_lock = threading.Lock()


def _vocabulary(model: str, timeout_s: float) -> tiktoken.Encoding:
    return _load_of(model).vocabulary(model, timeout_s)


def _load_of(model: str) -> _Load:
    name = vocabulary_name(model)
    with _lock:
        if name not in _loads:
            _loads[name] = _Load(name)
        return _loads[name]


def vocabulary_name(model: str) -> str:
    from tiktoken.model import encoding_name_for_model

    try:
        return encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return "o200k_base"
