"""The engine of the console's tests."""

from __future__ import annotations

from collections.abc import Sequence

from engines import ScriptedEngine
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext, Suspend
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.tool_calls import CallState
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage


class Engine:
    """Does what the prompt's first word says, else what `ScriptedEngine` does.

    `approve` asks for approval; `steps` takes named steps with notes; `look` answers with thoughts, a call and its
    result, all with the rest of the prompt.
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
        if word != "approve":
            return await ScriptedEngine("echo: ").run(turn, context)
        verdicts = [state.verdict for state in context.calls.values() if state.verdict]
        if not verdicts:
            raise Suspend({"call-1": CallState(name="pay", wants="approval", why="it costs money")})
        return [Text(text=f"it was {verdicts[0]}")]
