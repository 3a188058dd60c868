"""The bodies of requests and answers that are about sessions and runs, as pydantic models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnwise.actors.client.agent_tree import AgentRun, AgentTree
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.arguments import IfExists
from turnwise.actors.hosting.wire import SessionInfo
from turnwise.actors.inference.tools.signature import MAX_OUTPUT_BYTES, check_safe
from turnwise.actors.inference.tools.tool import Tool, external_tool
from turnwise.errors import (
    InvalidInputError,
    RunCancelledError,
    RunEndedError,
    RunInterruptedError,
    RunReplacedError,
    TurnwiseError,
    shown,
    word_of,
)
from turnwise.http.bounded import Bounds, within_bounds
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Role,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.branches import Branches
from turnwise.memory.conversation.calls.run_tools import MAX_TOOLS
from turnwise.memory.conversation.calls.tool_calls import PendingCall, Wants
from turnwise.memory.conversation.events import AnyEvent, Phase
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.output_type import MAX_RETRIES
from turnwise.memory.conversation.runs import FinishClass, IfBusy, RunRecord, RunState
from turnwise.memory.conversation.sessions import MAX_TITLE_CHARS, MemberRole, SessionKey, SessionRecord, SessionStatus
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import Turn, TurnRecord, TurnStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.chat_messages import ChatMessage
from turnwise.memory.conversation.views.steps import Step
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.search.finding import SearchHit
from turnwise.memory.stores.search.records import SearchedRole
from turnwise.memory.values.frozen_json import plain_json
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_MESSAGES, MAX_NAMES
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.of_run import strategy_of

JsonObject = dict[str, Any]


def name_of(error: TurnwiseError) -> str:
    """Return an error's name as a word for programs: `SessionBusyError` is `session_busy`."""
    return word_of(type(error))


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a model with an example of it."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Body(BaseModel):
    """Base of what requests have: unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)
    _within_bounds = within_bounds


class Shown(BaseModel):
    """Base of what is answered. Later versions may add fields."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=True)


# Requests

PromptBlock = Annotated[
    User | System | Text | Thinking | ToolUse | ToolResult | Image | Document | Citations | CacheCheckpoint,
    Field(discriminator="kind"),
]

Prompts = str | list[str | PromptBlock]

ResultBlock = Annotated[Text | Image | Document, Field(discriminator="kind")]

TextOrBlocks = Annotated[
    Prompts,
    Field(
        description="A text, or a list of texts and blocks: `user`, `system`, `image` and `document` (by `url`, or as "
        "base64 `data` of a `media_type`), `cache_checkpoint`; and those of an earlier conversation, such as `text`, "
        "`tool_use` and `tool_result`.",
        examples=[
            "What is on this picture?",
            ["What is on this picture?", {"kind": "image", "url": "https://example.com/cat.png"}],
        ],
    ),
]


def prompts_of(prompts: Prompts | None) -> list[Any]:
    """Return the prompts for the manager."""
    if prompts is None:
        return []
    return [prompts] if isinstance(prompts, str) else list(prompts)


PROMPT_BOUNDS: Bounds = {"prompt": ("MAX_BLOCKS", MAX_BLOCKS)}


class OpenSession(Body):
    """What to open, or to create."""

    model_config = example(id="chat-1", agent="travel", title="A week in Oslo", metadata={"channel": "web"})

    id: str | None = None
    """1 to 256 characters, of at most 768 bytes in UTF-8; a new one if omitted."""
    agent: str | None = None
    """The agent to which the session belongs."""
    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS)] | None = None
    """A name for people."""
    metadata: JsonObject | None = None
    """A JSON object."""
    memory: MemoryUse | bool = True
    """Whether its runs recall from long-term memory, and whether their turns are saved there."""
    ttl_s: float | None = None
    """Seconds after its last change at which it may be deleted; never if omitted."""
    model: str | None = None
    """The default model of its runs; the engine's own if omitted."""
    params: JsonObject | None = None
    """The default model parameters of its runs, such as `temperature`."""
    engine: str | None = None
    """The name of its engine, if the service has several."""
    if_exists: IfExists = "refuse"
    """What happens if it exists with another title, engine or other metadata."""


class UpdateSession(Body):
    """What to change; what is omitted stays."""

    model_config = example(title="Ten days in Oslo", metadata={"channel": "phone", "draft": None})

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS)] | None = None
    """Its new name; "" removes it."""
    metadata: JsonObject | None = None
    """Names with their new values; null removes a name."""
    merge: bool = True
    """If false, the given metadata replace all."""


