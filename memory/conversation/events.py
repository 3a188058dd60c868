"""Events: what happened in a session, in order.

Every event has a sequence number that grows within its session. Events are stored before they are published; the deltas
of a running answer are published but not stored, so stored sequence numbers have gaps.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again for each class.
"""

from collections.abc import Mapping, Sequence
from operator import not_
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, get_args

import pydantic_core
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

from turnwise.memory.conversation.blocks import (
    KINDS as BLOCK_KINDS,
    AnyBlock,
    Block,
    Unknown,
    answer_text,
    decode,
    decode_json,
    encode,
)
from turnwise.memory.conversation.calls.tool_calls import Verdict, Wants
from turnwise.memory.conversation.runs import MERGED
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict, JsonObject, freeze
from turnwise.memory.values.named_tuples import Reduced, by_name
from turnwise.memory.values.records import adapter, lean, reduced

Labels = Annotated[Mapping[str, str], AfterValidator(freeze)]


class Event(BaseModel):
    """Base of all events. `kind` names the class; classes that end a run have `terminal` set."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True
    )  # built at first use: a process uses few kinds

    terminal: ClassVar[bool] = False
    live: ClassVar[bool] = False
    """Whether the events of this class are only published, and not stored."""

    kind: str
    session_id: str
    user_id: str = DEFAULT_USER
    """The session's user."""
    seq: int
    at: float
    """Seconds since the epoch, UTC."""
    turn_index: int | None = None
    turn_id: str | None = None
    """The id that the caller gave the turn, by `run(turn_id=...)`."""
    run_id: str | None = None
    labels: Labels = Field(default=FrozenDict(), exclude_if=not_)
    """The labels of the event's run, and its own: see `add_event`."""
    key: str | None = None
    """Makes appending idempotent: a session stores at most one event with this key."""

    __reduce_ex__ = reduced

    @property
    def session_key(self) -> SessionKey:
        """Its session."""
        return SessionKey(self.session_id, self.user_id)


class _BlockSchema:
    """How pydantic reads a block of an event: one of an engine's own class as it is, JSON of that class as `Unknown`.

    The classes of blocks are built when the first block is read from JSON: most processes never read one from JSON.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        by_its_class = core_schema.simple_ser_schema("any")
        return core_schema.no_info_plain_validator_function(_block, serialization=by_its_class)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(adapter(AnyBlock).core_schema)


_BLOCK_CLASSES = frozenset(BLOCK_KINDS.values())


def _block(value: Any) -> Any:
    if value.__class__ in _BLOCK_CLASSES or isinstance(value, Block):  # the latter is slow
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in BLOCK_KINDS or kind == "unknown":
        return adapter(AnyBlock).validator.validate_python(value)
    return Unknown(stored_kind=kind, payload={name: field for name, field in value.items() if name != "kind"})


_Blocks = tuple[Annotated[AnyBlock, _BlockSchema], ...]

Places = tuple[tuple[str, int, int], ...]
"""Positions of blocks: log, start, stop (exclusive). The session's own log is named by an empty text."""


class StoresBlocks(Event):
    """Base of the events that store blocks. The session's store has the blocks once, in the session's log."""

    span: tuple[int, int] | None = None
    """The positions of the blocks in the session's log: start, stop (exclusive)."""
    blocks: _Blocks = ()


class SetsInput(Event):
    """Base of the events that set what the requests of a run begin with."""

    input: Places | None = None
    """All blocks that the run's requests begin with, its prompts included. None means the default: the snapshot of the
    turn before, then the prompts; in a later event of the run, no change."""
    input_blocks: _Blocks = ()
    """The blocks of `input`. An event that is followed as it happens lacks them; one that is read later has them."""


class PromptAppended(StoresBlocks):
    """A prompt is stored and waits for the next run."""

    kind: Literal["prompt_appended"] = "prompt_appended"
    fingerprint: str = ""
    """A digest of the imported conversation, if the prompt is its end."""


