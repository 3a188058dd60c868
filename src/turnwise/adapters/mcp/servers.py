"""`McpStdio` and `McpHttp`: the settings of an MCP server, which travel with the engine whose tools it has."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from turnwise.actors.inference.redaction import LONG
from turnwise.errors import ConfigError, shown
from turnwise.memory.stores.urls import redact
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ranges import check_seconds

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True)
class McpStdio:
    """An MCP server that is a program of its own, spoken to by its standard input and output.

    Each process that uses its tools starts one, for all its sessions. It gets `env` and, of the environment, the
    variables named in `inherit` beside HOME, LOGNAME, PATH, SHELL, TERM and USER. What it writes to standard error is
    logged at INFO, without the values of `env` and `inherit` that are long enough to be keys.
    """

    command: str
    """The program; it must be there where the sessions run."""
    args: Sequence[str] = ()
    _: KW_ONLY
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables of the server. They are pickled to the sessions' processes; to avoid that, set them there and name them
    in `inherit`."""
    inherit: Sequence[str] = ()
    """Names of variables that the server gets from the process that starts it, such as GITHUB_TOKEN."""
    cwd: str | None = None
    """The folder where it runs; that of the process that starts it if omitted."""
    connect_timeout_s: float = 30.0
    """The time limit for starting it until it has said what it can, in seconds."""
    idle_s: float = 300.0
    """After how many seconds without a call it is ended; the next call starts it again."""

    def __post_init__(self) -> None:
        _check("command", self.command, isinstance(self.command, str) and self.command.strip(), "must not be blank")
        for name in ("args", "inherit"):
            texts = getattr(self, name)
            is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
            _check(name, texts, is_list and all(isinstance(text, str) for text in texts), "must be a list of texts")
            object.__setattr__(self, name, tuple(texts))
        object.__setattr__(self, "env", _texts("env", self.env))
        _check_times(self)

    @property
    def label(self) -> str:
        """The server in messages: its command, and the first argument if that is no option, without passwords."""
        shown = [redact(argument) for argument in self.args[:1] if not argument.startswith("-")]
        return " ".join([Path(self.command).name, *shown])

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may show."""
        inherited = (os.environ.get(name, "") for name in self.inherit)
        return tuple(value for value in (*(self.env or {}).values(), *inherited) if len(value) >= LONG)


@dataclass(frozen=True)
class McpHttp:
    """An MCP server behind a URL, spoken to by streamable HTTP. Each process connects once, for all its sessions."""

    url: str
    _: KW_ONLY
    token: str | Callable[[], str | Awaitable[str]] | None = field(default=None, repr=False)
    """The bearer token. A text is pickled to the sessions' processes. A function is called there before each request,
    so it can read a variable, or return tokens that expire; it must be picklable."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """More headers for each request. They are pickled to the sessions' processes."""
    http_client: Callable[[], httpx2.AsyncClient] | None = None
    """Makes the HTTP client instead, for example with OAuth, a proxy or certificates; must be picklable."""
    connect_timeout_s: float = 30.0
    """The time limit for connecting until the server has said what it can, in seconds."""
    idle_s: float = 300.0
    """After how many seconds without a call the connection is closed; the next call opens it again."""

    def __post_init__(self) -> None:
        _check(
            "url", redact(str(self.url)), _is_web(self.url), "must be an http(s) URL, such as http://127.0.0.1:8000/mcp"
        )
        ok = self.token is None or callable(self.token) or (isinstance(self.token, str) and self.token.isascii())
        _check("token", "***", ok, "must be ASCII text, or a function that returns it")
        client = self.http_client
        _check("http_client", client, client is None or callable(client), "must be a function")
        alone = client is None or (self.token is None and self.headers is None)
        _check("http_client", client, alone, "cannot be combined with token= and headers=: let the client send them")
        object.__setattr__(self, "headers", _texts("headers", self.headers))
        _check_times(self)

    @property
    def label(self) -> str:
        """The server in messages: its URL without passwords and query."""
        return redact(self.url.partition("?")[0])

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may show."""
        token = self.token if isinstance(self.token, str) else ""
        return tuple(value for value in (token, *(self.headers or {}).values()) if len(value) >= LONG)


McpServer: TypeAlias = McpStdio | McpHttp


def server_of(settings: object) -> McpServer:
    """Return settings of a server: those given, or those of a URL or of the `StdioServerParameters` of the mcp package.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(settings, McpStdio | McpHttp):
        return settings
    if isinstance(settings, str):
        return McpHttp(settings)
    if type(settings).__name__ == "StdioServerParameters":
        its: Any = settings
        return McpStdio(its.command, its.args, env=its.env, cwd=None if its.cwd is None else str(its.cwd))
    raise ConfigError("server", shown(settings), "must be McpStdio(command, args), McpHttp(url), or a URL")


def _texts(setting: str, texts: Mapping[str, str] | None) -> FrozenDict | None:
    if texts is None:
        return None
    ok = isinstance(texts, Mapping) and all(isinstance(text, str) for pair in texts.items() for text in pair)
    _check(setting, sorted(map(str, texts)), ok, "must map texts to texts")
    return FrozenDict(texts)


def _check_times(server: McpServer) -> None:
    for name in ("connect_timeout_s", "idle_s"):
        check_seconds(name, getattr(server, name), may_be_0=False)


def _check(setting: str, value: object, ok: object, reason: str) -> None:
    if not ok:
        raise ConfigError(setting, value, reason)


def _is_web(url: object) -> bool:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False
