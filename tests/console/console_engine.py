"""The engine of the console's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from engines import ScriptedEngine
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext, Suspend
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import CallState, Wants
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage


class Engine:
    """Does what the prompt's first word says, else what `ScriptedEngine` does.

    `approve` asks for approval, and `outside` for a result; `steps` takes named steps with notes; `look` answers with
    thoughts, a call and its result, all with the rest of the prompt; `until` counts, and answers when the file that
    the rest of the prompt names is there.
    """

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        word, _, rest = turn.new_blocks[0].text.partition(" ")  # type: ignore[union-attr]
        if word == "look":
            call = ToolUse(call_id="1", name=rest, input={rest: rest})
            return [Thinking(text=rest), call, ToolResult(call_id="1", text=rest, is_error=True), Text(text=rest)]
        context.report(usage=Usage(input_tokens=10 * len(turn.blocks), output_tokens=20, calls=1))
        if word == "steps":
            with context.step("search"):
                context.note(rest)
                with context.step("read"):
                    context.event("found", {"what": rest})
        if word == "until":
            for number in range(6):
                context.emit(f"{number} ")
            while not Path(rest).exists():  # noqa: ASYNC240 - a file in memory
                await asyncio.sleep(0.05)
            return [Text(text=f"{rest} is there")]
        if word not in ("approve", "outside"):
            return await ScriptedEngine("echo: ").run(turn, context)
        if not context.calls:
            await context.record(ToolUse(call_id="call-1", name="pay", input={"amount": 5}))
            wants: Wants = "approval" if word == "approve" else "result"
            raise Suspend({"call-1": CallState(name="pay", wants=wants, why="it costs money")})
        verdict = context.calls["call-1"].verdict
        result = [ToolResult(call_id="call-1", text="paid")] if verdict == "approved" else []
        return [*result, Text(text=f"it was {verdict}")]


class DemoEngine:
    """Answers the prompts of `TALKS`, for pictures."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        prompt = turn.new_blocks[0].text or ""  # type: ignore[union-attr]
        size = sum(len(getattr(block, "text", "")) for block in turn.blocks)
        context.report(usage=Usage(input_tokens=900 + size, output_tokens=80 + size // 8, calls=1))
        if "refund" in prompt.lower():
            if not any(state.verdict for state in context.calls.values()):
                reason = "a refund above 100 EUR needs a person"
                arguments = {"order": "4711", "amount": "120.00 EUR"}
                await context.record(ToolUse(call_id="call-1", name="refund_order", input=arguments))
                raise Suspend({"call-1": CallState(name="refund_order", wants="approval", why=reason)})
            return [Text(text="The refund is on its way.")]
        with context.step("look up the customer"):
            context.note("the address is in the customer's record, so no search is needed")
            await asyncio.sleep(0.04)
            context.event("customer_found", {"customer": "C-1042", "open_orders": 2})
            with context.step("read the address"):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        call = ToolUse(call_id="1", name="find_customer", input={"name": "Ann", "fields": ["address", "orders"]})
        result = ToolResult(call_id="1", text='{"customer": "C-1042", "city": "Lisbon"}', is_json=True)
        return [Thinking(text="The address decides the carrier."), call, result, Text(text=_ANSWER)]


_ANSWER = (
    "Both open orders go to your new address in Lisbon now.\n\n"
    "1. Order 4711 leaves the warehouse tomorrow and arrives on Friday.\n"
    "2. Order 4720 waits for the blue lamp, which comes next week."
)

TALKS = {
    "Late parcel": ("bob", "support", ["Where is my parcel?"]),
    "Moving to Lisbon": (
        "ann",
        "support",
        ["I have moved to Lisbon. Do my orders know?", "Please refund the broken lamp of order 4711."],
    ),
    "Which plan fits a team of five?": ("carol", "sales", ["Which plan fits a team of five?", "And for ten?"]),
    "Invoice without VAT": ("dave", "billing", ["My invoice lacks the VAT number.", "It is PT501234567.", "Thanks!"]),
    "Password does not work": ("erin", "support", ["I cannot log in."]),
    "Demo for the board": ("carol", "sales", ["Can you show this to our board?"]),
}
"""Conversations by their titles: user, agent, prompts."""