class TurnImported(StoresBlocks, SetsInput):
    """A turn of a conversation from elsewhere was added behind the newest one: see `Session.import_messages`.

    `input`: what it continues. `blocks`: its prompts, then its answer.
    """

    kind: Literal["turn_imported"] = "turn_imported"
    fingerprint: str = ""
    """A digest of the imported conversation, in the event of its last turn."""


class RunQueued(StoresBlocks):
    """A run is accepted and waits for the runs before it. `blocks`: the prompts that it was started with."""

    kind: Literal["run_queued"] = "run_queued"


class RunStarted(SetsInput):
    """A run has left the queue and runs: a session has one running run at a time."""

    kind: Literal["run_started"] = "run_started"
    prompt: Places = ()
    """The positions of all prompts of the run's turn, also of those that were stored before."""
    blocks: _Blocks = ()
    """The prompts."""


class TextDelta(Event):
    """The next piece of the answer."""

    kind: Literal["text_delta"] = "text_delta"
    live: ClassVar[bool] = True
    text: str
    index: int = 0
    """The part of the answer that it continues, counted from 0 in each model call, in the order of the stream."""
    final: bool = False
    """Whether it is the part's last one. Often the end of a part is known only after its text was published: then the
    last delta has no text, and comes together with the next event. A part that was lost with its process has no last
    delta."""


Phase = Literal[
    "prompted", "planning", "executing_tools", "synthesizing", "suspended", "completed", "failed", "cancelled"
]
"""What a run does. `prompted`: it is queued, or has begun; `planning`: the model was asked and has said nothing yet, or
only thoughts and calls; `synthesizing`: it answers with text; `suspended`: a call waits for a decision. An interrupted
run has `failed`."""


class PhaseChanged(Event):
    """The run enters a phase. Derived from the other events by the reader that asks for phases.

    Its `seq` is no number of its own: reading with `after=seq` gives all events that follow.
    """

    kind: Literal["phase_changed"] = "phase_changed"
    live: ClassVar[bool] = True
    phase: Phase


class ThinkingDelta(Event):
    """The next piece of the model's reasoning."""

    kind: Literal["thinking_delta"] = "thinking_delta"
    live: ClassVar[bool] = True
    text: str
    index: int = 0
    """The part of the answer that it continues, counted from 0 in each model call, in the order of the stream."""
    final: bool = False
    """Whether it is the part's last one. Often the end of a part is known only after its text was published: then the
    last delta has no text, and comes together with the next event. A part that was lost with its process has no last
    delta."""


class AddsOutput(StoresBlocks):
    """Base of the events that add blocks to a run's output."""


class ModelCallStarted(Event):
    """A call of the model begins. Deltas of an earlier call that failed are void."""

    kind: Literal["model_call_started"] = "model_call_started"
    live: ClassVar[bool] = True
    call: int
    """The number of this model call in the run, from 0."""


class ModelCallEnded(AddsOutput):
    """The model has answered and requests tool calls. The last model call has no such event: it ends with the run."""

    kind: Literal["model_call_ended"] = "model_call_ended"
    call: int
    seconds: float
    stop_reason: str | None = None
    usage: Usage | None = None


class PromptJoined(AddsOutput):
    """The prompts of a queued run are part of this run from now on, whose next model call gets them."""

    kind: Literal["prompt_joined"] = "prompt_joined"
    joined: str
    """The id of the queued run whose prompts were taken. `run_id` is that of the run that took them."""


class ToolStarted(Event):
    """A tool is about to be called."""

    kind: Literal["tool_started"] = "tool_started"
    call_id: str
    name: str


class ToolEnded(AddsOutput):
    """A tool call has its result, which the model will see."""

    kind: Literal["tool_ended"] = "tool_ended"
    call_id: str
    name: str
    is_error: bool = False
    seconds: float = 0.0
    tries: int = 1


class ApprovalRequested(Event):
    """A call waits for a decision: `execution.approve(call_id)`, `.reject(call_id, reason)`, `.provide(...)`."""

    kind: Literal["approval_requested"] = "approval_requested"
    call_id: str
    name: str
    input: JsonObject = Field(default_factory=FrozenDict)
    wants: Wants = "approval"
    why: str | None = None


