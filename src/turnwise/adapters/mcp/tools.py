"""`mcp_tools` and `mcp_documents`: tools and resources of an MCP server for agents."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from turnwise.actors.inference.tools.signature import check_safe, known_schema
from turnwise.actors.inference.tools.tool import Approval, Tool, tool
from turnwise.adapters.mcp.connections import ask, waited
from turnwise.adapters.mcp.contents import described, documents, of_resource, result_from
from turnwise.adapters.mcp.servers import McpServer, server_of
from turnwise.errors import ConfigError, ToolError, ToolServerError
from turnwise.memory.conversation.blocks import Content, Document, Image, ToolResult

if TYPE_CHECKING:
    from mcp import StdioServerParameters, types

    from turnwise.adapters.mcp.connection import Connection

MAX_SCHEMA_BYTES = 65_536
"""The largest schema of a tool, in bytes of JSON."""

MAX_DOCUMENTS = 100
"""The most resources that `mcp_documents` reads at once."""

_MOST, _DIGEST = 64, 8
"""The most characters of a tool's name, and how many of them tell longer ones apart."""

_OPEN = {"additionalProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if"}
"""Keywords of schemas that may allow more properties than a schema names."""

Approve: TypeAlias = bool | Collection[str] | Mapping[str, bool | Approval] | Callable[["types.Tool"], bool | Approval]
"""Whether a person must approve calls: of all tools, of those named, or by a function of each tool."""


