"""A stand-in for Gemini's API over HTTP: streams what a script says, and refuses what Gemini would refuse."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SIGNATURE = base64.b64encode(b"a thought of Gemini's").decode()
"""The signature of the first call of each answer, which must come back with it."""


class GeminiServer:
    """Answers each request with the next step: a list of parts, such as `{"text": "Hi"}`. The last step is repeated."""

    def __init__(self, *steps: Sequence[Mapping[str, Any]]) -> None:
        self.requests: list[dict[str, Any]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stand_in.requests.append(body)
                if flaw := _flaw(body["contents"]):
                    error = {"error": {"code": 400, "message": flaw, "status": "INVALID_ARGUMENT"}}
                    self._send(400, "application/json", json.dumps(error))
                    return
                step = steps[min(len(stand_in.requests), len(steps)) - 1]
                self._send(200, "text/event-stream", "".join(_events(step)))

            def _send(self, status: int, kind: str, text: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def call(name: str, **args: Any) -> dict[str, Any]:
    """Return the part of a signed call."""
    return {"functionCall": {"name": name, "args": args}, "thoughtSignature": SIGNATURE}


def _events(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 12}
    events = []
    for index, part in enumerate(parts):
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if index == len(parts) - 1:
            candidate["finishReason"] = "STOP"
        chunk = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini", "responseId": "r1"}
        events.append(f"data: {json.dumps(chunk)}\r\n\r\n")
    return events


def _flaw(contents: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why Gemini would refuse this conversation."""
    calls: list[str] = []
    for content in contents:
        answered_names = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        if sorted(answered_names) != sorted(calls):
            return f"function responses {answered_names} must be as many as the function calls {calls} before them"
        called = [part for part in content["parts"] if "functionCall" in part]
        if called and called[0].get("thoughtSignature") != SIGNATURE:
            return "Function call is missing a thought_signature in functionCall parts"
        calls = [part["functionCall"]["name"] for part in called]
    return f"the function calls {calls} have no responses" if calls else None
