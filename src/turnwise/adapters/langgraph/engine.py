"""`LangGraphEngine`: a LangGraph graph as the engine of sessions."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Annotated, Any, ClassVar, cast

from pydantic import PlainValidator

from turnwise.actors.inference.engine import SessionView, StepContext
from turnwise.adapters.langgraph.graph_run import GraphRun, GraphSettings
from turnwise.adapters.langgraph.interrupts import INTERRUPT
from turnwise.adapters.langgraph.messages import Converter
from turnwise.adapters.langgraph.tool_journal import journal_tool_nodes, tool_nodes
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import ConfigError, shown
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.model_params import SettingsTaken
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.values.checked_settings import Names, checked_settings
from turnwise.memory.values.required_arguments import needs

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph import StateGraph
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.pregel import Pregel

    expect(StateGraph.compile, "checkpointer", "cache", "store", "interrupt_before", "interrupt_after", "debug", "name")


def _checked_graph(graph: Any) -> Any:
    if isinstance(graph, str):
        module, _, name = graph.partition(":")
        if not (module and name):
            raise ValueError('must name a module and a graph in it: "my_app.graphs:graph"')
    elif not isinstance(graph, Pregel | StateGraph) and not callable(graph):
        raise ValueError('must be a graph, a function that returns one, or the place of one as "module:name"')
    return graph


def _checked_checkpointer(saver: Any) -> Any:
    if saver is not None and not _is_saver(saver) and not callable(saver):
        raise ValueError("must be a checkpointer, or a function that returns one")
    return saver


def _checked_config(config: Any) -> Any:
    if not isinstance(config, Mapping):
        raise ValueError("must be a mapping, such as {'recursion_limit': 50}")
    return config


@needs(graph="pass a graph, a function that returns one, or 'module:name'")
@dataclass(frozen=True)
@checked_settings()
class LangGraphEngine:
    """Answers with a LangGraph graph whose state has a channel of messages.

    Each run gives the graph the conversation as LangChain's messages and records what the graph adds to them. Its other
    channels begin empty: to keep state from turn to turn, put it into the messages or into a LangGraph store. Text and
    thoughts stream as the graph's models produce them, also those of its subgraphs; only messages that are added at the
    end of the channel are recorded. Not recorded are messages that the graph puts in the place of others, such as a
    summary, and messages of the user or the system that it adds. A message of the user that has a name counts as
    another agent's, and is recorded as text of the assistant.

    **Interrupts.** `interrupt()` makes the run wait: `execution.pending()` shows the call. If it asks about tool calls,
    as LangChain's middleware does, each of these calls waits for `approve`, also with edited arguments, `reject` or
    `provide`. Else a call named `interrupt` waits, with the interrupt's value: `interrupt()` returns True after
    `approve`, False after `reject`, and the value after `provide`. If several tools of a node interrupt, each gets its
    own answers; a tool that asks about its own call is not called again after `reject` or `provide`. Breakpoints
    (`interrupt_before`, `interrupt_after`) wait alike. All this needs a checkpointer, which keeps the graph's state
    while the run waits; with a durable one, such as `TurnwiseSaver`, the run goes on in any process. Without one, an
    interrupt fails the run.

    **Tools.** Calls of the graph's own `ToolNode`s run under the session's journal: a call that has its result is not
    made again, also if LangGraph repeats the node; one that a lost process had begun is made again if it is
    `repeatable`, and else gets an error result. Tools that a subgraph or a node's own code calls are not journaled, nor
    those that return a `Command`: their work is repeated when LangGraph repeats their node. With `on_lost="resume"`, a
    run of a lost process goes on at the graph's last checkpoint. Without a durable checkpointer, the graph begins again
    with what was recorded, and calls without a result get an error result.

    **Threads.** Each turn has a thread of its own, whose checkpoints are deleted when the next turn begins. Those of a
    session's last turn stay, also after the session was cleared or deleted, and so do those of turns that no turn
    continues, such as discarded ones. Delete them yourself: their metadata has the `user_id` and `session_id`.
    The thread's name is a digest of the session's user, id and key, and the turn's id, so that sessions of one id, of
    several users or stores, may share a checkpointer. The graph finds `session_id`, `user_id` and `run_id` in
    `config["configurable"]`.

    **Cancelling** a run cancels the graph's nodes, and closes the connections of models that are asked by `ainvoke` or
    `astream`. A node or a tool that is a plain function runs on a thread, which nothing can stop.

    Args:
        graph: a compiled graph, a `StateGraph`, a function that returns one of them (also `async`), or the place of one
            of these as "module:name". A graph travels by pickle; one that holds clients does not, so give its function
            or its place: it is made once for each session in the session's process.
        checkpointer: the checkpointer of a graph that has none; or a function that makes one for each session, which is
            closed (`aclose`, else `close`) when the session does not need it any more.
        takes: the settings of runs that the graph applies: `model` and names of `ModelParams`. They are put into
            `config["configurable"]`, and into the graph's context where its schema has them, under LangChain's names
            (`max_tokens` for `max_output_tokens`). Runs with other settings are refused.
        repeatable: names of tools that may be called again after their process was lost.
        config: settings for each run of the graph, such as `{"recursion_limit": 50}`.
        context: the graph's context, as a mapping or an instance of its `context_schema`.
        messages_key: the channel of the messages.
        engine_name: engines of one name are the same engine; see `EngineBuilder`. Give one if the pickled graph differs
            from process to process.

    Raises:
        ConfigError: a setting is wrong, or the graph has no channel of messages.
    """

    calls_its_tools: ClassVar[bool] = True
    """See `CallsItsTools`."""

    graph: Annotated[Any, PlainValidator(_checked_graph)]
    _: KW_ONLY
    checkpointer: Annotated[Any, PlainValidator(_checked_checkpointer)] = None
    takes: SettingsTaken = ()
    repeatable: Names = ()
    config: Annotated[Mapping[str, Any], PlainValidator(_checked_config)] = field(default_factory=dict)
    context: Any = None
    messages_key: str = "messages"
    engine_name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.graph, Pregel | StateGraph):
            _check_channel(self.graph, self.messages_key)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.graph, CompiledStateGraph):
            values["graph"] = _Compilation.of(self.graph)
        return _unpickled, (values,)

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`."""
        names = [*(["model"] if model is not None else []), *params]
        reason = "the graph does not apply it: if it reads it from its config, name it in LangGraphEngine(takes=[...])"
        return {name: reason for name in names if name not in self.takes}

    def build(self, session: SessionView) -> _GraphRunner:
        """Return a runner with the graph. A function that is `async` is awaited by the first run.

        Raises:
            ConfigError: the import or the function gave no graph, or the graph has no channel of messages.
        """
        graph = _imported(self.graph) if isinstance(self.graph, str) else self.graph
        return _GraphRunner(self, graph)


