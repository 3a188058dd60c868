"""What a session needs of an engine: a builder, and the runner that it builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, Document, Image
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.tool_calls import CallState
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.session_memory import MemoryAccess

NewEvent = tuple[type[Event], dict[str, Any]]
"""An event to be: its class, and what is its own beside session, turn, run, number and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """What an engine may know of the session it is built for."""

    session_id: str
    user_id: str
    agent: str | None
    metadata: Mapping[str, Any]


class RunContext(Protocol):
    """One run, as its engine sees it. After the run's end no verb here changes anything: a late engine is harmless."""

    @property
    def session(self) -> SessionView:
        """The session that the run belongs to."""

    @property
    def run_id(self) -> str:
        """The run."""

    @property
    def labels(self) -> Mapping[str, str]:
        """What the caller labelled the run with."""

    @property
    def model(self) -> str | None:
        """The model that the run asks; None for the engine's own."""

    @property
    def params(self) -> Mapping[str, Any]:
        """What the run asks of the model now; see `ModelParams`. An engine that is `Steerable` has to follow it.

        A `tool_choice` by which the model must call a tool is there in the first step of the run only, also if the run
        is taken up again by another process; it is `auto` in later ones.
        """

    @property
    def output_type(self) -> Mapping[str, Any] | None:
        """The type of the run's answer, see `OutputType`; None for text. An engine that is `Structured` follows it."""

    @property
    def memory(self) -> MemoryAccess | None:
        """What the session's memories do for the run; None if there are none, the run goes without, or it has ended.

        What is done there is no part of the run: it stays, also of a run that is cancelled or discarded.
        """

    def emit(self, part: str | Block) -> None:
        """Stream a part of the answer: a string is text, `Text` and `Thinking` continue the block before them.

        Never blocks. What was emitted is what a cancelled or failed run keeps; a finished run keeps what its runner
        returns.
        """

    def report(self, *, usage: Usage | None = None, stop_reason: str | None = None, model: str | None = None) -> None:
        """Note what the provider said of this run: `usage` adds up, the last `stop_reason` stays.

        Args:
            model: whose prices apply, where the session has any.
        """


class StepContext(RunContext, Protocol):
    """One run, for an engine that works in steps, such as `ToolLoop`.

    What it records is durable before the next step, so that the run can be taken up again behind it.
    """

    @property
    def calls(self) -> Mapping[str, CallState]:
        """What became of the run's tool calls beside their results, as of the last commit, by call id."""

    def publish(self, kind: type[Event], **values: Any) -> None:
        """Tell followers of something that is not stored: an event of a live kind."""

    def begin_call(self, limit: int | None = None) -> None:
        """Announce a call of the model. What was emitted and not recorded is void from here on.

        Args:
            limit: how many calls the run may make, those before it was taken up again included.

        Raises:
            LimitError: it has made them, or a budget is used up.
            Suspend: a budget is used up, and somebody is to be asked.
        """

    def end_call(self) -> NewEvent:
        """Return the event of the call that was announced last, to be recorded with its answer."""

    async def record(
        self,
        *blocks: Block,
        events: Sequence[NewEvent] = (),
        calls: Mapping[str, CallState | None] | None = None,
    ) -> Turn:
        """Make blocks part of the run's output, durably, in one commit; return the turn with them.

        Blocks of the assistant take the place of what was emitted. A result goes to its call, wherever that stands. An
        event that adds to the transcript (`Appending`) is given the next of the blocks that are new, in order: all of
        the assistant's go to the first, results one each.

        Args:
            calls: new states of calls; None forgets one.

        Raises:
            EngineError: the run's end is decided; nothing was stored.
            StoreError: it could not be stored within `SessionConfig.store_retry_s`.
        """

    async def make_room(self, *, too_long: bool = False) -> Turn:
        """Return the run's turn, such that a request with it fits the model's window. For after each record.

        Where it does not, the session's overflow strategy decides what goes, and the turn's input holds less from here
        on: a commit of its own. The run's prompt and output stay. Before an engine is asked this has been done.

        Args:
            too_long: the provider has refused the turn as it is as too long. From now on the session's requests take
                less than that one did, whatever the model's window is said to be.

        Raises:
            WindowOverflowError: the newest turn alone does not fit.
            StrategyError, CompactionError: the strategy does not make room.
            ContextOverflowError: `too_long`, and there is no strategy.
        """


@runtime_checkable
class Structured(Protocol):
    """An engine builder that can have its model answer in JSON of a schema has this.

    Its runs follow `RunContext.output_type`; `ToolLoop` checks their answers and sends them back. With any other, a run
    with `output=` is refused.
    """

    def answering(self, schema: Mapping[str, Any]) -> EngineBuilder:
        """Return an engine of the same model that calls no tools and answers so. Its answers are not checked."""


