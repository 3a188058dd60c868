"""One run of a graph: gives it the conversation, records what it adds, waits for decisions, calls its tools."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from uuid import UUID, uuid4

from turnwise.actors.inference.completion import CompletionContext
from turnwise.actors.inference.engine import NewEvent, NoOutput, StepContext, Suspend
from turnwise.actors.inference.tools.loop import LOST
from turnwise.adapters.langgraph.interrupts import (
    Decided,
    answer_of,
    call_ids,
    is_interrupt,
    match,
    requests_of,
    resume_value,
    use_of,
)
from turnwise.adapters.langgraph.messages import Converter, from_langchain, make_whole, thawed, to_langchain, usage_of
from turnwise.adapters.langgraph.new_messages import Unrecorded, behind, is_speech
from turnwise.adapters.langgraph.raw_arguments import RawArguments
from turnwise.adapters.langgraph.tool_journal import RUN, Execute, tool_nodes
from turnwise.adapters.langgraph.tool_questions import CallQuestions, Question
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import ContextOverflowError, EngineError, LimitError, RequestRefusedError, TurnwiseError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.call_arguments import refusal
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import ApprovalRequested, ToolEnded, ToolStarted
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.arrangement import between_prompts

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
    from langchain_core.exceptions import ContextOverflowError as TheirOverflowError
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
    from langchain_core.runnables.config import merge_configs
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.errors import GraphBubbleUp, GraphInterrupt, GraphRecursionError, is_invalid_resume
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt, StateSnapshot

    expect(Pregel.astream, "input", "config", "context", "stream_mode", "subgraphs", "durability")
    expect(Pregel.aget_state, "config")
    expect(Pregel.copy, "update")
    expect(StateSnapshot, "values", "next", "interrupts")
    expect(Interrupt, "value", "id")
    expect(ToolCallRequest, "tool_call", "state", "runtime")
    ToolCallRequest.override  # noqa: B018 - looked up, since only an approval with other arguments uses it

_log = logging.getLogger(__name__)

_INTERRUPTS = "__interrupt__"
"""The key of a state's values under which LangGraph puts its interrupts."""

_NAMES = {"max_output_tokens": "max_tokens"}
"""LangChain's names of settings that have another name here."""

_HISTORY = "turnwise-"
"""The beginning of the ids of the messages that a graph is given."""

UNCALLED = "the process was lost before this tool was called: call it again if its result is still needed"

MOST_FLAWED = 8
"""How often a run goes on at once after an interrupt about calls whose arguments are no JSON object."""

_FORGETTING: set[asyncio.Task[None]] = set()
"""Deletions of threads, referenced here so that they are not garbage-collected."""


@dataclass(frozen=True)
class _Waiting:
    """Calls that wait for decisions, all about one question of the graph."""

    question: str
    """The id of the interrupt, or of the checkpoint of a breakpoint."""
    reasons: Mapping[str, str | None]
    """By the ids of the calls, what the person who decides is told."""
    uses: Sequence[ToolUse] = ()
    """Calls that the transcript does not have yet."""
    asker: str | None = None
    """The call of a tool node that asks, whose tool begins again."""


@dataclass(frozen=True)
class _ChannelCall:
    """A call of the graph's channel."""

    call_id: str
    """The call's id in the transcript."""
    number: int
    """The number of the call among the calls of its message, from 0."""
    count: int
    """How many calls the message has."""


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """A compiled graph, and how its runs use it; see `LangGraphEngine`."""

    graph: Any
    key: str
    takes: Collection[str]
    repeatable: Collection[str]
    config: Mapping[str, Any]
    context: Any
    converter: Converter