class CallDecided(AddsOutput):
    """A waiting call was decided. `blocks`: the result that follows from the decision, or the edited call."""

    kind: Literal["call_decided"] = "call_decided"
    call_id: str
    verdict: Verdict


class RunResumed(Event):
    """The run continues: all calls it waited for are decided, or another process took it over from a lost one."""

    kind: Literal["run_resumed"] = "run_resumed"
    why: str


class HookFailed(Event):
    """A hook or a sink raised; the run goes on."""

    kind: Literal["hook_failed"] = "hook_failed"
    live: ClassVar[bool] = True
    hook: str
    why: str


LeftOut = Literal["duplicate", "token_budget", "window"]
"""Why an item is not in a request: its text is in the request already, the budget of all memories is used up, or the
model's window has no room for recalled items."""


class MemoryRecalled(Event):
    """Long-term memories found items for the prompt; counts how many of them are in the run's requests.

    Published again, with nothing sent, if all of them are left out later because the window has no room.
    """

    kind: Literal["memory_recalled"] = "memory_recalled"
    live: ClassVar[bool] = True
    query: str = ""
    """The query that the memories got."""
    found: dict[str, int]
    """How many items each memory returned for the query, by the name of the memory. Items that the requests have in the
    user's profile do not count."""
    sent: dict[str, int]
    """How many found items are in the run's requests, by the name of the memory."""
    left_out: dict[str, dict[LeftOut, int]]
    """How many found items are not in the requests, by memory and reason. Lists only memories with such items."""
    profile: dict[str, int] = {}
    """How many items of the user's profile are in the run's requests, by the name of the memory."""
    profile_left_out: dict[str, dict[LeftOut, int]] = {}
    """How many items of the user's profile are not in the requests, by memory and reason. An item that the query found
    counts in `found` too."""


class MemoryFailed(Event):
    """A long-term memory failed or took too long; the run goes on without it."""

    kind: Literal["memory_failed"] = "memory_failed"
    live: ClassVar[bool] = True
    memory: str
    why: str


class MemoryDegraded(Event):
    """A long-term memory answers with reduced quality, such as by keywords alone; the run goes on."""

    kind: Literal["memory_degraded"] = "memory_degraded"
    live: ClassVar[bool] = True
    memory: str
    why: str


class MemoryBehind(Event):
    """Turns could not be saved in a long-term memory; saving is retried until it succeeds."""

    kind: Literal["memory_behind"] = "memory_behind"
    memory: str
    why: str


class MemoryCaughtUp(Event):
    """A long-term memory that was behind now has all turns."""

    kind: Literal["memory_caught_up"] = "memory_caught_up"
    memory: str


class TurnNotSaved(Event):
    """A long-term memory cannot save this turn, and saving is not retried. The turn stays in the history."""

    kind: Literal["turn_not_saved"] = "turn_not_saved"
    memory: str
    why: str


class TurnsCleared(SetsInput):
    """Turns were removed for good, with their blocks and events. `input`: what the next run begins with."""

    kind: Literal["turns_cleared"] = "turns_cleared"
    up_to: int = -1
    """The index of the last removed turn."""
    turns: int = 0
    """How many turns were removed."""


class TurnReplaced(SetsInput):
    """From here on, the conversation has the turn `turn_index`, and what follows it, in place of `replaced`.

    The turn is a new version, which a run answers next; or one that was chosen, or that is shown again since its new
    version was dropped. Then `input` is what the next run begins with.
    """

    kind: Literal["turn_replaced"] = "turn_replaced"
    replaced: int = -1
    """The index of the turn that is no longer shown, nor what follows it."""


class TurnForgotten(Event):
    """The turn was forgotten: no later request or long-term memory gets its blocks. The history keeps them."""

    kind: Literal["turn_forgotten"] = "turn_forgotten"


class BlocksRemoved(Event):
    """Blocks of the turn were removed: no later request gets them. The history keeps them."""

    kind: Literal["blocks_removed"] = "blocks_removed"
    removed: Places = ()
    """The positions of the removed blocks. The results of removed calls are among them."""