def _unpickled(values: Mapping[str, Any]) -> LangGraphEngine:
    return LangGraphEngine(**values)


@dataclass(frozen=True)
class _Compilation:
    """How a graph was compiled: a function that compiles it again, and is pickled in its place.

    A compiled graph does not work after it was pickled: LangGraph compares marker objects in it by identity.
    """

    builder: Any
    settings: Mapping[str, Any]
    config: Mapping[str, Any] | None

    @classmethod
    def of(cls, graph: Any) -> _Compilation:
        settings = {
            "checkpointer": graph.checkpointer,
            "cache": graph.cache,
            "store": graph.store,
            "interrupt_before": graph.interrupt_before_nodes,
            "interrupt_after": graph.interrupt_after_nodes,
            "debug": graph.debug,
            "name": graph.name,
        }
        return cls(graph.builder, settings, graph.config)

    def __call__(self) -> Any:
        graph = self.builder.compile(**self.settings)
        return graph.with_config(self.config) if self.config else graph


class _GraphRunner:
    """Runs the graph for each turn."""

    def __init__(self, engine: LangGraphEngine, graph: Any) -> None:
        self._engine = engine
        self._source = graph
        self._graph: Any = None
        self._own_saver: Any = None
        """The checkpointer that a function made for this runner."""
        self._converter = Converter()
        if isinstance(graph, Pregel | StateGraph):
            self._graph = self._prepared(graph)
        elif not inspect.iscoroutinefunction(graph):
            self._graph = self._prepared(graph())

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        """Return the graph's last answer; everything before it is recorded.

        Raises:
            EngineError: the graph failed, ended without an answer, or has an interrupt and no checkpointer.
            LimitError: the graph reached its recursion limit, or a budget is used up.
            Suspend: an interrupt waits for a decision.
        """
        if self._graph is None:
            self._graph = self._prepared(await self._source())
        engine = self._engine
        settings = GraphSettings(
            graph=self._graph,
            key=engine.messages_key,
            takes=engine.takes,
            repeatable=frozenset(engine.repeatable),
            config=engine.config,
            context=engine.context,
            converter=self._converter,
        )
        return await GraphRun(settings, turn, context).answer()

    def check_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call cannot be made with these arguments; None if it can. See `CallChecker`."""
        if name == INTERRUPT:
            return "an interrupt has no arguments to edit: pass its value to provide()"
        for node in tool_nodes(self._graph) if self._graph is not None else ():
            tool = node.tools_by_name.get(name)
            schema = getattr(tool, "tool_call_schema", None)
            if tool is not None and isinstance(schema, type):
                try:
                    cast(Any, schema).model_validate(dict(arguments))
                except ValueError as error:
                    return str(error)
        return None

    async def close(self) -> None:
        """Close the checkpointer that a function made for this runner, if it can be closed."""
        saver, self._own_saver = self._own_saver, None
        if hasattr(saver, "aclose"):
            await saver.aclose()
        elif hasattr(saver, "close"):
            await asyncio.to_thread(saver.close)

    def _prepared(self, source: Any) -> Any:
        """Return a graph that is compiled and checked, has a checkpointer, and journals its tools."""
        engine = self._engine
        if not isinstance(source, Pregel | StateGraph):
            raise ConfigError("graph", source, f"{shown(engine.graph)} must return a compiled graph, or a StateGraph")
        # A copy, since its checkpointer is set below, and the caller's graph must keep its own.
        graph = source.compile() if isinstance(source, StateGraph) else copy(source)
        if isinstance(graph.checkpointer, bool):  # says what a subgraph does with its parent's; this is no subgraph
            graph.checkpointer = None
        _check_channel(graph, engine.messages_key)
        journal_tool_nodes(graph)
        if graph.checkpointer is None:
            graph.checkpointer = self._saver()  # last, so that no failure leaves it open
        return graph

    def _saver(self) -> Any:
        saver = self._engine.checkpointer
        if saver is None or _is_saver(saver):
            return saver
        self._own_saver = saver()
        if not _is_saver(self._own_saver):
            raise ConfigError("checkpointer", self._own_saver, f"{shown(saver)} must return a checkpointer")
        return self._own_saver


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError("graph", place, f"it cannot be imported: {error}") from error
    if not callable(value) and not isinstance(value, Pregel | StateGraph):
        raise ConfigError("graph", place, f"it is {shown(value)}: must be a graph, or a function that returns one")
    return value


def _is_saver(value: object) -> bool:
    return isinstance(value, BaseCheckpointSaver)


def _check_channel(graph: Any, key: str) -> None:
    """Raise ConfigError if the graph's state has no channel of messages."""
    if key not in graph.channels:
        names = [name for name in graph.channels if not name.startswith(("__", "branch:"))]
        reason = (
            f"its state has no channel {key!r}, only {', '.join(names) or 'none'}: add "
            f"'{key}: Annotated[list[AnyMessage], add_messages]' to it, or name its own with messages_key="
        )
        raise ConfigError("graph", getattr(graph, "name", type(graph).__name__), reason)


__all__ = ["LangGraphEngine"]