class ForkSession(Body):
    """Where a new session begins."""

    model_config = example(at=3, id="chat-1b")

    at: int | None = None
    """The index of the last turn that it has; by default the last turn that has ended."""
    id: str | None = None
    """Its id; a new one if omitted."""
    schedules: bool = False
    """Whether it gets a copy of each schedule."""


class MakeWindow(Body):
    """What the next request will have besides."""

    model_config = example(message="And the night train?")

    message: str | None = None
    """A text of the user that will follow, for which there is room then."""


class ClearSession(Body):
    """Which messages to remove."""

    model_config = example(keep_last=2)

    keep_last: int = 0
    """How many of the newest turns stay."""
    memory: bool = True
    """If false, memories keep what they have of the turns."""
    verify: bool = False
    """Whether memories are checked afterwards for remains."""


class ClearOne(ClearSession):
    """Which messages of a session to remove."""

    updated_at: float | None = None
    """Only if the session's last change was at this time."""


class UseEngine(Body):
    """The engine of later runs."""

    model_config = example(engine="smart")

    engine: str | None
    """Its name; null for the service's first."""


class Compact(Body):
    """How to compact the window."""

    model_config = example(explain=True)

    explain: bool = False
    """Only say what would be removed, and why; change nothing."""


class Expand(Body):
    """A summary, as a block of a turn has it."""

    model_config = example(summary={"kind": "summary", "text": "They plan a journey.", "of": [["log", 0, 12]]})

    summary: Summary


class Append(Body):
    """What to add for the next run."""

    model_config = example(prompt="And please keep it short.")
    bounds: ClassVar[Bounds] = PROMPT_BOUNDS

    prompt: TextOrBlocks


class SendMessage(Body):
    """A message to another session of the user."""

    model_config = example(to_session="chat-2", text="The museum is closed on Monday.")

    to_session: str
    text: str


class Say(Body):
    """What the session says."""

    model_config = example(text="Your tea has drawn.")

    text: str


class ImportMessages(Body):
    """A conversation from elsewhere."""

    model_config = example(
        messages=[{"role": "user", "content": "Where is the key?"}, {"role": "assistant", "content": "Under the mat."}]
    )

    bounds: ClassVar[Bounds] = {"messages": ("MAX_MESSAGES", MAX_MESSAGES)}

    messages: list[JsonObject]
    format: Literal["openai_chat", "openai_responses", "anthropic"] | None = None
    """Their format; found if left out."""
    system: str | None = None
    """The system prompt, where it is not among the messages."""
    idempotency_key: str | None = None
    """Identifies the import; a digest of the messages if left out."""
    after: Annotated[int, Field(ge=-1)] | None = None
    """The index of the newest ended turn that you know, -1 for none: nothing is stored behind another one."""
    memory: MemoryUse | bool = False
    """Whether long-term memories get the turns, in the background."""


class MessagesShown(Shown):
    """A conversation as messages of another library."""

    format: str
    messages: list[JsonObject]
    system: str | None
    """The system prompt, where the format has it beside the messages."""
    left_out: dict[str, int]
    """How many blocks of each kind the format has no place for."""


class AddEvent(Body):
    """An event of your own."""

    model_config = example(name="ticket", data={"number": 4711}, labels={"queue": "billing"})

    name: Annotated[str, Field(min_length=1, max_length=256)]
    data: JsonObject | None = None
    labels: dict[str, str] | None = None


class RunTool(Body):
    """A tool that the client itself carries out: the run waits until the result of a call is provided."""

    model_config = example(
        name="locate",
        description="Where the user is.",
        parameters={"type": "object", "properties": {"precise": {"type": "boolean"}}},
    )

    name: str
    description: str = ""
    parameters: JsonObject
    """The JSON schema of its arguments."""

    def as_tool(self) -> Tool:
        """Return the tool for the manager.

        Raises:
            InvalidInputError: the schema cannot be used.
        """
        plain = plain_json("parameters", self.parameters, MAX_OUTPUT_BYTES)
        try:
            check_safe(plain)
        except ValueError as error:
            raise InvalidInputError(f"tools[{shown(self.name)}].parameters", shown(plain), str(error)) from None
        return external_tool(self.name, self.description, plain)