class MessageMarked(Event):
    """A mark of a message was set, changed or removed: see `Session.mark`."""

    kind: Literal["message_marked"] = "message_marked"
    number: int
    """The number of the message in its turn."""
    name: str
    value: Annotated[Any, AfterValidator(freeze)] = None
    """Its value; null if it was removed."""
    by: str | None = None
    """Who did it, as the caller said."""


class MemberChanged(Event):
    """A user became a member of the session, or a member got another role, or was removed: see `Session.add_member`."""

    kind: Literal["member_changed"] = "member_changed"
    member: str
    """The id of the user."""
    role: str | None = None
    """The role from now on; null if the user is no member any more."""
    by: str | None = None
    """The member who did it; null for the session's user, or an operator."""


class CustomEvent(Event):
    """An event of the caller's own: of a tool or an engine, by `context.event`, or from outside, by `add_event`."""

    kind: Literal["custom"] = "custom"
    name: str
    data: JsonObject = Field(default_factory=FrozenDict)
    step: str | None = None
    """The id of the step or tool call that it belongs to."""


class PlannerNote(Event):
    """A note of the engine about its plan, by `context.note`. It is not part of the conversation."""

    kind: Literal["planner_note"] = "planner_note"
    text: str
    step: str | None = None
    """The id of the step or tool call that it belongs to."""


class StepStarted(Event):
    """A step begins that an engine or a tool has named, by `context.step`."""

    kind: Literal["step_started"] = "step_started"
    step: str
    """Its id."""
    name: str
    parent: str | None = None
    """The id of the step or tool call that it is part of."""


class StepEnded(Event):
    """A named step has ended."""

    kind: Literal["step_ended"] = "step_ended"
    step: str
    name: str
    is_error: bool = False
    """Whether it ended with an exception."""
    seconds: float = 0.0


class RunEnded(AddsOutput):
    """Base of the four events that end a run. Exactly one of them is stored, as the run's last event."""

    terminal: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The answer, complete or partial."""
        return answer_text(self.blocks)


class RunCompleted(RunEnded):
    """The run completed with a whole answer."""

    kind: Literal["run_completed"] = "run_completed"
    stop_reason: str | None = None
    usage: Usage | None = None


class RunCancelled(RunEnded):
    """Somebody cancelled the run."""

    kind: Literal["run_cancelled"] = "run_cancelled"
    why: str
    code: str | None = None
    """A machine-readable word for `why`: see `RunRecord`."""
    successor: str | None = None
    """The run that has its prompts, or that has come in its place: see `RunRecord`."""

    discarded: bool = False
    """Whether the run's turn was dropped, so that the next turn does not continue it."""

    @property
    def leads_to(self) -> str | None:
        """The run that has its prompts and gives its answer, if it was merged; else None."""
        return self.successor if self.code == MERGED else None


class RunFailed(RunEnded):
    """The engine failed. `code`: see `RunRecord`."""

    kind: Literal["run_failed"] = "run_failed"
    why: str
    code: str | None = None


class RunInterrupted(RunEnded):
    """The session's process was lost during the run."""

    kind: Literal["run_interrupted"] = "run_interrupted"
    why: str


class WindowCompacted(SetsInput):
    """An overflow strategy made the next request smaller. The history is unchanged.

    `input`: set if the requests of the running run go on with the smaller window.
    """

    kind: Literal["window_compacted"] = "window_compacted"
    strategy: str
    tokens_before: int
    tokens_after: int
    summary: tuple[int, int] | None = None
    """The positions of the new summary in the session's log (start, stop exclusive); None if there is none."""
    usage: Usage | None = None
    """Usage of the compaction, without its failed attempts."""


class InputReplaced(SetsInput):
    """The requests of the run go on with the smaller window that an earlier compaction has prepared.

    A `WindowCompacted` with an `input` says the same of a compaction that has just ended.
    """

    kind: Literal["input_replaced"] = "input_replaced"


class CompactionFailed(Event):
    """An attempt at a compaction failed, or its result came too late; nothing was lost."""

    kind: Literal["compaction_failed"] = "compaction_failed"
    strategy: str
    attempt: int
    """From 1."""
    of: int
    """The most attempts that are made."""
    why: str
    usage: Usage | None = None


