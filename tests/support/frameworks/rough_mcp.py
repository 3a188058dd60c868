"""An MCP server that behaves badly, for tests: `python rough_mcp.py HOW NOTES`. Needs the standard library only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOW, NOTES = (sys.argv[1], Path(sys.argv[2])) if __name__ == "__main__" else ("", Path())

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
UNSAFE = {"slow": {"pattern": "(?=a)b"}, "endless": {"$ref": "#/properties/text"}, "elsewhere": {"$ref": "http://h/s"}}


def note(line: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{line}\n")


def tools() -> list[dict[str, Any]]:
    names = ["echo", "freeze", "rude", "die", "slowly.checked", "variable"]
    descriptions: list[dict[str, Any]] = [{"name": name, "inputSchema": SCHEMA} for name in names]
    descriptions[0]["inputSchema"] = {"type": "object"}
    descriptions[4]["inputSchema"] = {
        "type": "object",
        "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}},
    }
    if HOW in UNSAFE:
        descriptions.append({"name": "evil", "inputSchema": {"type": "object", "properties": {"text": UNSAFE[HOW]}}})
    if HOW == "twins":
        descriptions += [{"name": name, "inputSchema": SCHEMA} for name in ("a.b", "a/b")]
    if HOW == "long":
        descriptions += [{"name": "x" * 100 + end, "inputSchema": SCHEMA} for end in "ab"]
    return descriptions


def call(name: str, arguments: dict[str, Any]) -> Any:
    if name == "freeze":
        time.sleep(600)
    if name == "die":
        os._exit(3)
    if name == "rude":
        return {"content": "none", "isError": []}
    if name == "variable":
        return {"content": [{"type": "text", "text": os.environ.get(arguments["text"], "none")}]}
    if name not in {tool["name"] for tool in tools()}:
        return None
    return {"content": [{"type": "text", "text": json.dumps(arguments)}]}


def answer(request: dict[str, Any]) -> Any:
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rough", "version": "1"},
        }
    if method == "tools/list":
        if HOW == "pages":
            cursor = int(params.get("cursor", 0))
            return {"tools": tools()[cursor : cursor + 1], **({"nextCursor": str(cursor + 1)} if cursor < 5 else {})}
        return {"tools": tools(), **({"nextCursor": "again"} if HOW == "endless pages" else {})}
    return call(params["name"], params.get("arguments", {})) if method == "tools/call" else None


def main() -> None:
    note(f"start {os.getpid()}")
    if HOW == "missing module":
        raise ModuleNotFoundError("there is no module 'weather'")
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        note(f"child {child.pid}")
    if HOW == "mute":
        print("Welcome to the server!", flush=True)
        time.sleep(600)
    for line in sys.stdin:
        request = json.loads(line)
        if HOW == "garbage":
            sys.stdout.buffer.write(b'hello\n{"jsonrpc": 7}\n\xff\xfe\n[]\n')
        if "id" not in request:
            continue
        note(request["method"])
        result = answer(request)
        outcome = {"result": result} if result else {"error": {"code": -32601, "message": "no such thing"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
    if HOW == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