class AnswerOptions(Body):
    """How a run answers."""

    bounds: ClassVar[Bounds] = {**PROMPT_BOUNDS, "tools": ("MAX_TOOLS", MAX_TOOLS), "labels": ("MAX_NAMES", MAX_NAMES)}

    parent: str | None = None
    """The run on whose behalf this one is started."""
    timeout_s: float | None = None
    """The run fails after so many seconds."""
    labels: dict[str, str] | None = None
    """Kept with the run."""
    memory: MemoryUse | bool | None = None
    """Whether it recalls from long-term memory, and whether its turn is saved there; as the session by default."""
    model: str | None = None
    """The model that answers."""
    params: JsonObject | None = None
    """Model parameters, such as `temperature`; null removes the session's."""
    output: JsonObject | None = None
    """The JSON schema of an object with which the model is to answer."""
    output_retries: Annotated[int, Field(ge=0, le=MAX_RETRIES)] = 2
    """How often an answer that does not fit is returned to the model."""
    instructions: str | None = None
    """A system prompt for this run alone."""
    tools: list[RunTool] | None = None
    """Tools for this run alone; results of their calls come by `/v1/runs/{run_id}/provide`."""
    overflow: JsonObject | None = None
    """How this run alone shortens its requests: `strategy` is `KeepLast` with `turns` or `messages`, `Trim` with
    `max_tokens`, or `DeleteOldest` with `count`. Later runs have the whole conversation again."""

    async def options(self) -> dict[str, Any]:
        """Return the options of the run. Tools are checked by a thread, since that may take long.

        Raises:
            InvalidInputError: the schema of a tool cannot be used, or there is no such strategy.
        """
        checked = None
        if self.tools is not None:
            checked = await asyncio.to_thread(lambda tools: [tool.as_tool() for tool in tools], self.tools)
        overflow = None if self.overflow is None else strategy_of(self.overflow)
        options = {name: getattr(self, name) for name in _RUN_OPTIONS if hasattr(self, name)}
        return options | {"tools": checked, "overflow": overflow}


class BeginOptions(Body):
    """What to run, and what happens while another run is active: of a run that begins now, and of a schedule."""

    prompt: TextOrBlocks | None = None
    """If omitted, the prompts that were appended are run, or `instructions` alone."""
    if_busy: IfBusy = "reject"
    """While another run is active: answer 409; wait behind it; cancel it, or also remove its turn; `latest`: take the
    place of the runs that wait; `merge`: become one run with those that wait; `inject`: join the active run at its
    next model call; `debounce`: become one run with those that come within `debounce_s`; `drop`: store nothing, and
    answer with the active run."""
    debounce_s: float | None = None
    """With `debounce`: how many seconds nobody must have added a prompt before the run begins."""


class RerunOptions(AnswerOptions):
    """Which turn to answer anew, and how."""

    model_config = example(at=3, prompt="Which museums are open on Sunday?")

    prompt: TextOrBlocks | None = None
    """In place of the turn's own."""
    at: int | None = None
    """The index of the turn; the last one that has ended if omitted."""
    turn_id: str | None = None
    """Your id of the new turn, unique in the session."""


class ChooseVersion(Body):
    """Which version to show."""

    model_config = example(index=3)

    index: int
    """The index of a turn."""


class VersionChosen(Shown):
    """Whether another version was shown before."""

    model_config = example(changed=True)

    changed: bool


class RunOptions(BeginOptions, AnswerOptions):
    """What to run, and how."""

    model_config = example(prompt="Which museums are open on Monday?", labels={"source": "web"}, timeout_s=120)

    turn_id: str | None = None
    """Your id of the turn, unique in the session."""


_RUN_OPTIONS = [name for name in RunOptions.model_fields if name not in ("prompt", "tools")]


class RunOnce(BeginOptions, AnswerOptions):
    """What to run without a session, and how."""

    model_config = example(prompt="Translate 'museum' into Norwegian.")

    turn_id: str | None = None
    """Your id of the turn."""
    agent: str | None = None
    """The agent that the engine and its tools are told."""
    metadata: JsonObject | None = None
    """What the engine and its tools get; not kept."""
    engine: str | None = None
    """The name of its engine, if the service has several."""


class Cancel(Body):
    """Why a run is cancelled."""

    model_config = example(reason="the user pressed stop")

    reason: str = "cancelled by the caller"


class Approve(Body):
    """Which call is approved."""

    model_config = example(call_id="call_1", input={"amount": 20})

    call_id: str
    input: JsonObject | None = None
    """Other arguments than the model's."""
    user: str | None = None
    """Whose run it is, for operators; the caller's if omitted."""