def mcp_tools(
    server: McpServer | StdioServerParameters | str,
    *,
    prefix: str = "",
    allow: Iterable[str] | None = None,
    deny: Iterable[str] = (),
    approve: Approve = False,
    repeatable: bool | Collection[str] | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    resources: bool = False,
) -> list[Tool]:
    """Return the tools of an MCP server, for an engine's `tools=` or a `ToolRegistry`, among other tools.

    Connects to the server from this process and asks what it has, once a process: until the server says that its tools
    changed, or the connection was lost. Blocks; in a coroutine, call it by `asyncio.to_thread`. The engine keeps these
    tools, with their descriptions and schemas: later changes of the server reach no model until you call this again.

    Each process that calls a tool has one connection, which its sessions share, and opens it again if it was lost. A
    call that did not reach the server is repeated; one that was cut off gives the model an error result, which says
    that it may have taken effect. Timeouts, limits, approvals and the journal are those of other tools. Structured
    content becomes the result's JSON; images and resources become blocks, sounds and links texts.

    Args:
        server: `McpStdio`, `McpHttp`, the URL of a server, or `StdioServerParameters` of the mcp package.
        prefix: begins each tool's name, so that tools of two servers do not clash. Names that no model may call have _
            instead of other characters; longer ones end in a digest.
        allow: the tools to return, by the server's names, as in all that follows; all if omitted.
        deny: the tools not to return.
        approve: whether a person must approve calls: of all tools, of those named, by a mapping of names to what
            `tool(approval=...)` takes, or by a function of the server's tool that returns such a value.
        repeatable: whether a call may be repeated if the process was lost while it ran: of all tools, or of those
            named. If omitted, the server's hints say: tools that only read, or where repeating changes nothing.
        timeout_s: the time limit of one attempt, in seconds; the registry's if omitted.
        retries: how often a failed call is retried; the registry's if omitted.
        resources: whether to add the tools `list_resources` and `read_resource`.

    Raises:
        ToolServerError: the server cannot be reached or understood.
        ConfigError: a tool that is named is not there, a schema cannot be used, or two tools get the same name.
    """
    its = server_of(server)
    listed = {declared.name: declared for declared in waited(its, lambda connection: connection.tools())}
    chosen = set(listed) if allow is None else _checked_names("allow", allow, listed)
    chosen -= _checked_names("deny", deny, listed)
    options: dict[str, Any] = {"timeout_s": timeout_s, "retries": retries}
    approval, may_repeat = _approval(approve, listed), _may_repeat(repeatable, listed)
    tools = [
        Tool(
            name=_name(prefix, declared.name),
            description=declared.description or declared.title or "",
            parameters=_parameters(its, declared),
            function=_Call(its, declared.name),
            approval=approval(declared),
            repeatable=may_repeat(declared),
            reads=bool(declared.annotations and declared.annotations.read_only_hint),
            **options,
        )
        for declared in sorted(listed.values(), key=lambda declared: declared.name)  # a server may list them anew
        if declared.name in chosen
    ]
    if resources:
        listing, reading = _ListResources(its), _ReadResource(its)
        tools += [
            tool(function, name=_name(prefix, name), approval=approve is True, repeatable=True, reads=True, **options)
            for function, name in ((listing, "list_resources"), (reading, "read_resource"))
        ]
    names = [made_tool.name for made_tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError("server", its.label, f"two of its tools are called {twice[0]!r} here: leave one out by deny=")
    return tools


def mcp_documents(server: McpServer | StdioServerParameters | str, *uris: str) -> list[Document | Image]:
    """Return resources of an MCP server as documents and pictures, such as for prompts: `run("Compare.", *found)`.

    Blocks; in a coroutine, call it by `asyncio.to_thread`. Texts become documents with text, pictures become images,
    and all else documents with data. Empty resources are left out.

    Args:
        server: see `mcp_tools`.
        uris: the resources to read; if omitted, all that the server lists, at most 100.

    Raises:
        ToolServerError: the server cannot be reached or understood, does not have one of them, or lists more than 100.
    """
    its = server_of(server)

    async def read(connection: Connection) -> list[Document | Image]:
        names: dict[str, str | None] = dict.fromkeys(uris)
        if not uris:
            names = {resource.uri: resource.name for resource in await connection.resources()}
        if len(names) > MAX_DOCUMENTS:
            raise ToolServerError(its.label, f"it lists {len(names)} resources: name at most {MAX_DOCUMENTS}")
        read = [(name, await _read(connection, uri)) for uri, name in names.items()]
        return documents(of_resource(part, name) for name, content in read for part in content.contents)

    async def _read(connection: Connection, uri: str) -> types.ReadResourceResult:
        try:
            return await connection.read(uri)
        except ToolError as error:
            raise ToolServerError(its.label, f"resource {uri!r}: {error}") from error

    return waited(its, read)


# Settings


def _checked_names(setting: str, names: Iterable[str], listed: Collection[str]) -> set[str]:
    chosen = {names} if isinstance(names, str) else set(names)
    if unknown := sorted(chosen.difference(listed)):
        raise ConfigError(setting, unknown[0], f"is no tool of the server; its tools are {sorted(listed)}")
    return chosen


def _approval(approve: Approve, listed: Collection[str]) -> Callable[[types.Tool], bool | Approval]:
    if isinstance(approve, bool):
        return lambda _: approve
    if isinstance(approve, Mapping):
        _checked_names("approve", approve, listed)
        return lambda tool: approve.get(tool.name, False)
    if callable(approve):
        return approve
    named = _checked_names("approve", approve, listed)
    return lambda tool: tool.name in named


def _may_repeat(repeatable: bool | Collection[str] | None, listed: Collection[str]) -> Callable[[types.Tool], bool]:
    if repeatable is None:
        return lambda tool: bool(
            tool.annotations and (tool.annotations.read_only_hint or tool.annotations.idempotent_hint)
        )
    if isinstance(repeatable, bool):
        return lambda _: repeatable
    named = _checked_names("repeatable", repeatable, listed)
    return lambda tool: tool.name in named


def _name(prefix: str, name: str) -> str:
    """Return the tool's name for models: letters, digits, _ and -, at most 64."""
    tool_name = re.sub(r"[^a-zA-Z0-9_-]", "_", prefix + name)
    if len(tool_name) > _MOST:
        digest = hashlib.sha256((prefix + name).encode()).hexdigest()[:_DIGEST]
        tool_name = f"{tool_name[: _MOST - _DIGEST - 1]}_{digest}"
    return tool_name


def _parameters(server: McpServer, tool: types.Tool) -> Any:
    """Return a tool's schema, if it is that of an object, not too large, and checked in bounded time.

    A schema that names its properties and does not say whether there may be others allows no others: many servers drop
    them, and call the tool as if the model had not written them.
    """
    schema = {"properties": {}, **tool.input_schema}
    if tool.input_schema.get("properties") is not None and not schema.keys() & _OPEN:
        schema["additionalProperties"] = False
    try:
        size = len(json.dumps(schema))
        if size > MAX_SCHEMA_BYTES:
            raise ValueError(f"it takes {size} bytes, more than {MAX_SCHEMA_BYTES}")
        check_safe(schema)
        return known_schema(tool.name, schema)
    except (ConfigError, ValueError, RecursionError) as error:
        reason = f"the schema of its tool {tool.name!r} cannot be used ({error}): leave it out by deny="
        raise ConfigError("server", server.label, reason) from error


# Calls


@dataclass(frozen=True)
class _Call:
    """Calls one tool of a server."""

    server: McpServer
    name: str

    async def __call__(self, /, **arguments: Any) -> ToolResult | None:
        async def called(connection: Connection) -> ToolResult | None:
            return result_from(await connection.call_tool(self.name, arguments))

        return await asyncio.wrap_future(ask(self.server, called))


@dataclass(frozen=True)
class _ListResources:
    """List what can be read by read_resource: documents, pictures and data, by their URIs."""

    server: McpServer

    async def __call__(self) -> str:
        """List what can be read by read_resource: documents, pictures and data, by their URIs."""
        resources = await asyncio.wrap_future(ask(self.server, lambda connection: connection.resources()))
        return "\n".join(map(described, resources)) or "there are no resources"


@dataclass(frozen=True)
class _ReadResource:
    """Read a resource."""

    server: McpServer

    async def __call__(self, uri: str) -> list[Content]:
        """Read a resource.

        Args:
            uri: where it is, as list_resources or another tool says.
        """

        async def read(connection: Connection) -> list[Content]:
            return [of_resource(content) for content in (await connection.read(uri)).contents]

        return await asyncio.wrap_future(ask(self.server, read))