class GraphRun:
    """Runs a graph for one turn, and is the journal of its tool calls.

    The transcript follows the graph: a message is recorded after the checkpoint that has it, when the next model or
    tool is about to be called. So a checkpoint never lacks what was recorded of the graph's channel, and a call of a
    tool, which follows its message's checkpoint, is found again by its id.
    """

    def __init__(self, settings: GraphSettings, turn: Turn, context: StepContext) -> None:
        self._settings = settings
        self._graph = settings.graph
        if isinstance(context, CompletionContext) and self._graph.checkpointer is not None:
            self._graph = self._graph.copy({"checkpointer": InMemorySaver()})  # a summary, for one, is no turn
        self._turn = turn
        self._context = context
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._thread = self._thread_of(turn.id)
        self._known_ids: set[str] = set()
        """Ids of messages that the channel had, whether they are recorded, are to be, or not."""
        self._open: list[Unrecorded] = []
        """The graph's messages that are not recorded yet."""
        self._recorded_texts: dict[str, str] = {}
        """The texts of the run's messages, by their ids, as they were last in the channel."""
        self._in_place: set[str] = set()
        """Ids of messages that the graph has put in the place of all others."""
        self._uses: dict[str, ToolUse] = {}
        """The calls of the run by their ids in the transcript, as recorded."""
        self._results: dict[str, ToolResult] = {}
        self._raw = RawArguments()
        self._own_ids: dict[tuple[str, str], str] = {}
        """Ids of calls in the transcript, by the id of their message and the id in it: a server may repeat its ids."""
        self._messages: list[BaseMessage] = []
        """The graph's channel, as far as it is known."""
        self._interrupted = False
        """Whether the graph has said that it was interrupted. It may go on beside, and end, or not."""
        self._live: str | None = None
        """The id of the message that streams. Others that stream at the same time are only recorded."""
        self._announced: set[UUID] = set()
        """Calls of models, by LangChain's ids."""
        self._stopped: Exception | None = None
        """Why no more models may be called."""
        self._began = set[str]()
        """Calls that this process has begun."""
        self._executing = set[asyncio.Task[Any]]()
        """The tasks in which tools are called."""
        self._commits: list[tuple[Sequence[Block], Sequence[NewEvent], Mapping[str, CallState | None]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._remember(turn.output)

    async def answer(self) -> Sequence[AnyBlock]:
        """Return the last of what the graph answered; see `InferenceRunner.run`."""
        RUN.set(self)
        try:
            graph_input = await self._graph_input()
            for _ in range(MOST_FLAWED):
                await self._stream(graph_input)
                if not await self._wait_if_interrupted():
                    break
                graph_input = await self._resumed()
            else:
                raise EngineError(f"the model made calls whose arguments are no JSON object, {MOST_FLAWED} times")
        except Suspend:
            raise
        except asyncio.CancelledError:
            self._emit_results()
            raise
        except Exception as error:
            for task in self._executing:
                task.cancel()  # the other calls of an answer, of which one has failed
            self._emit_results()
            if isinstance(self._stopped, Suspend):
                raise self._stopped from None
            raise self._stopped or _translated(error) from error
        if self._stopped:
            raise self._stopped
        if answer := self._answer():
            return answer
        if self._turn.output:
            return NoOutput()
        raise EngineError(f"the graph ended without a message of the assistant in its channel {self._settings.key!r}")

    def _answer(self) -> list[AnyBlock]:
        """Return what is left to record of the graph's final state."""
        if blocks := self._unrecorded():
            return blocks
        last = next((message for message in reversed(self._messages) if isinstance(message, AIMessage)), None)
        if last is not None and last.id in self._in_place:
            return [block for block in self._blocks(last) if not isinstance(block, ToolUse)]
        if self._turn.output:
            return []
        return [block for entry in self._open for block in entry.blocks]  # the graph has removed all that it said

    # What the graph is given

    async def _graph_input(self) -> Any:
        """Return the graph's input: the conversation, the decisions about interrupts, or None to go on."""
        saver = self._graph.checkpointer
        checkpoint = None if saver is None else await saver.aget_tuple(self._config)
        if checkpoint is not None and checkpoint.metadata.get("run_id") == self._context.run_id:
            return await self._resumed()
        if checkpoint is not None:
            await saver.adelete_thread(self._thread)  # of this session, before its store was restored
        elif saver is not None and self._turn.parent:
            _forget_soon(saver, self._thread_of(self._turn.parent))
        if any(is_interrupt(use) for use in self._uses.values()) or any(
            state.verdict and state.wants == "approval" for state in self._context.calls.values()
        ):
            kind = type(saver).__name__
            raise EngineError(
                f"the graph's state of run {self._context.run_id!r}, which waited for a decision, is not in its "
                f"checkpointer ({kind}): give the graph one that keeps it, such as TurnwiseSaver(url)"
            )
        await self._end_open_calls()
        blocks = [block for block in self._turn.blocks if not is_interrupt(block)]
        messages = self._settings.converter.messages(between_prompts(blocks, is_answered=bool(self._turn.output)))
        for number, message in enumerate(messages):
            message.id = f"{_HISTORY}{number}"
            self._known_ids.add(message.id)
        return {self._settings.key: messages}

    async def _end_open_calls(self) -> None:
        """Record an error result for each call that a lost process left open, as no graph goes on in the middle."""
        open_uses = Ledger(self._turn.output).uses_without_result()
        results: list[ToolResult] = []
        events: list[NewEvent] = []
        for use in open_uses:
            state = self._context.calls.get(use.call_id)
            text = LOST if state and state.started else UNCALLED
            results.append(ToolResult(call_id=use.call_id, text=text, is_error=True))
            events.append(_ended(use, results[-1], 0.0))
        if results:
            self._remember(results)
            self._turn = await self._context.record(
                *results, events=events, calls={use.call_id: None for use in open_uses}
            )
            self._turn = await self._context.make_room()

    async def _resumed(self) -> Any:
        """Return what the graph goes on with at its last checkpoint; take over messages that were not recorded."""
        state = await self._graph.aget_state(self._config)
        self._messages = _messages(state.values, self._settings.key)
        for message in self._messages:
            if (message.id or "").startswith(_HISTORY):
                self._known_ids.add(cast(str, message.id))
        await self._add(self._messages, recorded=_Recorded(Ledger(self._turn.output).blocks()))
        questions = [Question.of(interrupt) for interrupt in state.interrupts]
        if not all(self._is_decided(question.id) for question in questions):  # a process was lost before it waited
            new = [question for question in questions if not self._calls_about(question.id)]
            await self._suspend(self._waiting(new, questions))
        if questions:
            await self._record_approved([use for question in questions for use in self._stand_ins(question.id)])
            return Command(resume={question.id: question.answer(self._decision(question)) for question in questions})
        if state.next and await self._is_at_breakpoint(state):
            question = _checkpoint_of(state)
            if not self._is_decided(question):
                await self._suspend([] if self._calls_about(question) else [self._breakpoint(state)])
            await self._end_breakpoint(state)
        return None

    def _thread_of(self, turn_id: str) -> str:
        """Return the name of the thread of one of the session's turns, which no other session has.

        Another user, and another store, may have a session of the same id, and the same checkpointer.
        """
        session = self._context.session
        owner = "\0".join([session.user_id, session.session_id, session.key or self._context.run_id])
        return f"{hashlib.sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}-{turn_id}"

    @property
    def _config(self) -> dict[str, Any]:
        session = self._context.session
        configurable = {
            "thread_id": self._thread,
            "session_id": session.session_id,
            "user_id": session.user_id,
            "run_id": self._context.run_id,
            **self._steering,
        }
        own: Any = {"configurable": configurable, "callbacks": [_BeforeModels(self, self._loop), _AroundModels(self)]}
        return cast("dict[str, Any]", merge_configs(cast(Any, self._settings.config), own))

    @property
    def _steering(self) -> dict[str, Any]:
        """The run's model and parameters, by LangChain's names."""
        settings = {**self._context.params, "model": self._context.model}
        return {
            _NAMES.get(name, name): value
            for name, value in settings.items()
            if name in self._settings.takes and value is not None
        }

    def _graph_context(self) -> Any:
        schema, context = self._graph.context_schema, self._settings.context
        if schema is None or not (context is None or isinstance(context, Mapping)):
            return context
        fields = getattr(schema, "__annotations__", {})
        steering = {name: value for name, value in self._steering.items() if name in fields}
        return {**(context or {}), **steering} or context

    # The stream

    async def _stream(self, graph_input: Any) -> None:
        """Run the graph until it ends, fails or is interrupted."""
        saver = self._graph.checkpointer
        stream = self._graph.astream(
            graph_input,
            self._config,
            context=self._graph_context(),
            stream_mode=["messages", "values"],
            subgraphs=True,
            durability=None if saver is None else "sync",
        )
        try:
            async with aclosing(stream):
                async for namespace, mode, payload in stream:
                    if self._stopped:
                        raise self._stopped
                    if mode == "messages":
                        if "lc_source" not in payload[1]:  # what LangChain's middleware asks, such as a summary
                            self._show(payload[0])
                    elif not namespace:
                        self._live = None
                        self._interrupted |= isinstance(payload, Mapping) and bool(payload.get(_INTERRUPTS))
                        self._messages = _messages(payload, self._settings.key)
                        self._follow(self._messages)
                        await self._add(self._messages)
        except ValueError as error:
            if not is_invalid_resume(error):
                raise
            state = await self._graph.aget_state(self._config)
            questions = [Question.of(interrupt) for interrupt in state.interrupts]
            await self._suspend(self._waiting(questions, questions, f"not what the graph asked for: {error}"))

    def _show(self, message: BaseMessage) -> None:
        """Stream a piece of a message that a model is saying."""
        self._raw.add(message)
        if not isinstance(message, AIMessage) or message.id in self._known_ids:
            return
        if self._live not in (None, message.id):
            return
        self._live = message.id
        if isinstance(message.content, str) and "reasoning_content" not in message.additional_kwargs:
            self._context.emit(message.content)
            blocks: list[AnyBlock] = []
        else:
            blocks = from_langchain([message])
        for block in blocks:
            if isinstance(block, Text):
                self._context.emit(block.text)
            elif isinstance(block, Thinking):
                self._context.emit(Thinking(text=block.text))  # a signature would end the thought
        if isinstance(message, AIMessageChunk) and message.chunk_position == "last":
            self._live = None

    def _follow(self, messages: Iterable[BaseMessage]) -> None:
        """Take over what the graph has changed in messages of this run, or removed."""
        present = {message.id: message for message in messages if message.id is not None}
        for entry in self._open:
            message = present.get(entry.message_id)
            entry.is_gone = message is None
            if message is not None and is_speech(message):
                entry.blocks = self._blocks(message)
                self._remember(block for block in entry.blocks if isinstance(block, ToolUse))
                self._recorded_texts[entry.message_id] = message.text
        for message_id, text in self._recorded_texts.items():
            message = present.get(message_id)
            if message is None or message.text in ("", text) or getattr(message, "tool_calls", None):
                continue
            self._recorded_texts[message_id] = message.text  # its earlier text is recorded
            self._open.append(Unrecorded(message_id, [Text(text=message.text)]))

    async def _add(self, messages: Sequence[BaseMessage], *, recorded: _Recorded | None = None) -> None:
        """Take over messages that are new in the channel.

        Args:
            recorded: the run's output, for messages that an earlier process may have recorded.
        """
        had_messages = bool(self._known_ids)
        for message in messages:
            if message.id is None:
                message.id = str(uuid4())
            if message.id not in self._known_ids and isinstance(message, AIMessage):
                make_whole(message)
            if message.id not in self._known_ids and recorded and is_speech(message):
                blocks = self._blocks(message)
                if recorded.has(blocks):
                    self._known_ids.add(message.id)
                    self._recorded_texts[message.id] = message.text
        new, in_place = behind(messages, lambda message: message.id in self._known_ids, had_messages=had_messages)
        self._in_place |= {cast(str, message.id) for message in in_place}
        self._known_ids |= {cast(str, message.id) for message in messages}
        for message in new:
            if isinstance(message, ToolMessage):
                self._add_result(message)
            elif is_speech(message):
                if self._open:
                    await self._flush()
                self._recorded_texts[cast(str, message.id)] = message.text
                self._open.append(Unrecorded(cast(str, message.id), self._blocks(message)))

    def _unrecorded(self) -> list[AnyBlock]:
        """Return the blocks of messages that are not recorded, and that the graph has not removed."""
        return [block for entry in self._open if not entry.is_gone for block in entry.blocks]

    def _blocks(self, message: BaseMessage) -> list[AnyBlock]:
        """Return the blocks of a message of the assistant, with call ids that are unique in the run."""
        if isinstance(message, HumanMessage):
            return [Text(text=message.text)] if message.text else []
        blocks: list[AnyBlock] = []
        for block in from_langchain([message]):
            if isinstance(block, ToolUse):
                own = self._own_id(cast(str, message.id), block.call_id)
                use = self._raw.read(cast(AIMessage, message), block)
                use = use if own == use.call_id else use.model_copy(update={"call_id": own})
                blocks.append(use)
                self._uses.setdefault(own, use)
            elif block.role == "assistant" and block != Text(text=""):
                blocks.append(block)
        return blocks

    def _own_id(self, message_id: str, call_id: str) -> str:
        """Return the id of a call in the transcript: its own, with a number if an earlier message has it, too."""
        key = message_id, call_id
        if key not in self._own_ids:
            taken = set(self._own_ids.values())
            names = itertools.chain([call_id], (f"{call_id}_{number}" for number in itertools.count(2)))
            self._own_ids[key] = next(name for name in names if name not in taken)
        return self._own_ids[key]

    def _add_result(self, message: ToolMessage) -> None:
        """Take over a result that no journaled call has recorded."""
        ids = [own for (_, call_id), own in self._own_ids.items() if call_id == message.tool_call_id]
        own = next((call_id for call_id in reversed(ids) if call_id not in self._results), None)
        if own is not None:
            result = cast(ToolResult, from_langchain([message])[0]).model_copy(update={"call_id": own})
            self._results[own] = result
            self._open.append(Unrecorded(cast(str, message.id), [result]))

    def _remember(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if isinstance(block, ToolUse):
                self._uses[block.call_id] = block
            elif isinstance(block, ToolResult):
                self._results[block.call_id] = block

    # Recording

    async def _flush(self) -> None:
        """Record the blocks that are not recorded yet."""
        if self._unrecorded():
            await self._commit([], [], {})

    async def _commit(
        self, blocks: Sequence[Block], events: Sequence[NewEvent], calls: Mapping[str, CallState | None]
    ) -> None:
        """Record this, after the open blocks, in one commit with what other calls record at the same moment."""
        self._commits.append((blocks, events, calls))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        await asyncio.shield(self._committing)

    async def _commit_all(self) -> None:
        await asyncio.sleep(0)  # calls of one answer begin in one iteration of the loop
        self._committing = None
        commits, self._commits = self._commits, []
        spoken, entries, self._open = self._unrecorded(), self._open, []
        blocks: list[Block] = [*spoken, *(block for some, _, _ in commits for block in some)]
        events: list[NewEvent] = []
        if answer := [block for block in blocks if block.role == "assistant"]:
            events.append(self._context.end_call(answer))
        events += [_ended(self._uses[block.call_id], block, 0.0) for block in spoken if isinstance(block, ToolResult)]
        events += [event for _, some, _ in commits for event in some]
        calls = {call_id: state for _, _, states in commits for call_id, state in states.items()}
        try:
            self._turn = await self._context.record(*blocks, events=events, calls=calls)
        except BaseException:
            self._open = [*entries, *self._open]
            raise

    def _emit_results(self) -> None:
        """Keep results that were not recorded, when the run is cut off."""
        for block in [*self._unrecorded(), *(block for blocks, _, _ in self._commits for block in blocks)]:
            if isinstance(block, ToolUse | ToolResult):  # texts and thoughts were streamed
                self._context.emit(block)

    # Interrupts

    async def _wait_if_interrupted(self) -> bool:
        """Raise Suspend if the graph waits for decisions; return whether it waits although all are made."""
        is_waiting = False
        if self._interrupted:
            self._interrupted = False
            if self._graph.checkpointer is None:
                raise EngineError(
                    "the graph was interrupted, and has no checkpointer to go on from: compile it with one, or pass "
                    "LangGraphEngine(graph, checkpointer=TurnwiseSaver(url))"
                )
            state = await self._graph.aget_state(self._config)
            if questions := [Question.of(interrupt) for interrupt in state.interrupts]:
                await self._suspend(self._waiting(questions, questions))
                is_waiting = True
        if self._graph.interrupt_before_nodes or self._graph.interrupt_after_nodes:
            state = await self._graph.aget_state(self._config)
            if state.next:
                await self._suspend([self._breakpoint(state)])
                is_waiting = True
        return is_waiting

    async def _suspend(self, waiting: Sequence[_Waiting]) -> None:
        """Record the calls that wait, and raise Suspend; return if all of them are refused, as they have a flaw."""
        if self._executing:
            await asyncio.wait(self._executing)  # other calls of the answer: LangGraph would make them again
        uses = [use for waiting_calls in waiting for use in waiting_calls.uses]
        self._remember(uses)
        states: dict[str, CallState | None] = {}
        events: list[NewEvent] = []
        results: list[ToolResult] = []
        for waiting_calls in waiting:
            for call_id, reason in waiting_calls.reasons.items():
                use = self._uses[call_id]
                asks = CallState(name=use.name, wants="approval", why=reason, question=waiting_calls.question)
                if result := refusal(use):  # the graph gets it in place of a decision
                    states[call_id] = replace(asks, verdict="provided")
                    results.append(result)
                    events.append(_ended(use, result, 0.0))
                    continue
                states[call_id] = asks
                question = {
                    "call_id": call_id,
                    "name": use.name,
                    "input": use.input,
                    "wants": "approval",
                    "why": reason,
                }
                events.append((ApprovalRequested, question))
        askers = {waiting_calls.asker for waiting_calls in waiting if waiting_calls.asker is not None}
        for call_id in (self._began | askers) - self._results.keys() - states.keys():
            stored = self._context.calls.get(call_id)  # its tool was interrupted, and begins again
            states[call_id] = replace(stored, started=False) if stored and stored.verdict else None
        self._remember(results)
        if states:
            await self._commit([*uses, *results], events, states)
        if not waiting or len(results) < sum(len(waiting_calls.reasons) for waiting_calls in waiting):
            raise Suspend

    def _waiting(
        self, questions: Sequence[Question], pending: Sequence[Question], reason: str | None = None
    ) -> list[_Waiting]:
        """Return the calls that wait for the answers to the graph's questions.

        Args:
            pending: all questions that the graph waits for; a call that stands for one stands for no other.
            reason: why the graph did not take the answers of before, if it did not.
        """
        taken = {call_id for question in pending for call_id in self._calls_about(question.id)}
        waiting: list[_Waiting] = []
        for question in questions:
            requests = requests_of(question.value)
            open_calls = [call for call in self._last_calls() if call[0] not in {*taken, *self._results}]
            ids = None if reason else match(requests, _of_asker(open_calls, question))
            if ids:
                reasons = {call_id: request.why for request, call_id in zip(requests, ids, strict=True)}
                taken |= reasons.keys()
                waiting.append(_Waiting(question.id, reasons, asker=question.call_id))
            else:
                free = next(call_id for call_id in call_ids(question.id) if call_id not in self._uses)
                use = use_of(free, question.value, question.schema)
                waiting.append(_Waiting(question.id, {free: reason}, [use], asker=question.call_id))
        return waiting

    def _last_calls(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Return the calls of the newest message with calls: id in the transcript, name, arguments."""
        for message in reversed(self._messages):
            if isinstance(message, AIMessage) and message.tool_calls:
                return [
                    (self._own_id(cast(str, message.id), call["id"] or ""), call["name"], call["args"])
                    for call in message.tool_calls
                ]
        return []

    def _calls_about(self, question: str) -> list[str]:
        """Return the calls that wait, or waited, for the answer to a question, in the order of the transcript."""
        states = self._context.calls
        return [use for use in self._uses if use in states and states[use].question == question]

    def _is_decided(self, question: str) -> bool:
        about = self._calls_about(question)
        return bool(about) and not any(self._context.calls[call_id].is_waiting for call_id in about)

    def _stand_ins(self, question: str) -> list[ToolUse]:
        """Return the calls that stand for a question; none if it is about tool calls."""
        return [use for call_id in self._calls_about(question) if is_interrupt(use := self._uses[call_id])]

    def _decision(self, question: Question) -> Any:
        """Return what the graph gets for the decisions about a question."""
        states = self._context.calls
        if stand_ins := self._stand_ins(question.id):
            newest = stand_ins[-1].call_id
            return answer_of(question.value, states[newest], self._results.get(newest))
        requests, about = requests_of(question.value), self._calls_about(question.id)
        calls = [call for call in self._last_calls() if call[0] in about]
        decided = {
            call_id: Decided(states[call_id], self._uses[call_id], arguments, self._results.get(call_id))
            for call_id, _, arguments in calls
        }
        return resume_value(question.value, requests, match(requests, calls) or about, decided)

    async def _record_approved(self, uses: Sequence[ToolUse]) -> None:
        """Record a result for each of these calls that has none: they stand for questions, and were approved."""
        uses = [use for use in uses if use.call_id not in self._results]
        results = [ToolResult(call_id=use.call_id, text="approved") for use in uses]
        if results:
            self._remember(results)
            await self._commit(
                results, [_ended(use, result, 0.0) for use, result in zip(uses, results, strict=True)], {}
            )

    # Breakpoints

    async def _is_at_breakpoint(self, state: StateSnapshot) -> bool:
        """Return whether the graph stops here before its next nodes, or after its last."""
        if _is_among(state.next, self._graph.interrupt_before_nodes):
            return True
        if not self._graph.interrupt_after_nodes or state.parent_config is None:
            return False
        before = await self._graph.aget_state(state.parent_config)
        return _is_among(before.next, self._graph.interrupt_after_nodes)

    def _breakpoint(self, state: StateSnapshot) -> _Waiting:
        """Return what waits at a breakpoint: the calls that are about to be made, else a call that names the nodes."""
        nodes, question = state.next, _checkpoint_of(state)
        reason = f"breakpoint: next {', '.join(nodes)}"
        open_ids = [call_id for call_id, _, _ in self._last_calls() if call_id not in self._results]
        journaled = any(_is_tool_node(self._graph, node) for node in nodes)
        if open_ids and journaled and not any(self._context.calls.get(call_id) for call_id in open_ids):
            return _Waiting(question, dict.fromkeys(open_ids, reason))
        free = next(call_id for call_id in call_ids(f"at-{'-'.join(nodes)}") if call_id not in self._uses)
        return _Waiting(question, {free: reason}, [use_of(free, {"next": list(nodes)}, None)])

    async def _end_breakpoint(self, state: StateSnapshot) -> None:
        for use in self._stand_ins(_checkpoint_of(state)):
            if self._context.calls[use.call_id].verdict == "rejected":
                raise EngineError(f"the breakpoint of run {self._context.run_id!r} was rejected: {use.input['value']}")
            await self._record_approved([use])

    # Tools: see ToolRun

    async def call(self, request: Any, execute: Execute) -> Any:
        """Make a tool call under the session's journal; see `ToolRun`."""
        call = request.tool_call
        found = await self._find(request)
        if found is None:
            return await execute(request)
        own = found.call_id
        questions = CallQuestions(request.runtime.config, own, number=found.number, count=found.count)
        use, state = self._uses[own], self._context.calls.get(own)
        if own in self._results:
            questions.keep()
            return _message(self._results[own], call)
        if refused := refusal(use):
            await self._record_result(use, refused, 0.0)
            return _message(refused, call)
        if state and state.started and own not in self._began and use.name not in self._settings.repeatable:
            lost = ToolResult(call_id=own, text=LOST, is_error=True)
            await self._record_result(use, lost, 0.0)
            return _message(lost, call)
        if state and state.verdict == "approved" and thawed(use.input) != call["args"]:
            request = request.override(tool_call={**call, "args": thawed(use.input)})
        state = state or CallState(name=use.name)
        if own not in self._began:
            self._began.add(own)
            self._context.report(usage=Usage(tool_calls=1), tool=use.name)
            started = [(ToolStarted, {"call_id": own, "name": use.name})]
            await self._commit([], cast("list[NewEvent]", started), {own: replace(state, started=True)})
        began, task = time.monotonic(), cast("asyncio.Task[Any]", asyncio.current_task())
        self._executing.add(task)
        try:
            answer = await execute(request)
        except GraphInterrupt as error:
            raise questions.raised(error) from None
        finally:
            self._executing.discard(task)
        if isinstance(answer, ToolMessage):
            result = cast(ToolResult, from_langchain([answer])[0]).model_copy(update={"call_id": own})
            await self._record_result(use, result, time.monotonic() - began)
        return answer

    async def _find(self, request: Any) -> _ChannelCall | None:
        """Return a call, whose message the transcript then has; None for a call of a subgraph."""
        namespace = (request.runtime.config.get("configurable") or {}).get("checkpoint_ns") or ""
        messages = _messages(request.state, self._settings.key)
        if "|" in namespace or not messages:
            return None
        call_id = request.tool_call["id"] or ""
        for message in reversed(messages):
            ids = [call["id"] or "" for call in message.tool_calls] if isinstance(message, AIMessage) else []
            if call_id in ids:
                if message.id not in self._known_ids:
                    await self._add(messages)
                return _ChannelCall(self._own_id(cast(str, message.id), call_id), ids.index(call_id), len(ids))
        return None

    async def _record_result(self, use: ToolUse, result: ToolResult, seconds: float) -> None:
        state = self._context.calls.get(use.call_id)
        self._results[use.call_id] = result
        decided_state = state if state and state.verdict else None
        await self._commit([result], [_ended(use, result, seconds)], {use.call_id: decided_state})

    # Models: see _BeforeModels, _AroundModels

    async def begin_model_call(self, call: UUID) -> None:
        """Record what came before, and announce a call of a model."""
        await self._flush()
        self._announce(call)

    def begin_model_call_on_thread(self, call: UUID) -> None:
        """Announce a call of a model unless it was announced, from the thread that makes it."""
        if call in self._announced:
            return
        if threading.get_ident() == self._loop_thread:
            self._announce(call)
        else:
            asyncio.run_coroutine_threadsafe(self.begin_model_call(call), self._loop).result()

    def _announce(self, call: UUID) -> None:
        self._announced.add(call)
        try:
            self._context.begin_call()
        except Exception as error:
            self._stopped = error
            raise

    def end_model_call(self, message: BaseMessage) -> None:
        """Report the usage of a call, from any thread."""
        metadata = message.response_metadata
        report = partial(
            self._context.report,
            usage=usage_of(message),
            stop_reason=metadata.get("finish_reason") or metadata.get("stop_reason"),
            model=metadata.get("model_name") or metadata.get("model"),
        )
        if threading.get_ident() == self._loop_thread:
            report()
        else:
            self._loop.call_soon_threadsafe(report)


def _forget_soon(saver: Any, thread: str) -> None:
    """Delete the checkpoints of the turn before, whose run has ended. An error is logged: they are in nobody's way."""

    async def forget() -> None:
        try:
            await saver.adelete_thread(thread)
        except Exception:  # noqa: BLE001 - see above
            _log.warning("the checkpoints of thread %s could not be deleted", thread, exc_info=True)

    task = asyncio.create_task(forget())
    _FORGETTING.add(task)
    task.add_done_callback(_FORGETTING.discard)


class _BeforeModels(AsyncCallbackHandler):
    """Announces calls of models that are awaited. It comes before `_AroundModels`."""

    raise_error = True
    run_inline = True

    def __init__(self, run: GraphRun, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._loop = loop

    async def on_chat_model_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        await self._begin(run_id)

    async def on_llm_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        await self._begin(run_id)

    async def _begin(self, call: UUID) -> None:
        if asyncio.get_running_loop() is self._loop:  # else a thread makes the call, and LangChain drops our errors
            await self._run.begin_model_call(call)


class _AroundModels(BaseCallbackHandler):
    """Announces calls that threads make, and reports usage."""

    raise_error = True
    run_inline = True

    def __init__(self, run: GraphRun) -> None:
        self._run = run

    def on_chat_model_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._run.begin_model_call_on_thread(run_id)

    def on_llm_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._run.begin_model_call_on_thread(run_id)

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generation in itertools.chain.from_iterable(response.generations):
            if isinstance(message := getattr(generation, "message", None), BaseMessage):
                self._run.end_model_call(message)


class _Recorded:
    """A run's recorded output, from which messages are told apart that it lacks."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._calls = {block.call_id for block in blocks if isinstance(block, ToolUse)}
        self._texts = [block.text for block in blocks if isinstance(block, Text)]

    def has(self, blocks: Sequence[Block]) -> bool:
        """Return whether the output has a message of these blocks; each text counts once."""
        calls = [block.call_id for block in blocks if isinstance(block, ToolUse)]
        texts = [block.text for block in blocks if isinstance(block, Text)]
        is_known = calls[0] in self._calls if calls else bool(texts) and all(text in self._texts for text in texts)
        if is_known:
            for text in texts:
                if text in self._texts:
                    self._texts.remove(text)
        return is_known


def _messages(values: Any, key: str) -> list[BaseMessage]:
    """Return the messages of a graph's state, which may be a mapping, an object or the list itself."""
    held = values.get(key) if isinstance(values, Mapping) else getattr(values, key, values)
    return [message for message in held if isinstance(message, BaseMessage)] if isinstance(held, list | tuple) else []


def _message(result: ToolResult, call: Mapping[str, Any]) -> ToolMessage:
    """Return a recorded result as LangGraph's."""
    use = ToolUse(call_id=result.call_id, name=call["name"])
    message = cast(ToolMessage, to_langchain([use, result])[-1])
    return message.model_copy(update={"tool_call_id": call["id"]})


def _ended(use: ToolUse, result: ToolResult, seconds: float) -> NewEvent:
    values = {"call_id": use.call_id, "name": use.name, "is_error": result.is_error, "seconds": round(seconds, 6)}
    return ToolEnded, values


def _of_asker(
    calls: Sequence[tuple[str, str, Mapping[str, Any]]], question: Question
) -> Sequence[tuple[str, str, Mapping[str, Any]]]:
    """Return the calls that a question may be about: that of the tool that asks, if a tool does."""
    return calls if question.call_id is None else [call for call in calls if call[0] == question.call_id]


def _checkpoint_of(state: StateSnapshot) -> str:
    return str((state.config.get("configurable") or {})["checkpoint_id"])


def _is_among(nodes: Iterable[str], stops: str | Sequence[str]) -> bool:
    own = [node for node in nodes if not node.startswith("__")]
    return bool(own) if stops == "*" else any(node in stops for node in own)


def _is_tool_node(graph: Any, name: str) -> bool:
    node = graph.nodes.get(name)
    return node is not None and any(candidate is node.bound for candidate in tool_nodes(graph))


_REFUSALS = (400, 413, 422)
"""HTTP statuses of a request that would be refused again."""

_TOO_LONG = ("context_length_exceeded", "context window", "maximum context length", "prompt is too long")


def _translated(error: Exception) -> Exception:
    """Return a graph's error as one of ours."""
    if isinstance(error, TurnwiseError | GraphBubbleUp):
        return error
    if isinstance(error, GraphRecursionError):
        reason = str(error).partition("\n")[0]
        return LimitError(f"{reason}: pass LangGraphEngine(config={{'recursion_limit': ...}})", "step_limit")
    reason = f"the graph failed: {type(error).__name__}: {error}"
    text = f"{error} {getattr(error, 'code', '')}"
    if isinstance(error, TheirOverflowError) or any(phrase in text for phrase in _TOO_LONG):
        return ContextOverflowError(reason)
    status = getattr(error, "status_code", None)
    if status in _REFUSALS and getattr(error, "param", None) != "model":
        return RequestRefusedError(reason)
    return EngineError(reason)