class Reject(Body):
    """Which call is rejected."""

    model_config = example(call_id="call_1", reason="too expensive")

    call_id: str
    reason: str = ""
    """What the model is told."""
    user: str | None = None
    """Whose run it is, for operators; the caller's if omitted."""


class Provide(Body):
    """The result of a call that was made elsewhere."""

    model_config = example(call_id="call_1", result={"celsius": -3})
    bounds: ClassVar[Bounds] = {"blocks": ("MAX_BLOCKS", MAX_BLOCKS)}

    call_id: str
    result: Any = None
    """A text, or another JSON value. May be omitted if there are blocks."""
    blocks: list[ResultBlock] = Field(default_factory=list)
    """Texts, images and documents that the model gets with it."""
    is_error: bool = False

    @model_validator(mode="after")
    def _is_given(self) -> Self:
        if not self.blocks and "result" not in self.model_fields_set:
            raise ValueError("give a result, or blocks")
        return self

    def as_result(self) -> Any:
        """Return what the manager takes."""
        if "result" not in self.model_fields_set:
            return list(self.blocks)
        return ToolResult.of(self.result, *self.blocks) if self.blocks else self.result


# Answers


class UsageShown(Shown):
    """Tokens, calls, time and cost."""

    model_config = example(input_tokens=120, output_tokens=40, calls=1, seconds=0.8)

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that the provider had cached."""
    reasoning_tokens: int = 0
    """The part of `output_tokens` that the model spent on reasoning."""
    calls: int = 0
    """Of the model."""
    tool_calls: int = 0
    seconds: float = 0.0
    """Time in which runs were running."""
    cost: float = 0.0
    counted_tokens: int = 0
    """The part of all tokens that no provider reported, so that turnwise counted them."""

    @classmethod
    def of(cls, usage: Usage | None) -> Self | None:
        return None if usage is None else cls.model_validate(usage)


class SessionOpened(Shown):
    """A session that was opened."""

    model_config = example(id="chat-1", user_id="ann", agent="travel")

    id: str
    user_id: str
    agent: str | None

    @classmethod
    def of(cls, session: AsyncSession) -> Self:
        return cls(id=session.session_id, user_id=session.user_id, agent=session.agent)


class SessionShown(Shown):
    """A session."""

    model_config = example(
        id="chat-1", user_id="ann", agent="travel", title="A week in Oslo", metadata={"channel": "web"}
    )

    id: str
    user_id: str
    agent: str | None
    title: str | None
    metadata: JsonObject
    status: SessionStatus
    created_at: float
    """Seconds since the epoch, UTC, as all times."""
    updated_at: float
    """The time of the last change."""
    parent: str | None
    """The turn that it was forked from, as `session#index`."""
    turns: int
    """The index of its next turn; indexes of discarded turns are not used again."""
    usage: UsageShown
    """Of all its runs."""
    agents_usage: UsageShown
    """Of the sessions of agents that its runs have called."""
    memory: MemoryUse
    ttl_s: float | None
    model: str | None
    engine: str | None
    params: JsonObject
    members: dict[str, MemberRole]
    """The roles of those who share it with its user."""
    called_by: str | None
    """The session whose tool has called it as an agent."""
    marks: int
    """How many marks its messages have."""

    @classmethod
    def fields_of(cls, record: SessionRecord) -> JsonObject:
        named = {name: getattr(record, name) for name in _SESSION_FIELDS}
        usages = {name: UsageShown.model_validate(getattr(record, name)) for name in ("usage", "agents_usage")}
        return {"id": record.session_id, "turns": record.next_index, **named, **usages}

    @classmethod
    def of(cls, record: SessionRecord) -> Self:
        return cls(**cls.fields_of(record))


_SESSION_FIELDS = [name for name in SessionShown.model_fields if name not in ("id", "turns", "usage", "agents_usage")]


class SessionState(SessionShown):
    """A session, with its open runs."""

    active_run_id: str | None
    """The run that is running or waits for approval."""
    queued_run_ids: list[str]
    """The runs behind it, in order."""

    @classmethod
    def of_info(cls, info: SessionInfo) -> Self:
        fields = cls.fields_of(info.session)
        return cls(**fields, active_run_id=info.active_run_id, queued_run_ids=list(info.queued_run_ids))


class SessionKeyShown(Shown):
    """Which session: an id, and the user among whose sessions it is unique."""

    model_config = example(session_id="chat-1", user_id="ann")

    session_id: str
    user_id: str

    @classmethod
    def of_all(cls, keys: Iterable[SessionKey]) -> list[Self]:
        return [cls(**key._asdict()) for key in keys]


class SessionPage(Shown):
    """A page of sessions."""

    items: list[SessionShown]
    cursor: str | None
    """Pass it to get the next page; null if there is none."""
    unreadable: list[SessionKeyShown]
    """Sessions on this page whose records cannot be read. They can be deleted."""

    @classmethod
    def of(cls, page: Page[SessionRecord]) -> Self:
        items = [SessionShown.of(record) for record in page]
        return cls(items=items, cursor=page.cursor, unreadable=SessionKeyShown.of_all(page.unreadable))


class SessionCount(Shown):
    """How many sessions there are."""

    model_config = example(sessions=12)

    sessions: int


class MarkShown(Shown):
    """A mark of a message."""

    name: str
    value: Any
    """Any JSON but null."""
    by: str | None
    """Who set it."""
    at: float
    """When it was set, in seconds since the epoch."""


class MessageShown(Shown):
    """A prompt with what is attached to it, a piece of an answer with its tool calls, or results of tools."""

    id: str
    session_id: str
    turn_index: int
    number: int
    role: Role
    text: str
    at: float
    turn_status: TurnStatus
    run_id: str | None
    cursor: str
    """Names the message: pass it as `before`."""
    place: str
    """Names its blocks, to remove them."""
    is_partial: bool
    """Whether it is still being answered."""
    versions: list[int]
    """The indexes of the versions of its turn, by age, its own included."""
    marks: dict[str, MarkShown]
    """Its marks, by name."""
    author: str | None
    """Who has said a prompt of a shared session; null for the session's user, and for answers."""
    blocks: list[AnyBlock]


