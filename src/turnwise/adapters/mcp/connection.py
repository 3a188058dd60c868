"""`Connection`: one process's connection to an MCP server, opened when it is needed and again when it was lost."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from turnwise.actors.inference.redaction import LONG, redacted
from turnwise.adapters.mcp.servers import McpHttp, McpServer, McpStdio
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import ToolError, ToolServerError

with framework("mcp", extra="mcp", tested="2.3"):
    import anyio
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters, stdio_client, types
    from mcp.client.session import ClientSession, IncomingMessage
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS

    expect(Client, "cache", "message_handler")
    expect(Client.list_tools, "cursor")
    expect(Client.list_resources, "cursor")
    expect(Client.listen, "tools_list_changed")
    expect(ClientSession.validate_tool_result, "name", "result")
    expect(stdio_client, "errlog")
    expect(streamable_http_client, "http_client", "max_sse_event_size")

CLOSE_S = 5.0
"""How long a server has to end, or to answer that it closed, in seconds."""

PROBE_S = 5.0
"""How long a server that left a call unanswered has to show that it answers at all, in seconds."""

MAX_EVENT_BYTES = 32 << 20
"""The largest event of a server, such as a result with a picture."""

MAX_LISTED, MAX_PAGES = 1_000, 100
"""The most tools, or resources, that a server may list, and in how many pages."""

_KEPT = 2_000
"""How many characters of what a server wrote last are kept for messages."""

_MAX_LINE = 1 << 20
"""The longest line of a server's standard error that is logged, in bytes."""

_LEFT_OUT = b"(what it wrote here, without an end of line, is left out)"

_GUARD = str(Path(__file__).with_name("guard.py"))

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_Said = tuple[int, str]
"""The code and the message of a JSON-RPC error."""

_TERMINATED: _Said = (types.INVALID_REQUEST, "Session terminated")
"""What the mcp package says where a server refused a session without JSON-RPC."""


class Connection:
    """One connection to a server, for all that this process asks it. Used on one event loop only.

    It is opened by the first request. When it was lost, the next request opens it again; so it does where the server
    left a call unanswered and does not answer a simple question either. It is closed after `idle_s` without requests.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._lock = asyncio.Lock()
        self._link: _Link | None = None

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool once. A call that certainly did not reach the server is repeated on a new connection.

        Raises:
            ToolError: the server refused the call.
            ToolServerError: the server cannot be reached or understood, or the connection was lost during the call.
        """
        return await self._ask(lambda link: link.client.call_tool(name, arguments))

    async def tools(self) -> list[types.Tool]:
        """Return the server's tools. They are asked for once, and again after the server said that they changed.

        Raises:
            ToolServerError: the server cannot be reached or understood.
        """
        return await self._listed(lambda link: link.tools())

    async def resources(self) -> list[types.Resource]:
        """Return the resources that the server lists. Raises as `tools` does."""
        return await self._listed(lambda link: link.resources())

    async def read(self, uri: str) -> types.ReadResourceResult:
        """Return the contents of a resource.

        Raises:
            ToolError: the server does not have it.
            ToolServerError: the server cannot be reached or understood, or the connection was lost.
        """
        return await self._ask(lambda link: link.client.read_resource(uri), may_repeat=True)

    async def close(self) -> None:
        """Close the connection and end the server that it started; a later request opens it again."""
        link, self._link = self._link, None
        if link:
            await link.close()

    async def _listed(self, ask: Callable[[_Link], Awaitable[Result]]) -> Result:
        try:
            return await self._ask(ask, may_repeat=True)
        except ToolError as error:
            raise ToolServerError(self._server.label, f"it cannot be asked what it has: {error}") from error

    async def _ask(self, ask: Callable[[_Link], Awaitable[Result]], *, may_repeat: bool = False) -> Result:
        is_again = False
        while True:
            link = await self._open()
            request = link.begin()
            try:
                with link.in_use():
                    return await ask(link)
            except MCPError as error:
                if link.has_forgotten(request, error):
                    await link.close()  # the server does not know the session, so it carried nothing out
                elif error.code != types.CONNECTION_CLOSED:
                    raise ToolError(link.refused(error)) from error
                else:  # the connection was lost
                    is_harmless = may_repeat or (not link.is_open and await link.was_unreachable(request))
                    if not is_harmless:
                        lost = "the connection was lost during the call: it may or may not have taken effect"
                        raise ToolServerError(self._server.label, lost) from error
                # Only here it may be made once more: it certainly had no effect, or may have it twice.
                if is_again:
                    raise ToolServerError(self._server.label, link.why) from error
                is_again = True
            except (RuntimeError, ValueError) as error:  # the mcp package's, about what the server sent
                reason = f"it sent what cannot be used: {error}"
                raise ToolServerError(self._server.label, redacted(reason, self._server.secrets)[:_KEPT]) from error

    async def _open(self) -> _Link:
        """Return an open link to the server, a new one if need be."""
        async with self._lock:
            link = self._link
            if link and link.is_open and link.is_suspect and not await link.answers():
                await link.close()
            if link is None or not link.is_open:
                link = self._link = await _Link.open(self._server)
            return link