class TitleChanged(Event):
    """The session has another title: its engine or a caller gave it, or a caller removed it."""

    kind: Literal["title_changed"] = "title_changed"
    title: str | None = None


class SessionEnded(Event):
    """The session has ended and accepts no more runs."""

    kind: Literal["session_ended"] = "session_ended"


class SessionReverted(Event):
    """The store was restored to an earlier state: turns of the session that were acknowledged are missing."""

    kind: Literal["session_reverted"] = "session_reverted"


class UnknownEvent(Event):
    """An event of a kind that this version does not know."""

    kind: Literal["unknown"] = "unknown"
    stored_kind: str
    """The event's kind in the store."""
    payload: JsonObject = Field(default_factory=FrozenDict)
    """The fields of its kind, as stored."""


def _keep_unknown(value: Any) -> Any:
    """Return an `UnknownEvent` for a JSON object of a kind that is not known here; other values as they are."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in KINDS or kind == "unknown":
        return value
    common = {name: field for name, field in value.items() if name in Event.model_fields and name != "kind"}
    payload = {name: field for name, field in value.items() if name not in Event.model_fields}
    return UnknownEvent(stored_kind=kind, payload=payload, **common)


AnyEvent = Annotated[
    PromptAppended
    | TurnImported
    | RunQueued
    | RunStarted
    | TextDelta
    | ThinkingDelta
    | PhaseChanged
    | ModelCallStarted
    | ModelCallEnded
    | PromptJoined
    | ToolStarted
    | ToolEnded
    | ApprovalRequested
    | CallDecided
    | RunResumed
    | HookFailed
    | MemoryRecalled
    | MemoryFailed
    | MemoryDegraded
    | MemoryBehind
    | MemoryCaughtUp
    | TurnNotSaved
    | TurnForgotten
    | TurnReplaced
    | TurnsCleared
    | BlocksRemoved
    | MessageMarked
    | MemberChanged
    | CustomEvent
    | PlannerNote
    | StepStarted
    | StepEnded
    | RunCompleted
    | RunCancelled
    | RunFailed
    | RunInterrupted
    | WindowCompacted
    | InputReplaced
    | CompactionFailed
    | TitleChanged
    | SessionEnded
    | SessionReverted
    | UnknownEvent,
    Field(discriminator="kind"),
    BeforeValidator(_keep_unknown),
]
"""All classes of events. A type checker narrows it by `event.kind` or by the class.