class MessageRemoved(Shown):
    """What was removed."""

    model_config = example(removed=2)

    removed: int
    """How many blocks, with the results of removed calls."""


class MessagePage(Shown):
    """A page of messages."""

    items: list[MessageShown]
    cursor: str | None
    """Pass it as `before` to get the page of earlier messages; null if there is none."""

    @classmethod
    def of(cls, page: Page[ChatMessage]) -> Self:
        return cls(items=[MessageShown.model_validate(message) for message in page], cursor=page.cursor)


class VersionShown(Shown):
    """One of the turns that a session has had in the same place."""

    number: int
    """From 1, by age."""
    index: int
    """The turn's."""
    is_shown: bool
    """Whether the conversation has this one now."""


class SearchHitShown(Shown):
    """A message that a search has found."""

    id: str
    """The id of the message."""
    session_id: str
    user_id: str
    """To whom the session belongs; pass it as `owner` if that is another user."""
    title: str | None
    """The title of the session."""
    agent: str | None
    turn_index: int
    number: int
    role: SearchedRole
    at: float
    snippet: str
    """A part of the message's text around the first match."""
    ranges: list[tuple[int, int]]
    """Where in `snippet` the matches are: starts and stops, in characters."""


class SearchPage(Shown):
    """A page of messages that a search has found."""

    items: list[SearchHitShown]
    cursor: str | None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[SearchHit]) -> Self:
        return cls(items=[SearchHitShown.model_validate(hit) for hit in page], cursor=page.cursor)


class Snapshot(Shown):
    """A turn as its record, with the blocks that the client does not hold yet.

    The record says by spans, which are ranges of positions in logs of blocks, what the model was given and answered.
    """

    session_id: str
    record: TurnRecord
    branches: Branches
    """Which turns of the session came in place of earlier ones."""
    source: str
    """Names the copy of the logs that the blocks come from."""
    spans: Spans
    """The positions of `blocks`."""
    blocks: list[AnyBlock]


