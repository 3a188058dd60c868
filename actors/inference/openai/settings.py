"""The settings that engines with an HTTP client share: their protocol, their checks, and the client's certificates."""

from __future__ import annotations

import functools
import math
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from turnwise.actors.inference.middleware import LogCalls, Middleware, ReorderResults, SystemPrompt
from turnwise.actors.inference.tools.loop import Hook
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.errors import ConfigError
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.stores.urls import redact
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.ranges import check_seconds, check_whole_number

if TYPE_CHECKING:
    import httpx2

_NO_FIELDS = {
    "n": "a run has one answer",
    "extra_headers": "it is not a field of the body: pass default_headers=",
    "extra_query": "it is not a field of the body: pass default_query=",
    "extra_body": "put its fields directly into extra=",
    "timeout": "it is not a field of the body: pass timeout_s=",
}
"""Arguments of the clients that are not fields of the request body, with what to use instead."""


class EngineSettings(Protocol):
    """The settings that engines with an HTTP client share."""

    @property
    def model(self) -> str: ...
    @property
    def system(self) -> str | None: ...
    @property
    def base_url(self) -> str | None: ...
    @property
    def default_headers(self) -> Mapping[str, str] | None: ...
    @property
    def default_query(self) -> Mapping[str, str] | None: ...
    @property
    def http_client(self) -> Callable[[], httpx2.AsyncClient] | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def first_byte_s(self) -> float | None: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def max_retries(self) -> int: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def middleware(self) -> Sequence[Middleware]: ...
    @property
    def hooks(self) -> Sequence[Hook]: ...
    @property
    def output_type(self) -> Mapping[str, Any] | None: ...
    @property
    def extra(self) -> Mapping[str, Any] | None: ...
    @property
    def registry(self) -> ToolRegistry: ...
    @property
    def begins_within_s(self) -> float: ...


def check_settings(engine: EngineSettings, reserved: Collection[str]) -> None:
    """Check the shared settings, and freeze their mappings and tools.

    Args:
        reserved: the fields of a request that the engine sets itself, so `extra` must not have them.

    Raises:
        ConfigError: names the first setting that cannot be used.
    """
    check("model", engine.model, bool(engine.model.strip()), "must not be blank")
    check_url("base_url", engine.base_url)
    for name in ("timeout_s", "connect_timeout_s", "first_byte_s"):
        check_seconds(name, getattr(engine, name), may_be_0=False, may_be_none=name == "first_byte_s")
    for name in ("default_headers", "default_query"):
        texts = getattr(engine, name)
        is_text = texts is None or all(isinstance(text, str) for pair in texts.items() for text in pair)
        check(name, sorted(texts or ()), is_text, "must map texts to texts")
        object.__setattr__(engine, name, freeze(texts))
    client = engine.http_client
    check("http_client", client, client is None or callable(client), "must be a function")
    check_whole_number("max_retries", engine.max_retries)
    check("temperature", engine.temperature, 0 <= (engine.temperature or 0) < math.inf, "must be 0 or more")
    check_whole_number("max_output_tokens", engine.max_output_tokens, 1, may_be_none=True)
    check("extra", engine.extra, engine.extra is None or isinstance(engine.extra, Mapping), "must be a mapping")
    has_run = all(isinstance(layer, Middleware) for layer in engine.middleware)
    check("middleware", engine.middleware, has_run, "each must have run(); see Middleware")
    check("hooks", engine.hooks, all(map(callable, engine.hooks)), "must be callable")
    object.__setattr__(engine, "tools", engine.registry)
    record = engine.output_type
    is_read = record is None or OutputType.is_record({**record, "retries": record.get("retries") or 0})
    check("output_type", record, is_read, "must be set by answering(), with 0 to 100 retries")
    taken = sorted(set(reserved).intersection(engine.extra or ()))
    check("extra", taken, not taken, "the engine sets these fields itself")
    for name, reason in _NO_FIELDS.items():
        check("extra", name, name not in (engine.extra or ()), reason)
    try:
        object.__setattr__(engine, "extra", freeze(engine.extra))
    except TypeError as error:
        raise ConfigError("extra", engine.extra, str(error)) from error


def keeps_attachments(middleware: Sequence[Middleware]) -> bool:
    """Return whether no middleware may convert images and documents: all are turnwise's own."""
    return all(isinstance(layer, LogCalls | ReorderResults | SystemPrompt) for layer in middleware)


def joined_prompt(*texts: str | None) -> str | None:
    """Return the texts of a system prompt as one, without those that are empty; None if all are None."""
    return None if all(text is None for text in texts) else "\n\n".join(filter(None, texts))


def replacing_prompt(middleware: Sequence[Middleware]) -> str | None:
    """Return the system prompt that the middleware puts in place of any other; None if there is none."""
    prompts = [layer.text for layer in middleware if isinstance(layer, SystemPrompt) and layer.if_present == "replace"]
    return prompts[-1] if prompts else None


def http_client() -> httpx2.AsyncClient:
    """Return a client with the defaults of OpenAI's and Anthropic's libraries."""
    import openai

    return openai.DefaultAsyncHttpxClient(verify=_ssl_context())


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Return the certificates that all clients of this process share: loading them takes 20 ms and 0.8 MB each time."""
    import httpx2

    return httpx2.create_ssl_context()


def check(setting: str, value: object, ok: bool, reason: str) -> None:
    """Raise ConfigError unless the setting is `ok`."""
    if not ok:
        raise ConfigError(setting, value, reason)


def check_url(setting: str, url: str | None) -> None:
    """Raise ConfigError if the URL, with passwords left out of the message, is not one of http."""
    reason = "must be an http(s) URL, such as http://127.0.0.1:8000/v1"
    check(setting, url and redact(url), url is None or _is_url(url), reason)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def is_key(key: str) -> bool:
    """Return whether a text can be sent as a key."""
    return key.isascii() and key.isprintable() and bool(key) and " " not in key


def is_header(name: object) -> bool:
    """Return whether a value is a name of an HTTP header, or empty."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]*", name) is not None
