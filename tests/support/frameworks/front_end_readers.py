"""What clients make of the streams of `turnwise.adapters.front_ends`, with the checks that they make.

`UiMessage` does what `processUIMessageStream` of the npm package `ai` does; `AgUiThread` what `verifyEvents` and the
message reducer of `@ag-ui/client` do. `tests/adapters/front_ends/test_front_ends_in_node.py` compares them with these
packages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class UiMessage:
    """A message of `useChat` as its parts come."""

    def __init__(self) -> None:
        self.id = ""
        self.parts: list[dict[str, Any]] = []
        self.finish: str | None = None
        self.error: str | None = None
        self.ended = 0
        self._open: dict[str, dict[str, Any]] = {}
        self._used: set[str] = set()

    def feed(self, data: Any) -> None:
        assert self.error is None or data == "[DONE]", f"{data} after an error"
        if data == "[DONE]":
            assert not self._open, f"left open: {list(self._open)}"
            self.ended += 1
            return
        kind = data["type"]
        name = kind.rpartition("-")[0]
        match kind:
            case "start":
                self.id = data["messageId"]
            case "text-start" | "reasoning-start":
                assert data["id"] not in self._used, data
                self._used.add(data["id"])
                part = {"type": name, "text": "", "state": "streaming"}
                self._open[data["id"]] = part
                self.parts.append(part)
            case "text-delta" | "reasoning-delta":
                assert data["delta"]
                self._open[data["id"]]["text"] += data["delta"]
            case "text-end" | "reasoning-end":
                self._open.pop(data["id"])["state"] = "done"
            case "tool-input-available":
                part = self._call(data["toolCallId"], data["toolName"])
                part |= {"state": "input-available", "input": data["input"]}
            case "tool-approval-request":
                part = self._call(data["toolCallId"])
                part |= {"state": "approval-requested", "approval": {"id": data["approvalId"]}}
            case "tool-approval-response":
                (part,) = [part for part in self.parts if part.get("approval", {}).get("id") == data["approvalId"]]
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], "approved": data["approved"]}
            case "tool-output-available":
                self._call(data["toolCallId"]).update(state="output-available", output=data["output"])
            case "tool-output-error":
                self._call(data["toolCallId"]).update(state="output-error", errorText=data["errorText"])
            case "tool-output-denied":
                self._call(data["toolCallId"]).update(state="output-denied")
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "reset-step":
                assert not self._open, "a part of the step is open"
                while self.parts and self.parts[-1]["type"] != "step-start":
                    self.parts.pop()
            case "finish":
                self.finish = data["finishReason"]
            case "error":
                self.error = data["errorText"]
            case "file":
                self.parts.append(dict(data))
            case "finish-step" | "abort":
                pass
            case _:
                assert kind.startswith("data-"), data
                earlier_parts = [part for part in self.parts if part["type"] == kind and part.get("id") == data["id"]]
                if earlier_parts:
                    earlier_parts[0]["data"] = data["data"]
                else:
                    self.parts.append(dict(data))

    def _call(self, call_id: str, name: str | None = None) -> dict[str, Any]:
        call_parts = [part for part in self.parts if part.get("toolCallId") == call_id]
        if not call_parts:
            assert name, f"nothing was said of call {call_id}"
            call_parts = [{"type": f"tool-{name}", "toolCallId": call_id}]
            self.parts += call_parts
        return call_parts[0]


class AgUiThread:
    """The messages of a client of AG-UI as its events come."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.finished: list[Mapping[str, Any]] = []
        self.customs: list[Any] = []
        self.states: list[Any] = []
        self._runs = False
        self._open: dict[tuple[str, str], None] = {}
        self._used: set[tuple[str, str]] = set()

    def feed(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        assert self._runs or kind in ("RUN_STARTED", "RUN_ERROR"), event
        match kind:
            case "RUN_STARTED":
                assert not self._runs
                self._runs = True
            case "TEXT_MESSAGE_START" | "REASONING_START" | "REASONING_MESSAGE_START" | "TOOL_CALL_START":
                key = kind.removesuffix("_START"), event.get("messageId") or event["toolCallId"]
                assert key not in self._used, event
                self._used.add(key)
                self._open[key] = None
                self._begin(kind, event)
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                assert (kind.removesuffix("_CONTENT"), event["messageId"]) in self._open, event
                self.messages[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_ARGS":
                self._call(event["toolCallId"])["arguments"] += event["delta"]
            case "TEXT_MESSAGE_END" | "REASONING_END" | "REASONING_MESSAGE_END" | "TOOL_CALL_END":
                self._open.pop((kind.removesuffix("_END"), event.get("messageId") or event["toolCallId"]))
            case "TOOL_CALL_RESULT":
                self._call(event["toolCallId"])
                assert event["messageId"] not in self.messages
                self.messages[event["messageId"]] = {"role": "tool", "content": event["content"]}
            case "STEP_STARTED":
                assert ("STEP", event["stepName"]) not in self._open, event
                self._open["STEP", event["stepName"]] = None
            case "STEP_FINISHED":
                self._open.pop(("STEP", event["stepName"]))
            case "STATE_SNAPSHOT":
                self.states.append(event["snapshot"])
            case "CUSTOM":
                self.customs.append([event["name"], event["value"]])
                if event["name"] == "turnwise.void":
                    for message_id in event["value"]["messageIds"]:
                        self.messages.pop(message_id, None)
            case "RUN_FINISHED" | "RUN_ERROR":
                assert not self._open, f"left open: {list(self._open)}"
                self.finished.append(event)
                self._runs = False
            case _:
                raise AssertionError(event)

    def _begin(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "TOOL_CALL_START":
            parent = self.messages.setdefault(event["parentMessageId"], {"role": "assistant", "content": ""})
            call = {"name": event["toolCallName"], "arguments": ""}
            parent.setdefault("toolCalls", {})[event["toolCallId"]] = call
        elif kind != "REASONING_START":
            role = "assistant" if kind == "TEXT_MESSAGE_START" else "reasoning"
            self.messages.setdefault(event["messageId"], {"role": role, "content": ""})

    def _call(self, call_id: str) -> dict[str, Any]:
        calls = [call for message in self.messages.values() for call in message.get("toolCalls", {}).items()]
        call: dict[str, Any] = dict(calls)[call_id]
        return call


def plain(frames: Sequence[Any]) -> list[Any]:
    """Return the data of frames as they arrive."""
    return [json.loads(json.dumps(frame.data)) for frame in frames]