class TurnShown(Shown):
    """A turn: what was asked, and what was answered."""

    id: str
    """`session#index`."""
    session_id: str
    index: int
    turn_id: str | None
    run_id: str | None
    parent: str | None
    status: TurnStatus
    text: str
    """The answer."""
    stop_reason: str | None
    usage: UsageShown | None
    created_at: float
    metadata: JsonObject
    forgotten: bool
    removed: list[int]
    """The numbers, from 0, of those of the blocks which the turn added that were removed from later requests."""
    version: int
    """Its number among the versions, from 1."""
    versions: list[VersionShown]
    """The turns that the session has had in its place, by age, itself included."""
    blocks: list[AnyBlock]
    """What the turn added; with `snapshot`, all that the model was given and what it answered."""
    snapshot: Snapshot | None = None
    """With `held`: the turn as a record."""

    @classmethod
    def of(cls, turn: Turn, *, snapshot: bool = False, blocks: list[AnyBlock] | None = None) -> Self:
        record = turn.record
        named = {name: getattr(turn, name) for name in ("id", "session_id", "index", "turn_id", "run_id", "parent")}
        stored = {
            name: getattr(record, name) for name in ("status", "stop_reason", "created_at", "metadata", "forgotten")
        }
        usage = UsageShown.of(record.usage)
        if blocks is None:
            blocks = list(turn.blocks if snapshot else turn.new_blocks)
        versions = [
            VersionShown(number=version.number, index=version.turn_index, is_shown=version.is_shown)
            for version in turn.versions
        ]
        return cls(
            **named,
            **stored,
            text=turn.text,
            usage=usage,
            removed=list(turn.removed),
            version=turn.version,
            versions=versions,
            blocks=blocks,
        )


class SnapshotPage(Shown):
    """Turns as records, by index."""

    items: list[Snapshot]
    next: int | None
    """Pass it as `after` to get the next page; null if there is none."""


class TurnPage(Shown):
    """Turns, by index."""

    items: list[TurnShown]
    next: int | None
    """Pass it as `after` to get the next page; null if there is none."""


class CompactedPart(Shown):
    """What becomes of a part of the window."""

    start: int
    """Its first block."""
    stop: int
    """The block behind its last one."""
    fate: Literal["kept", "dropped", "summarised", "flushed"]
    tokens: int
    why: str


class CompactionShown(Shown):
    """What a compaction removes and keeps."""

    strategy: str
    tokens_before: int
    tokens_after: int
    reasons: list[str]
    """A line for each part of the window."""
    parts: list[CompactedPart]
    """The parts of the window, in order."""
    summary: str | None
    done: bool

    @classmethod
    def of(cls, compaction: Compaction) -> Self:
        named = {
            name: getattr(compaction, name) for name in ("strategy", "tokens_before", "tokens_after", "summary", "done")
        }
        parts = [
            CompactedPart(start=part.start, stop=part.stop, fate=fate, tokens=tokens, why=why)
            for part, fate, tokens, why in compaction.reasons
        ]
        return cls(**named, reasons=list(map(str, compaction.reasons)), parts=parts)


class BlocksShown(Shown):
    """Blocks, in order."""

    blocks: list[AnyBlock]


class ErasureShown(Shown):
    """How a memory was checked after a deletion."""

    items: int
    files: int
    found: list[str]
    verified: bool
    why: str | None


class ForgottenShown(Shown):
    """What was removed."""

    model_config = example(sessions=1, turns=4, items={"facts": 2})

    sessions: int = 0
    turns: int = 0
    summaries: int = 0
    waiting: int = 0
    notes: int = 0
    webhooks: int = 0
    """Those that were told of the user's sessions alone."""
    in_use: list[str] = []
    """Sessions that had a run, so nothing of them was removed when all were cleared."""
    items: dict[str, int] = {}
    erased: dict[str, ErasureShown] = {}
    was_checked: bool = False
    """Whether a verification was made in all memories."""
    verified: bool = False

    @classmethod
    def of(cls, done: Forgotten) -> Self:
        names = ("sessions", "turns", "summaries", "waiting", "notes", "webhooks")
        counts = {name: getattr(done, name) for name in names}
        erased = {
            name: ErasureShown.model_validate({**_plain(erasure), "found": list(erasure.found)})
            for name, erasure in done.erased.items()
        }
        checks = {"was_checked": done.was_checked, "verified": done.verified}
        return cls(**counts, in_use=list(done.in_use), items=dict(done.items), erased=erased, **checks)


def _plain(erasure: Any) -> JsonObject:
    return {name: getattr(erasure, name) for name in ErasureShown.model_fields}


class EventAdded(Shown):
    """An event that was added."""

    model_config = example(seq=17)

    seq: int
    """Its number."""


class EventsShown(Shown):
    """Events, by number."""

    items: list[AnyEvent]
    next: int | None
    """Pass it as `after` to get the next page; null if there are no more events."""

    @classmethod
    def of(cls, events: Iterable[AnyEvent], next: int | None) -> Self:
        return cls(items=list(events), next=next)