@dataclass(frozen=True)
class _Request:
    """The state of a link when a request began."""

    number: int
    is_first: bool
    """Whether no earlier request could still be under way."""
    not_found: int


class _Link:
    """One life of a connection. A task of its own opens and closes it, as the mcp package wants one task to do both."""

    def __init__(self, server: McpServer) -> None:
        self.why = "it ended"
        """Why the link was closed, or could not be opened."""
        self._server = server
        self._client: Client | None = None
        self._tools: list[types.Tool] | None = None
        self._changes = 0
        """How often the server said that its tools changed."""
        self._listener: asyncio.Task[None] | None = None
        self._calls, self._begun = 0, 0
        """How many requests are being made, and how many were begun."""
        self._received, self._unreadable = 0, 0
        """How many messages the server has sent, and how much that is no message."""
        self._silent_since: int | None = None
        """`_received` when a request was given up during which the server sent nothing."""
        self._used_s = asyncio.get_running_loop().time()
        self._status: int | None = None
        """The status of the last refusal by HTTP."""
        self._not_found: list[_Said | None] = []
        """What the server said with each status 404 by which it refused the session; None if it was no JSON-RPC."""
        self._stderr = ""
        """What the server wrote to standard error last."""
        self._cause: BaseException | None = None
        self._ended = False
        self._closing = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    @classmethod
    async def open(cls, server: McpServer) -> _Link:
        """Connect to a server; start it, if it is a program.

        Raises:
            ToolServerError: that failed, or took too long.
        """
        link = cls(server)
        try:
            await asyncio.shield(link._ready)
        except asyncio.CancelledError:
            link._ready.add_done_callback(lambda ready: ready.exception())  # nobody waits for it
            link._scope.cancel()
            raise
        return link

    @property
    def client(self) -> Client:
        """The client of an open link."""
        if self._client is None:
            raise RuntimeError("the link is not open")
        return self._client

    @property
    def is_open(self) -> bool:
        """Whether requests can be made: it was opened, and neither closed nor lost. False as soon as it is lost."""
        return self._client is not None and not self._ended

    @property
    def is_suspect(self) -> bool:
        """Whether a request was given up, the server sent nothing all the time, and no other request waits for it."""
        return self._silent_since == self._received and self._calls == 0

    def begin(self) -> _Request:
        """Note what is known when a request begins."""
        self._begun += 1
        # A request that was given up counts as under way for ever: how far it came is not known.
        return _Request(self._begun, self._calls == 0 and self._silent_since is None, len(self._not_found))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a request, so that the link is not closed as idle, and note whether it was given up."""
        heard, self._calls = self._received, self._calls + 1
        try:
            yield
        except asyncio.CancelledError:
            self._silent_since = heard
            raise
        finally:
            self._calls -= 1
            self._used_s = asyncio.get_running_loop().time()

    async def answers(self) -> bool:
        """Return whether the server answers a simple question in time."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self.client.session.list_tools()
        except MCPError as error:
            return error.code != types.CONNECTION_CLOSED
        except (TimeoutError, RuntimeError, ValueError):
            return False
        return True

    async def was_unreachable(self, request: _Request) -> bool:
        """Return whether a link that was lost certainly did not deliver a call.

        A call that cannot be delivered ends the link for all others, of which the server may have some. So this is
        known only of a call that was alone on the link, and not where the link was lost by something else it sent.
        """
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        is_alone = request.is_first and request.number == self._begun
        return is_alone and isinstance(self._cause, httpx2.ConnectError) and _is_of_call(self._cause)

    def has_forgotten(self, request: _Request, error: MCPError) -> bool:
        """Return whether a request was refused since the server does not know the session any more.

        That is the status 404, of which the mcp package tells only the server's words, or its own if there are none. A
        tool may fail with the same words, when it uses a server itself.
        """
        refusal = (error.code, error.message)
        return any(refusal in (_TERMINATED, not_found) for not_found in self._not_found[request.not_found :])

    def refused(self, error: MCPError) -> str:
        """Return why the server refused a request."""
        status = f" (HTTP {self._status})" if self._status and error.message.startswith("Server returned") else ""
        return redacted(f"{error.message}{status}", self._server.secrets)

    async def close(self) -> None:
        """Close the link, and wait until the server that it started has ended."""
        self._closing.set()
        await asyncio.wait({self._task}, timeout=2 * CLOSE_S)

    # What is listed

    async def tools(self) -> list[types.Tool]:
        """Return the server's tools, asked for once until the server says that they changed."""
        await self._listen()
        tools, changes = self._tools, self._changes
        if tools is None:
            tools = await self._all(lambda cursor: self.client.list_tools(cursor=cursor), "tools")
            self._tools = tools if changes == self._changes else None
        return tools

    async def resources(self) -> list[types.Resource]:
        """Return the resources that the server lists."""
        return await self._all(lambda cursor: self.client.list_resources(cursor=cursor), "resources")

    async def _all(self, ask: Callable[[str | None], Awaitable[Any]], kind: str) -> list[Any]:
        """Return what all pages of a list have."""
        members: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await ask(cursor)
            members += getattr(page, kind)
            cursor = page.next_cursor
            if not cursor:
                break
        if cursor or len(members) > MAX_LISTED:
            raise ToolServerError(self._server.label, f"it lists more than {MAX_LISTED} {kind}, or in too many pages")
        return members

    async def _listen(self) -> None:
        """Ask the server to say when its tools change; servers of older protocols say it unasked.

        It is asked again when it stopped, for example since a proxy closes streams that are silent for long.
        """
        offered = self.client.server_capabilities.tools
        is_listening = self._listener is not None and not self._listener.done()
        if is_listening or not (offered and offered.list_changed):
            return
        if self.client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            listening = asyncio.Event()
            self._listener = asyncio.create_task(self._note_changes(listening))
            with suppress(TimeoutError):
                await asyncio.wait_for(listening.wait(), PROBE_S)

    async def _note_changes(self, listening: asyncio.Event) -> None:
        try:
            async with self.client.listen(tools_list_changed=True) as changes:
                listening.set()
                async for _ in changes:
                    self._forget_tools()
        except (MCPError, RuntimeError, TimeoutError) as error:
            _log.debug("%s does not say any more when its tools change: %s", self._server.label, error)
        finally:
            listening.set()
            self._forget_tools()

    def _forget_tools(self) -> None:
        self._changes += 1
        self._tools = None

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._forget_tools()

    # Opening and closing

    async def _live(self) -> None:
        """Open the link, keep it open until it is closed, lost or idle, and close it."""
        loop = asyncio.get_running_loop()
        limit_s = self._server.connect_timeout_s
        timer = loop.call_later(limit_s, self._scope.cancel)
        self.why = f"it did not answer within {limit_s:g} s"
        try:
            with self._scope:
                async with Client(self._streams(), cache=None, message_handler=self._on_message) as client:
                    # By the server's own schemas, which need not be ones that are checked in bounded time.
                    client.session.validate_tool_result = _leave_unchecked  # type: ignore[method-assign]
                    timer.cancel()
                    self._client = client
                    self._used_s = loop.time()
                    self.why = "it ended"
                    self._ready.set_result(None)
                    await self._until_unused()
                    self._ended = True
                    timer = loop.call_later(CLOSE_S, self._scope.cancel)
                    await self._stop_listening()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - told to those who wait for the link
            self._cause = _root(error)
            self.why = self._reason_of(self._cause)
        finally:
            timer.cancel()
            self._ended = True
            if not self._ready.done():
                self._ready.set_exception(ToolServerError(self._server.label, self._with_last_words()))

    async def _until_unused(self) -> None:
        """Wait until the link is closed, or was not used for `idle_s`."""
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            left_s = self._used_s + self._server.idle_s - loop.time()
            if left_s <= 0 and self._calls == 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), max(left_s, 1.0))

    async def _stop_listening(self) -> None:
        if self._listener:
            self._listener.cancel()
            await asyncio.wait({self._listener})

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Open the transport."""
        if isinstance(self._server, McpHttp):
            async with (
                _http_client(self._server, self._note_status) as client,
                streamable_http_client(self._server.url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES) as (
                    read,
                    write,
                ),
            ):
                yield _ReadStream(read, self._on_received, self._on_end), write
            return
        with StandardError(self._server, self._on_error_output) as errors:
            async with stdio_client(_started_by(self._server), errlog=errors.file) as (read, write):
                errors.file.close()  # the server has it
                yield _ReadStream(read, self._on_received, self._on_end), write

    def _on_received(self, item: object) -> None:
        if isinstance(item, Exception):
            self._unreadable += 1
        else:
            self._received += 1

    def _on_end(self) -> None:
        self._ended = True
        self._closing.set()

    def _on_error_output(self, text: str) -> None:
        self._stderr = (self._stderr + text)[-_KEPT:]

    async def _note_status(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:  # noqa: PLR2004 - the statuses of refusals
            self._status = response.status_code
            if response.status_code == httpx2.codes.NOT_FOUND and "mcp-session-id" in response.request.headers:
                refusal = _error_of(await response.aread())
                if refusal is None or refusal[0] != types.METHOD_NOT_FOUND:  # which may have this status too
                    self._not_found.append(refusal)

    def _reason_of(self, error: BaseException) -> str:
        if isinstance(error, MCPError):
            return "it ended before it answered" if error.code == types.CONNECTION_CLOSED else self.refused(error)
        return f"{type(error).__name__}: {error}"

    def _with_last_words(self) -> str:
        """Return why the link could not be opened, with what the server wrote."""
        lines = [line.strip() for line in self._stderr.splitlines() if line.strip()]
        last_line = f"; it wrote: {lines[-1]}" if lines else ""
        rubbish = "; it writes to its standard output what is no message" if self._unreadable else ""
        return redacted(f"{self.why}{last_line}{rubbish}", self._server.secrets)


async def _leave_unchecked(name: str, result: types.CallToolResult) -> None:
    """Accept structured content as it is: only the model reads it."""


def _root(error: BaseException) -> BaseException:
    """Return the first error of a group that is not the mere end of a connection."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    roots = [_root(exception) for exception in error.exceptions]
    return next((root for root in roots if not isinstance(root, MCPError | asyncio.CancelledError)), roots[0])


