"""`Completion`: a run's events, or its turn, as a chat completion and as its chunks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from turnwise.http.openai.errors import OpenAIError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    ModelCallEnded,
    ModelCallStarted,
    RunCompleted,
    RunEnded,
    TextDelta,
    ToolEnded,
)
from turnwise.memory.conversation.runs import CUT_SHORT
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_chat import arguments_of
from turnwise.memory.values.growing_text import GrowingText

PARAGRAPH = "\n\n"
"""What stands between the texts of several answers of the model, between which the service has called its own tools."""

_FAILURES = {
    "refused": (400, "invalid_prompt"),
    "window": (400, "context_length_exceeded"),
    "timeout": (504, "timeout"),
    "budget": (403, "insufficient_quota"),
    "quota": (429, "rate_limit_exceeded"),
    "step_limit": (400, "step_limit"),
}
"""The status and OpenAI's code of a failed run, by the run's code; 502 and `server_error` for others."""


class Completion:
    """A chat completion: a part of a run, which ends with the run or where it waits for the client's tools.

    Args:
        after: the ids of tool calls whose results began the part; empty for the first part of a run.
    """

    def __init__(self, run_id: str, model: str, created: float, after: Collection[str] = ()) -> None:
        self.calls: list[ToolUse] = []
        """The calls that the client makes."""
        self.is_done = False
        self.needs_approval = False
        """Whether the run waits for somebody's approval."""
        self._id = f"chatcmpl-{run_id}{f'-{len(after)}{max(after)}' if after else ''}"
        self._model = model
        self._created = int(created)
        self._after = frozenset(after)
        self._begun = not after
        self._texts: list[str] = []
        self._sent, self._arrived = GrowingText(), 0
        """The text of the current answer as far as it was sent, and how many characters of it have come."""
        self._open_calls: dict[str, ToolUse] = {}
        """The calls of the last answer that have no result."""
        self._waiting: set[str] = set()
        self._usage = self._before = Usage()
        """What the run has used in this part, and in the parts before."""
        self._stop_reason: str | None = None

    def add(self, event: AnyEvent) -> Iterator[str]:
        """Add the next event of the run; yield pieces of text to stream.

        Raises:
            OpenAIError: the run has ended without an answer, or waits for somebody's approval.
        """
        match event:
            case ModelCallStarted():
                self._arrived = 0
            case TextDelta():
                yield from self._unsent(event.text)
            case ModelCallEnded():
                self._usage += event.usage or Usage()
                self._stop_reason = event.stop_reason
                self._open_calls = {block.call_id: block for block in event.blocks if isinstance(block, ToolUse)}
                yield from self._end_answer(event.blocks)
            case ApprovalRequested():
                self._waiting.add(event.call_id)
                if event.wants != "result" and self._begun:
                    self.needs_approval = True
                    raise needs_approval(event, event.session_id, event.run_id or "")
            case CallDecided():
                self._waiting.discard(event.call_id)
                self._open_calls.pop(event.call_id, None)
            case ToolEnded():
                self._open_calls.pop(event.call_id, None)
            case RunCompleted():
                self._usage = event.usage or Usage()
                self._stop_reason = event.stop_reason
                yield from self._end_answer(event.blocks)
                self.is_done = True
                return
            case RunEnded():
                raise _failure(getattr(event, "why", "it was lost"), getattr(event, "code", None), event.kind)
            case _:
                pass
        if self._open_calls and self._open_calls.keys() <= self._waiting:
            self._end_or_begin_part()

    def add_turn(self, turn: Turn) -> None:
        """Add the whole turn of a completed run without calls of the client."""
        self._texts = texts_of(turn.output)
        self._usage, self._stop_reason, self.is_done = turn.record.usage or Usage(), turn.record.stop_reason, True

    def _end_or_begin_part(self) -> None:
        """End the part, or begin it: the run waits for calls of the client."""
        if self._begun:
            self.calls, self.is_done = list(self._open_calls.values()), True
        elif self._waiting & self._after:
            self._begun, self._before = True, self._usage
            self._texts, self._sent, self._arrived = [], GrowingText(), 0
        self._open_calls = {}

    def _end_answer(self, blocks: Iterable[Block]) -> Iterator[str]:
        """Yield what is missing of an answer's text, and keep the text."""
        text = "".join(block.text for block in blocks if isinstance(block, Text))
        self._arrived = 0
        if len(text) < len(self._sent):
            raise _restarted()
        yield from self._unsent(text)
        if text:
            self._texts.append(text)
        self._sent, self._arrived = GrowingText(), 0

    def _unsent(self, text: str) -> Iterator[str]:
        """Yield what was not sent yet of a piece of the current answer's text. O(the piece).

        The answer may have begun anew, after its process was lost.
        """
        if not self._begun:
            return
        again = str(self._sent)[self._arrived : self._arrived + len(text)] if self._arrived < len(self._sent) else ""
        if not text.startswith(again):
            raise _restarted()
        self._arrived += len(text)
        if new := text[len(again) :]:
            yield PARAGRAPH + new if self._texts and not self._sent else new
            self._sent.add(new)

    # What is sent

    @property
    def finish_reason(self) -> str:
        """Why it has ended."""
        if self.calls:
            return "tool_calls"
        if self._stop_reason in CUT_SHORT:
            return "length"
        return "content_filter" if self._stop_reason == "content_filter" else "stop"

    def body(self, *, last_only: bool = False) -> dict[str, Any]:
        """Return the completion.

        Args:
            last_only: whether only the text of the last answer is its content, such as for an answer in JSON.
        """
        text = PARAGRAPH.join(self._texts[-1:] if last_only else self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None, "annotations": []}
        if self.calls:
            message["tool_calls"] = [_call(use) for use in self.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return {**self._about("chat.completion"), "choices": [choice], "usage": self._used()}

    def opening(self) -> dict[str, Any]:
        """Return the first chunk."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def text(self, piece: str) -> dict[str, Any]:
        """Return a chunk of text."""
        return self._chunk({"content": piece})

    def closing(self, *, usage: bool) -> Iterator[dict[str, Any]]:
        """Yield the last chunks: those of calls, of the reason for the end and, if asked for, of usage."""
        for index, use in enumerate(self.calls):
            yield self._chunk({"tool_calls": [{"index": index, **_call(use)}]})
        yield self._chunk({}, self.finish_reason)
        if usage:
            yield {**self._about("chat.completion.chunk"), "choices": [], "usage": self._used()}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._about("chat.completion.chunk"), "choices": [choice]}

    def _about(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _used(self) -> dict[str, Any]:
        output_tokens, input_tokens = self._usage.output_tokens, self._usage.input_tokens
        output_tokens, input_tokens = (
            output_tokens - self._before.output_tokens,
            input_tokens - self._before.input_tokens,
        )
        cached = self._usage.cached_tokens - self._before.cached_tokens
        reasoning = self._usage.reasoning_tokens - self._before.reasoning_tokens
        return {
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }


def _restarted() -> OpenAIError:
    reason = "the model has begun its answer anew, and says something else: repeat the request to get it"
    return OpenAIError(502, reason, code="answer_restarted")


def texts_of(output: Iterable[AnyBlock]) -> list[str]:
    """Return the texts of the model's answers in a run's output; an answer ends with the results of its calls."""
    texts = [GrowingText()]
    for block in output:
        if isinstance(block, Text):
            texts[-1].add(block.text)
        elif isinstance(block, ToolResult) and texts[-1]:
            texts.append(GrowingText())
    return [str(text) for text in texts if text]


def _failure(reason: str, code: str | None, kind: str) -> OpenAIError:
    """Return the answer for a run that has ended without an answer."""
    if kind == "run_cancelled":
        return OpenAIError(400, f"the run was cancelled: {reason}", code="run_cancelled")
    status, name = _FAILURES.get(code or "", (502, "server_error"))
    return OpenAIError(status, f"the run failed: {reason}", code=name)


def needs_approval(call: ApprovalRequested | PendingCall, session_id: str, run_id: str) -> OpenAIError:
    """Return the answer for a run that waits for an approval, which its client cannot give."""
    reason = f"a person must approve {'a larger budget' if call.wants == 'budget' else f'the call of {call.name!r}'}"
    how = "approve it by the native API, or use the Responses API, which has approvals"
    fields = {"run_id": run_id, "session_id": session_id, "call_id": call.call_id}
    return OpenAIError(400, f"{reason}: {how}", code="approval_required", **fields)


def _call(use: ToolUse) -> dict[str, Any]:
    return {"id": use.call_id, "type": "function", "function": {"name": use.name, "arguments": arguments_of(use)}}