class FollowEvents(Body):
    """Which events to send."""

    model_config = example(kinds=["run_completed", "run_failed"])

    session_id: str | None = None
    """Only of this session of the user."""
    agent: str | None = None
    """Only of sessions of this agent."""
    kinds: list[str] | None = None
    """Only events of these kinds."""
    labels: dict[str, str] | None = None
    """Only events that have all of these labels."""
    cursor: str | None = None
    """Go on behind the events of an earlier answer with the same filters; from now on if omitted."""
    all: bool = False
    """Of all users, for operators and without authentication; others get their own."""
    limit: Annotated[int, Field(ge=0, le=1_000)] = 1_000
    """How many events of a page are enough; with 0, the answer is only the cursor."""


class EventsBehind(Shown):
    """Stored events of sessions, those of a session by number."""

    items: list[AnyEvent]
    ids: list[str]
    """Of each event: the log of its session, a colon, and its number there."""
    cursor: str
    """Pass it to go on behind these events."""


class RunStarted(Shown):
    """A run that is stored, and started or queued."""

    model_config = example(id="0193f2a4c0de5f1a2b3c4d5e", session_id="chat-1", turn_index=4)

    id: str
    session_id: str
    turn_index: int
    dropped: bool = False
    """Whether `if_busy` was `drop` and a run was active: then this is that run, and nothing was stored."""

    @classmethod
    def of(cls, execution: AsyncExecutionHandle) -> Self:
        return cls(
            id=execution.run_id,
            session_id=execution.session_id,
            turn_index=execution.turn_index,
            dropped=execution.dropped,
        )


class RunError(Shown):
    """Why a run ended without an answer."""

    model_config = example(error="run_failed", detail="run 'r' of session 's' failed: ...", why="the engine broke")

    error: str
    """A word for programs, such as `run_cancelled`, `run_limit` or `output_invalid`."""
    detail: str
    why: str
    successor: str | None = None
    """The run that came in its place, if the error is `run_replaced`."""

    @classmethod
    def of(cls, error: RunEndedError) -> Self:
        successor = error.replaced_by if isinstance(error, RunReplacedError) else None
        return cls(error=name_of(error), detail=str(error), why=error.why, successor=successor)


class RunResult(RunStarted):
    """A run as it is: with its answer if it has ended."""

    model_config = example(
        id="0193f2a4c0de5f1a2b3c4d5e", session_id="chat-1", turn_index=4, state="completed", text="On Monday, all are."
    )

    state: RunState
    text: str | None = None
    """The answer, or what was kept of it; null while the run goes on."""
    stop_reason: str | None = None
    usage: UsageShown | None = None
    error: RunError | None = None
    """Why it ended, if it did not complete."""
    snapshot: Snapshot | None = None
    """With `held`: its turn, or what was kept of it; null while the run goes on."""

    @classmethod
    def open(cls, execution: AsyncExecutionHandle, state: RunState) -> Self:
        return cls(**RunStarted.of(execution).model_dump(), state=state)

    @classmethod
    def ended(cls, execution: AsyncExecutionHandle, turn: Turn | None, error: RunEndedError | None) -> Self:
        state: RunState = "completed"
        if error:
            state = "cancelled" if isinstance(error, RunCancelledError) else "failed"
            state = "interrupted" if isinstance(error, RunInterruptedError) else state
        return cls(
            **RunStarted.of(execution).model_dump(),
            state=state,
            text=turn.text if turn else None,
            stop_reason=turn.record.stop_reason if turn else None,
            usage=UsageShown.of(turn.record.usage) if turn else None,
            error=RunError.of(error) if error else None,
        )