It is a type for pydantic and FastAPI: JSON that they write of an event is read as an equal event, blocks included. An
object of a kind that this version does not know is read as `UnknownEvent`.
"""

KINDS: dict[str, type[Event]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(get_args(AnyEvent)[0]) if cls is not UnknownEvent
}

RUN_IDS = ("run_id", "successor", "joined")
"""The fields that have the id of a run."""

_BLOCKS = ("blocks", "input_blocks")
"""The fields that have blocks."""

_IN_EACH_BODY = ("turn_id", "labels")
"""The fields of every event that are in its JSON body."""

_STORED_ELSEWHERE = {"kind", *_BLOCKS, "session_id", "user_id", "seq", "at", "turn_index", "run_id", "key"}
"""The fields of an event that are not in its JSON body: they have columns, or are stored elsewhere."""


class EventRow(NamedTuple):
    """An event of a session as stores keep it: the fields that have columns, its kind, and its body."""

    seq: int
    at: float
    turn_index: int | None
    run_id: str | None
    key: str | None
    kind: str
    body: str
    """The fields of its kind, as JSON: see `encode_body`."""
    blocks: Mapping[str, Sequence[str]] | None = None
    """Its blocks, encoded, by the fields that have them; None as long as nobody has read them."""

    @property
    def cls(self) -> type[Event] | None:
        """The class of its kind; None for a kind that this version does not know."""
        return KINDS.get(self.kind)

    @property
    def terminal(self) -> bool:
        """Whether it ends a run."""
        return self.cls is not None and self.cls.terminal

    @property
    def leads_to(self) -> str | None:
        """The run that has the prompts of its run, if that one was merged: see `RunCancelled`."""
        if self.cls is not RunCancelled:
            return None
        fields = pydantic_core.from_json(self.body)
        return fields.get("successor") if fields.get("code") == MERGED else None

    def __reduce__(self) -> Reduced:
        return by_name(self)


def encode_body(event: Event, *, blocks: bool = False) -> tuple[str, str]:
    """Return the kind, and the fields of that kind as JSON, without the fields that every event has.

    Args:
        blocks: whether the JSON has the event's blocks too.
    """
    if isinstance(event, UnknownEvent):
        own = event.model_dump(include=set(_IN_EACH_BODY), exclude_defaults=True)
        return event.stored_kind, pydantic_core.to_json({**event.payload, **own}).decode()
    body = event.model_dump_json(exclude=_STORED_ELSEWHERE, exclude_defaults=True)
    block_fields = [(name, vars(event).get(name)) for name in _BLOCKS if blocks]
    texts = [f'"{name}":[{",".join(map(encode, values))}]' for name, values in block_fields if values]
    if not texts:
        return event.kind, body
    own_fields = [body[1:-1]] if body != "{}" else []
    return event.kind, "{" + ",".join(own_fields + texts) + "}"


def without_blocks(event: Event) -> AnyEvent:
    """Return the event without its blocks, as session stores keep it."""
    # `getattr` is slow where there is no such field
    no_blocks = {name: () for name in _BLOCKS if vars(event).get(name)}
    return cast(AnyEvent, lean(event.model_copy(update=no_blocks)) if no_blocks else event)


def decode_event(
    kind: str, body: str, columns: Mapping[str, Any], blocks: Mapping[str, Sequence[str]] | None = None
) -> AnyEvent:
    """Return the event that `encode_body` encoded; a kind that this version does not know becomes `UnknownEvent`.

    Args:
        columns: the fields that are stored beside the body.
        blocks: blocks that the body lacks, encoded, by their fields.

    Raises:
        ValueError: the body or a block is not JSON, or does not fit the kind.
    """
    fields = pydantic_core.from_json(body) if body != "{}" else {}
    cls = KINDS.get(kind)
    if cls is None:
        own = {name: fields.pop(name) for name in _IN_EACH_BODY if name in fields}
        return UnknownEvent(stored_kind=kind, payload=freeze(fields), **own, **columns)
    for name in _BLOCKS:
        if name in fields:
            fields[name] = tuple(decode_json(block) for block in fields[name])
    values = {**columns, **fields}
    if len(values) < len(columns) + len(fields):
        raise ValueError("the body has a field that is stored beside it")
    if blocks:
        for name, texts in blocks.items():
            values[name] = tuple([decode(text) for text in texts])
    event: AnyEvent = cls.__pydantic_validator__.validate_python(values)  # `model_validate` adds a tenth of its time
    return lean(event)


__all__ = [
    "KINDS",
    "AddsOutput",
    "AnyEvent",
    "ApprovalRequested",
    "BlocksRemoved",
    "CallDecided",
    "CompactionFailed",
    "CustomEvent",
    "Event",
    "HookFailed",
    "InputReplaced",
    "LeftOut",
    "MemberChanged",
    "MemoryBehind",
    "MemoryCaughtUp",
    "MemoryDegraded",
    "MemoryFailed",
    "MemoryRecalled",
    "MessageMarked",
    "ModelCallEnded",
    "ModelCallStarted",
    "Phase",
    "PhaseChanged",
    "Places",
    "PlannerNote",
    "PromptAppended",
    "PromptJoined",
    "RunCancelled",
    "RunCompleted",
    "RunEnded",
    "RunFailed",
    "RunInterrupted",
    "RunQueued",
    "RunResumed",
    "RunStarted",
    "SessionEnded",
    "SessionReverted",
    "SetsInput",
    "StepEnded",
    "StepStarted",
    "StoresBlocks",
    "TextDelta",
    "ThinkingDelta",
    "TitleChanged",
    "ToolEnded",
    "ToolStarted",
    "TurnForgotten",
    "TurnImported",
    "TurnNotSaved",
    "TurnReplaced",
    "TurnsCleared",
    "UnknownEvent",
    "WindowCompacted",
]
