"""An MCP server of the official package, for tests: `python city_mcp.py [NOTES]`, or `--http PORT` before it.

It appends a line to the file NOTES for each call, and for its own start.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Audio, Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

NOTES: list[Path] = []

server = MCPServer("city", log_level="ERROR")


def note(line: str) -> None:
    for path in NOTES:
        with path.open("a") as file:
            file.write(f"{line}\n")


class Forecast(BaseModel):
    city: str
    degrees: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def weather(city: str) -> str:
    """Return the weather of a city."""
    note(f"weather {city}")
    return f"rain in {city}"


@server.tool()
def forecast(city: str) -> Forecast:
    """Return tomorrow's weather."""
    return Forecast(city=city, degrees=17)


@server.tool()
def cities() -> list[str]:
    """List all cities."""
    return ["Paris", "Rome"]


@server.tool(structured_output=False)
def postcard(city: str) -> list[Any]:
    """Return a picture of a city, and its sounds."""
    return [f"Greetings from {city}", Image(data=PNG, format="png"), Audio(data=b"\0" * 300, format="wav")]


@server.tool(name="pay.fine")
def pay(euros: int) -> str:
    """Pay a fine."""
    note(f"pay {euros}")
    return f"paid {euros} euros"


@server.tool()
def pid() -> int:
    """Return the id of the server's process."""
    return os.getpid()


@server.tool()
def die(city: str) -> str:
    """End the server."""
    note(f"die {city}")
    os._exit(1)


@server.tool()
def sleep(seconds: float) -> str:
    """Sleep, so that the server answers nothing meanwhile."""
    note(f"sleep {seconds}")
    time.sleep(seconds)
    return "slept"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
async def learn(context: Context[Any]) -> str:
    """Learn another trick, and say so."""
    server.add_tool(sing, description="Sing.")
    await context.notify_tools_changed()
    return "learnt"


def sing() -> str:
    return "la la"


@server.resource("guide://city/rome.md", mime_type="text/markdown")
def rome() -> str:
    """A guide to Rome."""
    return "# Rome\nAll roads lead there."


@server.resource("guide://city/map.png", mime_type="image/png")
def city_map() -> bytes:
    """A map."""
    return PNG


if __name__ == "__main__":
    args = sys.argv[1:]
    port = int(args[1]) if args[:1] == ["--http"] else None
    NOTES.extend(map(Path, args[2:] if port else args))
    note(f"start {os.getpid()}")
    if port is None:
        server.run()
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)
