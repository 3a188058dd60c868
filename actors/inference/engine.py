"""The protocols of an engine: `EngineBuilder`, the `InferenceRunner` that it builds, and the run's context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, Document, Image, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.schedule_access import ScheduleAccess
from turnwise.memory.files.owned import OwnedFiles
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.values.frozen_json import FrozenDict

NewEvent = tuple[type[Event], dict[str, Any]]
"""An event that is not numbered yet: its class and its fields, without session, turn, run, number and time."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """The session for which an engine is built: its ids, user, agent and metadata."""

    session_id: str
    """Unique within its user."""
    user_id: str
    agent: str | None
    metadata: Mapping[str, Any]
    depth: int = 0
    """How many calls of agents are above the session."""
    key: str = ""
    """Names the session among those of all stores. No other session gets it, also after this one was deleted; empty for
    a question that belongs to no session."""
    inherited_prefix_key: str = ""
    """The key of its caller's prefix, with which its requests begin too; empty if they begin otherwise."""
    members: Mapping[str, str] = field(default_factory=FrozenDict)
    """The roles of those who share the session with its user, by their ids."""
    author: str | None = None
    """The member who has started the run; None for the session's user."""


ASIDE = "aside"
"""The run id in the context of a question that is no turn, such as for a title, a summary or facts.

Its request has a system prompt of its own and, in `RunContext.output_type`, the form of its answer. An engine must not
apply what it has for its conversations beside these: a system prompt, a type of answers, tools and their choice, stop
sequences. Its model, its other settings, its middleware and its hooks apply.
"""


class RunContext(Protocol):
    """One run, as its engine sees it. After the run's end the methods change nothing, so a late engine is harmless."""

    @property
    def session(self) -> SessionView:
        """The session that the run belongs to."""

    @property
    def run_id(self) -> str:
        """The run's id; `ASIDE` in a question of turnwise's own."""

    @property
    def prefix_key(self) -> str:
        """Names the beginning of the run's requests: those with the same key begin with the same blocks.

        It says nothing of ids, users or texts. A fork has the key of the session whose blocks its requests begin with,
        so until a compaction puts its own block first. An agent with its caller's engine and model has its caller's
        key, since both have the same tools and system prompt. Empty for questions that belong to no conversation.
        """

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that the caller gave the run."""

    @property
    def model(self) -> str | None:
        """The model that the run requests; None for the engine's own."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The run's model parameters for the current step; see `ModelParams`. A `Steerable` engine must apply them.

        A `tool_choice` that forces a tool call is present in the run's first step only; in later steps, also after
        another process resumes the run, it is `auto`.
        """

    @property
    def output_type(self) -> Mapping[str, Any] | None:
        """The type of the run's answer (see `OutputType`); None for text. A `Structured` engine must apply it."""

    @property
    def instructions(self) -> str | None:
        """The system prompt of this run alone; None if it has none. An `Extensible` engine must apply it.

        Requests have it after the engine's system prompt and the conversation's own.
        """

    @property
    def tools(self) -> Mapping[str, Mapping[str, Any]]:
        """The tools of this run alone, by name: `description` and `parameters`, a JSON schema of an object.

        An `Extensible` engine must declare them to the model; the caller provides their results. `ToolLoop` makes a run
        that calls one of them wait.
        """

    @property
    def memory(self) -> MemoryAccess | None:
        """Access to the session's memories; None if there are none, the run uses none, or the run has ended.

        Changes to memories are not part of the run: they stay if the run is cancelled or discarded.
        """

    @property
    def schedules(self) -> ScheduleAccess | None:
        """Access to the session's reminders; None if the run has ended. A change stays if the run is cancelled."""

    @property
    def files(self) -> OwnedFiles | None:
        """Access to the session's files; None if there is no place for files, or the run has ended.

        A change stays if the run is cancelled.
        """

    def emit(self, part: str | Block) -> None:
        """Stream a part of the answer: a string is text; `Text` and `Thinking` continue the previous such block.

        Never blocks. A cancelled or failed run keeps the emitted parts; a finished run keeps what its runner returns.
        """

    def report(
        self,
        *,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        model: str | None = None,
        tool: str | None = None,
    ) -> None:
        """Report what the provider says about this run: each `usage` is added, the last `stop_reason` is kept.

        With a `tool`, it may be called from any thread.

        Args:
            model: the model whose prices apply, if the session has prices.
            tool: the tool that was called, if the usage is a tool's: its calls, and what they cost.
        """