class RunShown(Shown):
    """A run's record."""

    id: str
    session_id: str
    user_id: str
    turn_index: int
    state: RunState
    finish: FinishClass | None
    """How it ended, in one of five classes; null while it goes on."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    why: str | None
    """Why it ended, if it did not complete."""
    code: str | None
    """A word for `why`: `step_limit`, `budget`, `timeout`, `window`, `refused` and others."""
    successor: str | None
    """The run that has its prompts (code `merged`), or that came in its place (`replaced`), while it was queued."""
    labels: dict[str, str]
    timeout_s: float | None
    idempotency_key: str | None
    usage: UsageShown | None
    """Up to its last commit, or up to now."""
    agents_usage: UsageShown
    """Of the agents that it has called."""
    stop_reason: str | None
    resumes: int
    """How often it was resumed after its process was lost."""
    author: str | None
    """The member who has started it; null for the session's user."""
    engine: str | None
    parent: str | None
    memory: MemoryUse
    model: str | None
    params: JsonObject
    output: JsonObject | None
    """The type of its answer: a JSON `schema`, and how many `retries` the model has."""
    says: str | None
    """Its answer, if it asks no model: see `POST /v1/sessions/{session_id}/say`."""
    instructions: str | None
    """The system prompt of this run alone."""
    tools: JsonObject
    """The tools of this run alone, by name."""
    overflow: JsonObject | None
    """How this run alone shortens its requests."""
    first_seq: int
    """The number of its first event."""
    calls: JsonObject
    """The states of its tool calls, without their results, by call id."""

    @classmethod
    def of(cls, record: RunRecord) -> Self:
        named = {name: getattr(record, name) for name in _RUN_FIELDS}
        named["output"] = record.output if record.says is None else None
        agents_usage = UsageShown.model_validate(record.agents_usage)
        return cls(id=record.run_id, usage=UsageShown.of(record.usage), agents_usage=agents_usage, **named)


_RUN_FIELDS = [name for name in RunShown.model_fields if name not in ("id", "usage", "agents_usage")]


class RunPage(Shown):
    """A page of runs."""

    items: list[RunShown]
    cursor: str | None = None
    """Pass it to get the next page; null if there is none."""
    unreadable: list[SessionKeyShown] = []
    """Sessions whose runs cannot be read."""

    @classmethod
    def of(cls, page: Page[RunRecord]) -> Self:
        items = [RunShown.of(record) for record in page]
        return cls(items=items, cursor=page.cursor, unreadable=SessionKeyShown.of_all(page.unreadable))


class AgentRunShown(Shown):
    """The run of an agent that another run has called."""

    id: str
    session_id: str
    agent: str
    """The agent's name, which is that of its tool."""
    call_id: str
    """The call by which it was called."""
    parent: str
    """The run that has called it."""
    depth: int
    """1: called by the run that was asked for."""
    run: RunShown | None
    """Null: it has not begun, or its session was deleted."""

    @classmethod
    def of(cls, agent: AgentRun) -> Self:
        return cls(
            id=agent.execution.run_id,
            session_id=agent.execution.session_id,
            agent=agent.name,
            run=RunShown.of(agent.record) if agent.record else None,
            **{name: getattr(agent, name) for name in ("call_id", "parent", "depth")},
        )


class AgentsShown(Shown):
    """The runs of agents below a run: each is followed by those that it has called, in the order of the calls."""

    items: list[AgentRunShown]
    is_cut: bool
    """Whether there are more agents than these."""

    @classmethod
    def of(cls, tree: AgentTree) -> Self:
        return cls(items=[AgentRunShown.of(agent) for agent in tree.agents], is_cut=tree.is_cut)


class RunsOfSession(Shown):
    """Runs of a session, by turn index."""

    items: list[RunShown]
    next: int | None
    """Pass it as `after` to get the next page; null if there is none."""


class Cancelled(Shown):
    """Whether the run ended as cancelled."""

    model_config = example(cancelled=True)

    cancelled: bool


class StepShown(Shown):
    """A call of the model or of a tool, or a named step."""

    kind: Literal["model", "tool", "step"]
    name: str
    call_id: str | None
    id: str | None
    parent: str | None
    started_at: float
    seconds: float | None
    tries: int
    is_error: bool
    usage: UsageShown | None
    stop_reason: str | None


class Steps(Shown):
    """The steps of a run, in the order in which they began."""

    items: list[StepShown]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Self:
        return cls(items=[StepShown.model_validate(step) for step in steps])


class PhaseShown(Shown):
    """What a run does."""

    model_config = example(phase="executing_tools")

    phase: Phase


class PendingCallShown(Shown):
    """A call that somebody has to decide about."""

    model_config = example(call_id="call_1", name="pay", input={"amount": 30}, wants="approval", why=None)

    call_id: str
    name: str
    input: JsonObject
    wants: Wants
    why: str | None


class PendingCalls(Shown):
    """The calls that wait for a decision, in the order in which the model made them."""

    items: list[PendingCallShown]

    @classmethod
    def of(cls, calls: Iterable[PendingCall]) -> Self:
        return cls(items=[PendingCallShown.model_validate(call) for call in calls])