class _ReadStream:
    """A stream of messages that tells of each, and of its end."""

    def __init__(self, stream: Any, on_item: Callable[[object], None], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_item = on_item
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """What the mcp package keeps beside a message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            item = await self._stream.receive()
        except BaseException:
            self._on_end()
            raise
        self._on_item(item)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


# Programs


def _started_by(server: McpStdio) -> StdioServerParameters:
    """Return how the mcp package starts a server: by a guard that ends it when this process is gone."""
    inherited = {name: os.environ[name] for name in server.inherit if name in os.environ}
    command, args = server.command, list(server.args)
    if os.name == "posix":  # elsewhere, the mcp package itself sees to that
        command, args = sys.executable, ["-I", "-S", _GUARD, str(os.getpid()), command, *args]
    return StdioServerParameters(
        command=command,
        args=args,
        env={**inherited, **(server.env or {})},
        cwd=server.cwd,
        encoding_error_handler="replace",
    )


class StandardError:
    """A pipe for what a server writes to standard error: it is logged by lines, without secrets, and told to `tell`."""

    def __init__(self, server: McpStdio, tell: Callable[[str], None]) -> None:
        self._label = server.label
        # A secret of several lines, such as a private key, is found in each of them.
        lines = (line for secret in server.secrets for line in secret.splitlines())
        self._secrets = [line for line in lines if len(line) >= LONG]
        self._write_line = tell
        self._rest = b""
        """The begin of a line, since a secret may come in two pieces."""
        self._is_too_long = False
        """Whether the line that began is too long to be kept, so that all of it is left out."""
        self._loop = asyncio.get_running_loop()
        self._end, end = os.pipe()
        os.set_blocking(self._end, False)
        self.file = os.fdopen(end, "w")

    def __enter__(self) -> Self:
        self._loop.add_reader(self._end, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self._loop.remove_reader(self._end)
        while self._read():
            pass
        self._log(_LEFT_OUT if self._is_too_long else self._rest)
        os.close(self._end)

    def _read(self) -> bool:
        """Read what there is; return whether there may be more."""
        try:
            data = os.read(self._end, 65_536)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._end)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._log(_LEFT_OUT if self._is_too_long else line)
            self._is_too_long = False
        if self._is_too_long or len(self._rest) > _MAX_LINE:
            self._is_too_long, self._rest = True, b""
        return True

    def _log(self, written: bytes) -> None:
        for line in redacted(written.decode("utf-8", "replace"), self._secrets).splitlines():
            self._write_line(f"{line}\n")
            _log.info("%s: %s", self._label, line)


# HTTP


def _http_client(server: McpHttp, note: Callable[[httpx2.Response], Awaitable[None]]) -> httpx2.AsyncClient:
    """Return the client of a server. Its reads have no time limit, since the calls have."""
    if server.http_client:
        client = server.http_client()
        client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], note]}
        return client
    return httpx2.AsyncClient(
        headers=server.headers,
        auth=_Bearer(server.token) if server.token is not None else None,
        timeout=httpx2.Timeout(server.connect_timeout_s, read=None),
        event_hooks={"response": [note]},
    )


def _error_of(body: bytes) -> _Said | None:
    """Return the JSON-RPC error of a response; None if it has none."""
    try:
        error = json.loads(body)["error"]
        return error["code"], error["message"]
    except (ValueError, LookupError, TypeError):
        return None


def _is_of_call(error: httpx2.ConnectError) -> bool:
    """Return whether what could not be sent calls a tool."""
    try:
        return b'"tools/call"' in error.request.content
    except RuntimeError:  # it is not of a request of ours, but of a function that was asked for the token
        return False


class _Bearer(httpx2.Auth):
    """Sends a token with each request; a function is asked for it each time."""

    def __init__(self, token: str | Callable[[], str | Awaitable[str]]) -> None:
        self._token = token

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        request.headers["Authorization"] = f"Bearer {await self._value()}"
        yield request

    async def _value(self) -> str:
        if isinstance(self._token, str):
            return self._token
        if inspect.iscoroutinefunction(self._token):
            return str(await self._token())
        token = await asyncio.to_thread(self._token)
        return str(await token) if inspect.isawaitable(token) else token