class Suspend(Exception):  # noqa: N818 - not an error but a way to return
    """Raised by a runner that cannot go on before somebody decides about a call that it recorded as waiting.

    The run then costs nothing until all is decided; the runner is asked again with the turn as it was recorded.

    Args:
        calls: more waiting calls, to be stored with it.
    """

    def __init__(self, calls: Mapping[str, CallState] | None = None) -> None:
        super().__init__()
        self.calls = dict(calls or {})


@runtime_checkable
class InferenceRunner(Protocol):
    """Answers turns of one session, one at a time."""

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the blocks to append: the answer to `turn`, at least one block. What it recorded is not among them.

        Cancelled by asyncio's cancellation: let it through after closing connections. A runner that holds it back is
        left behind after `SessionConfig.cancel_grace_s`, and what it returns is dropped. Raising fails this run only.

        A run that is taken up again after its process was lost, or after a decision, comes with the output that was
        recorded: `turn.blocks` ends with it.
        """


@runtime_checkable
class Closable(Protocol):
    """A runner that holds connections may also have this."""

    async def close(self) -> None:
        """Let go of them: the runner is not used again."""


@runtime_checkable
class CallChecker(Protocol):
    """A runner that knows what its calls take may also have this; `ToolLoop` does."""

    def check_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call of this name cannot be made with these arguments; None if it can."""


@runtime_checkable
class EngineBuilder(Protocol):
    """Makes the runner of a session. Travels to the session's process by pickle, so it holds settings, not clients.

    Two builders are one engine to sessions if they are of one class and hold equal settings. One whose settings are
    not comparable, or vary from process to process, may say what it is by an attribute `engine_name`, a string: the
    same name is the same engine then, whatever else it holds, so give it another when its settings change.
    """

    def build(self, session: SessionView) -> InferenceRunner:
        """Return a runner. Called off the event loop, so it may import and block.

        A runner serves the session's runs in this process until the engine changes.
        """


@runtime_checkable
class Selective(Protocol):
    """An engine builder that knows which pictures and files its provider takes may also have this."""

    def refuses(self, block: Image | Document) -> str | None:
        """Return why the provider would refuse an `Image` or a `Document` of a prompt; None if it takes it.

        What is refused is not stored. Called on the session's event loop: imports no client and connects nothing.
        """


@runtime_checkable
class Steerable(Protocol):
    """An engine builder whose runs may ask for another model, and for parameters, has this.

    With any other, a run or a session that asks for these is refused: nothing that somebody asked for is ignored.
    """

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """Return why which of these are not taken, by their names, `model` among them; empty if all are.

        Called on the session's event loop, and by managers: imports no client and connects nothing.
        """


def check_taken(builder: EngineBuilder, model: str | None, params: Mapping[str, Any]) -> None:
    """Raise InvalidInputError, which names one, if the engine does not take these."""
    if model is None and not params:
        return
    if isinstance(builder, Steerable):
        refused = builder.not_taken(model, params)
    else:
        why = f"{type(builder).__name__} takes no parameters of runs: it lacks not_taken(), see Steerable"
        refused = dict.fromkeys(["model"] if model is not None else params, why)
    for name, why in refused.items():
        if name == "model":
            raise InvalidInputError("model", shown(model), why)
        raise InvalidInputError(f"params[{shown(name)}]", shown(params.get(name)), why)


def check_answers(builder: EngineBuilder, output: Mapping[str, Any] | None, params: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if the engine gives no answers of a type, and one is asked for, or if it is twice."""
    if output is None:
        return
    if not isinstance(builder, Structured):
        why = f"{type(builder).__name__} gives no answers of a type: it lacks answering(), see Structured"
        raise InvalidInputError("output", shown(output), why)
    if "response_format" in params:
        why = "output= says what the answer is too: leave one out; that of a session by {'response_format': None}"
        raise InvalidInputError("params['response_format']", shown(params["response_format"]), why)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFrame:
    """What an engine's requests hold beside the conversation, and the model that they go to."""

    model: str = ""
    """Empty if it is not known."""
    system: str | None = None
    """Instructions that take the place of the conversation's own; None if those are sent."""
    tools: Sequence[Mapping[str, Any]] = ()
    """What is declared to the model, as JSON objects."""
    max_output_tokens: int | None = None
    """What an answer may take; None if that is the provider's matter."""


@runtime_checkable
class Framed(Protocol):
    """An engine builder that says what its requests hold may also have this."""

    def frame(self) -> RequestFrame:
        """Return it. Imports no client, connects nothing, and says the same each time."""
