"""Calls of a waiting run, for a person to decide: approve, reject, or supply the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.console.elements.tags import button, long_text, tag
from turnwise.console.elements.text import json_text
from turnwise.errors import InvalidInputError, shown
from turnwise.http.auth import Identity
from turnwise.http.service import check_may_approve
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.runs import QUOTA

MAX_CHARS = 200_000
"""How many characters a field takes; a websocket's message has at most a megabyte."""


class Calls:
    """The calls that wait for a decision. `decided` is called after one was made; `identity` is who decides."""

    def __init__(self, decided: Callable[[], None], identity: Identity | None, *, is_read_only: bool) -> None:
        self._decided = decided
        self._identity = identity
        self._is_read_only = is_read_only
        self._shown: tuple[str, ...] = ()
        self._whole = tag("div", "", aria_live="polite")

    def show(self, execution: AsyncExecutionHandle | None, pending: Sequence[PendingCall]) -> None:
        """Show these calls of a run; nothing changes if they are shown already, so that no input is lost."""
        run_id = execution.run_id if execution else ""
        if (ids := tuple(f"{run_id} {call.call_id}" for call in pending)) == self._shown:
            return
        self._shown = ids
        self._whole.clear()
        with self._whole:
            for call in pending:
                if execution:
                    self._ask(execution, call)

    def _ask(self, execution: AsyncExecutionHandle, call: PendingCall) -> None:
        with tag("section", "card ask", aria_label=f"Decision about {call.name}"):
            requests = {
                "approval": "asks for approval",
                "result": "waits for its result",
                "budget": "is over its budget",
            }
            exceeds_quota = call.wants == "budget" and call.name == QUOTA
            tag("h2", "", "A quota is used up" if exceeds_quota else f"{call.name} {requests[call.wants]}")
            if call.why:
                long_text(call.why, "soft", "p")
            if self._is_read_only:
                long_text(json_text(call.input), "code")
                return
            if call.wants == "result":
                self._provide(execution, call)
            else:
                self._approve(execution, call)

    def _approve(self, execution: AsyncExecutionHandle, call: PendingCall) -> None:
        original = json_text(call.input)
        field: Any = None
        if call.wants == "approval":
            field = _field("Arguments, as JSON", original)
        reason = ui.input("Why not, if you reject it").props(f"outlined dense maxlength={MAX_CHARS}").classes("grow")

        async def approve() -> None:
            check_may_approve(self._identity, call.call_id)
            edited = field is not None and field.value != original
            await execution.approve(call.call_id, input=_object(field.value) if edited else None)
            self._decided()

        async def reject() -> None:
            await execution.reject(call.call_id, reason.value or "")
            self._decided()

        with tag("div", "row") as row:
            button("Approve", approve, "main")
            button("Reject", reject, "bad")
        reason.move(row)

    def _provide(self, execution: AsyncExecutionHandle, call: PendingCall) -> None:
        long_text(json_text(call.input), "code")
        field = _field("Result", "")
        failed = ui.checkbox("The call failed")

        async def provide() -> None:
            await execution.provide(call.call_id, field.value or "", is_error=bool(failed.value))
            self._decided()

        with tag("div", "row") as row:
            button("Send the result", provide, "main")
        failed.move(row)


def _field(label: str, value: str) -> Any:
    return ui.textarea(label, value=value).props(f"outlined dense autogrow maxlength={MAX_CHARS}").classes("mono")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError("arguments", shown(text), f"they are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInputError("arguments", shown(text), "they must be a JSON object")
    return value