def output_of(context: RunContext, own: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the type of an answer, as `RunContext.output_type`: the run's, else the engine's own.

    A question of turnwise's own never has that of the engine.
    """
    return context.output_type or (own if context.run_id != ASIDE else None)


class ToolStandIn(Protocol):
    """Answers tool calls in place of the tools, so that a replay of a recorded turn changes nothing outside."""

    async def answer(self, use: ToolUse, *, reads: bool) -> ToolResult | None:
        """Return the result of a call; None if the tool itself is to be called.

        Args:
            reads: whether the tool is marked as one that only reads: see `tool(reads=...)`.

        Raises:
            TurnwiseError: there is no result, so the run ends here.
        """


class StepContext(RunContext, Protocol):
    """One run, for an engine that works in steps, such as `ToolLoop`.

    Recorded blocks are durable before the next step, so that another process can resume the run after them.
    """

    @property
    def calls(self) -> Mapping[str, CallState]:
        """The states of the run's tool calls (decisions, attempts), by call id, as of the last commit."""

    @property
    def stand_in(self) -> ToolStandIn | None:
        """What answers tool calls in place of the tools; None outside of a replay: then the tools are called."""

    def publish(self, kind: type[Event], **values: Any) -> None:
        """Publish a live event, which is not stored."""

    def event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add an event of your own to the run: a `CustomEvent`, stored in order with the run's other events.

        Returns at once, from any thread. The event is stored with the run's next commit, or in one of its own right
        away; the run's end stores what remains. After the run's end this does nothing.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.
            labels: labels of this event, beside those of the run: `Session.events(labels=...)` finds it by them.

        Raises:
            InvalidInputError: the name, the data or the labels cannot be stored.
        """

    def note(self, text: str) -> None:
        """Add a `PlannerNote` to the run: why the engine does what it does. See `event`; no model gets the note."""

    def step(self, name: str) -> AbstractContextManager[str]:
        """Return a context manager whose body is a named step of the run; its value is the step's id.

        Stores a `StepStarted` and a `StepEnded`; see `event`. Steps, events and notes within the body, also in tasks
        and tools' threads that begin there, belong to the step, so steps nest: see `ExecutionHandle.steps`.
        """

    def annotate(self, **values: Any) -> None:
        """Set values of `Turn.metadata` of the run's turn; None removes one. Hooks and middleware may call it too.

        The values are stored with the run's next commit, at the latest with its end, and are dropped with a turn that
        is discarded.

        Raises:
            InvalidInputError: a value is not JSON, or is larger than 1 MB.
        """

    def add_event(self, kind: type[Event], values: Mapping[str, Any]) -> None:
        """Add an event to the run's next commit; see `event`, which calls it."""

    def begin_call(self, limit: int | None = None) -> None:
        """Announce a call of the model. Parts that were emitted but not recorded are discarded.

        Args:
            limit: how many model calls the run may make in total, also counting those before it was resumed.

        Raises:
            LimitError: the limit is reached, or a budget is used up.
            Suspend: a budget is used up, and a caller must decide whether the run continues.
        """

    def end_call(self, answer: Sequence[Block] = ()) -> NewEvent:
        """Return the end event of the last announced model call; record it together with the answer.

        Args:
            answer: what the model answered. If no tokens were reported, those of request and answer are counted.
        """

    async def record(
        self,
        *blocks: Block,
        events: Sequence[NewEvent] = (),
        calls: Mapping[str, CallState | None] | None = None,
        suspends: bool = False,
    ) -> Turn:
        """Add blocks to the run's output in one durable commit; return the turn with them.

        The assistant's blocks replace the emitted parts. A tool result is placed after its call. Events that add to the
        transcript (`AddsOutput`) get the new blocks in order: the first event gets all of the assistant's blocks, each
        further one gets one result.

        If the caller is cancelled, all of it is stored or nothing, and the caller cannot know which.

        Args:
            calls: new states of tool calls; None removes a state.
            suspends: whether the engine raises `Suspend` next, since calls wait and nothing else is to be done. The
                same commit then suspends the run, which costs none of its own.

        Raises:
            EngineError: the run's outcome is decided already; nothing was stored.
            StoreError: it could not be stored within `SessionConfig.store_retry_s`.
        """

    async def store_input(self, blocks: Sequence[Block]) -> None:
        """Store blocks in place of the input of the run's turn; later turns continue them. Durable on return.

        Blocks that the input has stay where they are; the others are added to the turn's prompts. Recalled blocks are
        left out. If nothing differs, nothing is stored.

        Args:
            blocks: all blocks of the turn, which end with what the run has recorded.

        Raises:
            EngineError: they do not end with it, or a block cannot be stored; nothing was stored.
        """

    async def make_room(self, *, too_long: bool = False) -> Turn:
        """Return the run's turn, shortened if needed so that a request with it fits the model's window.

        Call it after each `record`; for the first request, the session has done so. If the turn does not fit, the
        session's overflow strategy removes blocks from the turn's input, in a commit of its own. The run's prompt and
        output stay.

        Args:
            too_long: the provider refused the current turn as too long. Then the session keeps later requests below the
                size of that one, whatever window the model is configured with.

        Raises:
            WindowOverflowError: the newest turn alone does not fit.
            StrategyError, CompactionError: the strategy failed to make the request fit.
            ContextOverflowError: `too_long` is set, and there is no strategy.
        """


@runtime_checkable
class Structured(Protocol):
    """Optional protocol of an engine builder whose model can answer in JSON of a given schema.

    Its runs apply `RunContext.output_type`; `ToolLoop` checks the answers and returns invalid ones to the model. For
    an engine without this protocol, a run with `output=` is refused.
    """

    def answering(self, schema: Mapping[str, Any]) -> EngineBuilder:
        """Return an engine of the same model that calls no tools and answers in this schema, unchecked."""


class Suspend(Exception):  # noqa: N818 - not an error but a way to return
    """Raised by a runner when a recorded tool call waits for a caller's decision.

    The run is suspended until all of its calls are decided; then the runner is called again with the recorded turn.

    Args:
        calls: states of further waiting calls, to be stored with the suspension.
    """

    def __init__(self, calls: Mapping[str, CallState] | None = None) -> None:
        super().__init__()
        self.calls = dict(calls or {})


class NoOutput(tuple[AnyBlock, ...]):
    """A runner returns this to end a turn without an answer, on purpose; any other empty answer is an error."""

    __slots__ = ()


@runtime_checkable
class InferenceRunner(Protocol):
    """Answers turns of one session, one at a time."""

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the answer to `turn`: at least one block, without those that were recorded before.

        A run is cancelled by asyncio's cancellation: close connections and re-raise it. A runner that does not stop
        within `SessionConfig.cancel_grace_s` is abandoned, and its result is dropped. An exception fails this run only.

        When a run is resumed, after its process was lost or after a decision, `turn.blocks` ends with the output that
        was recorded before.
        """


class Joinable(Protocol):
    """Optional protocol of a runner that takes further prompts in the middle of a run, such as `ToolLoop`.

    The turn that `StepContext.record` returns may then end with prompts of the user, by `run(if_busy="inject")`, once
    all calls have results; so may the turn of a runner that is called again after a decision. The runner must make its
    next request of that turn. With other runners, such prompts wait for the end of the run.
    """

    takes_prompts: bool
    """Whether it does."""


def takes_prompts(runner: InferenceRunner) -> bool:
    """Return whether a runner is `Joinable` and takes prompts."""
    return bool(getattr(runner, "takes_prompts", False))


@runtime_checkable
class Closable(Protocol):
    """Optional protocol of a runner that holds connections."""

    async def close(self) -> None:
        """Close the connections; the runner is not used again."""


@runtime_checkable
class CallChecker(Protocol):
    """Optional protocol of a runner that can check the arguments of tool calls, such as `ToolLoop`."""

    def check_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why the named tool cannot be called with these arguments; None if it can."""


@runtime_checkable
class EngineBuilder(Protocol):
    """Builds the runner of a session. It is pickled to the session's process, so it holds settings, not clients.

    Sessions treat two builders as the same engine if they have the same class and equal settings. A builder whose
    settings cannot be compared, or differ between processes, may have a string attribute `engine_name`: builders with
    the same name are the same engine, whatever their settings; so change the name when the settings change.
    """

    def build(self, session: SessionView) -> InferenceRunner:
        """Return a runner for the session's runs in this process. Called off the event loop, so it may block."""


class CallsItsTools(Protocol):
    """Optional protocol of an engine builder that calls tools by itself, as those of other frameworks do.

    Nothing can answer these calls in place of the tools, so a replay refuses such an engine.
    """

    calls_its_tools: bool
    """Whether it does."""


@runtime_checkable
class Selective(Protocol):
    """Optional protocol of an engine builder that knows which pictures and files its provider accepts."""

    def refuses(self, block: Image | Document) -> str | None:
        """Return why the provider would refuse an `Image` or `Document` of a prompt; None if it would accept it.

        A refused prompt is not stored. Called on the session's event loop, so it must not import clients or connect.
        """


@runtime_checkable
class Steerable(Protocol):
    """Optional protocol of an engine builder whose runs may choose a model and model parameters.

    For an engine without this protocol, a run or session that sets a model or parameters is refused, not ignored.
    """

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the reason for each setting that the engine does not support, by name (`model` for the model).

        Called on the session's event loop and by managers, so it must not import clients or connect.
        """


def check_taken(builder: EngineBuilder, model: str | None, params: Mapping[str, Any]) -> None:
    """Raise InvalidInputError, which names one setting, if the engine does not support this model or a parameter."""
    if model is None and not params:
        return
    if isinstance(builder, Steerable):
        refused = builder.not_taken(model, params)
    else:
        reason = f"{type(builder).__name__} does not support parameters of runs: it has no not_taken(), see Steerable"
        refused = dict.fromkeys(["model"] if model is not None else params, reason)
    for name, reason in refused.items():
        if name == "model":
            raise InvalidInputError("model", shown(model), reason)
        raise InvalidInputError(f"params[{shown(name)}]", shown(params.get(name)), reason)


@runtime_checkable
class Extensible(Protocol):
    """Optional protocol of an engine builder whose runs may have instructions and tools of their own.

    Its runs apply `RunContext.instructions` and `RunContext.tools`. For an engine without this protocol, a run with
    `instructions=` or `tools=` is refused, not started without them.
    """

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> EngineBuilder:
        """Return the engine as a run with these tools uses it; it is asked what it supports, and not built.

        Called on the session's event loop, so it must not import clients or connect.

        Raises:
            InvalidInputError: the engine cannot have one of these tools, such as a second one of a name.
        """


def engine_of_run(
    builder: EngineBuilder, instructions: str | None, tools: Mapping[str, Mapping[str, Any]]
) -> EngineBuilder:
    """Return the engine as a run with these instructions and tools uses it.

    Raises:
        InvalidInputError: the engine does not support instructions or tools of a run, or not these.
    """
    if instructions is None and not tools:
        return builder
    if isinstance(builder, Extensible):
        return builder.extended(tools)
    reason = f"{type(builder).__name__} does not support instructions and tools of runs: it has no extended(), see"
    name, value = ("instructions", instructions) if instructions is not None else ("tools", list(tools))
    raise InvalidInputError(name, shown(value), f"{reason} Extensible")


def check_answers(builder: EngineBuilder, output: Mapping[str, Any] | None, params: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if `output` is set and the engine has no typed output, or if `response_format` is too."""
    if output is None:
        return
    if not isinstance(builder, Structured):
        reason = f"{type(builder).__name__} does not support typed answers: it has no answering(), see Structured"
        raise InvalidInputError("output", shown(output), reason)
    if "response_format" in params:
        reason = "pass either this or output=; {'response_format': None} removes a session's own"
        raise InvalidInputError("params['response_format']", shown(params["response_format"]), reason)


@dataclass(frozen=True, kw_only=True)
class RequestFrame:
    """The fixed part of an engine's requests, beside the conversation: model, system prompt, tools, output limit."""

    model: str = ""
    """The model's name; empty if it is not known."""
    system: str | None = None
    """The engine's system prompt; None if it has none. The conversation's follows it."""
    replaces_system: bool = False
    """Whether the conversation's system prompt is not sent."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools declared to the model, as JSON objects."""
    max_output_tokens: int | None = None
    """The maximum length of an answer; None if the provider decides."""


@runtime_checkable
class Framed(Protocol):
    """Optional protocol of an engine builder that describes the fixed part of its requests."""

    def frame(self) -> RequestFrame:
        """Return the frame, the same each time, without importing clients or connecting."""
