"""`Inspector`: beside a conversation, what the model was sent for a turn, and the steps of its run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from turnwise.actors.client.agent_tree import AgentTree, agents_of
from turnwise.actors.client.session import AsyncSession
from turnwise.console.access.viewer import Viewer
from turnwise.console.elements.blocks import FileUrl, show_block
from turnwise.console.elements.tags import badge, button, fact, link, long_text, tag
from turnwise.console.elements.text import json_text, number, tokens_spent
from turnwise.console.pages.files import file_url
from turnwise.console.pages.timeline import show_timeline
from turnwise.errors import NoMemoryError, TurnNotFoundError
from turnwise.memory.conversation.blocks import AnyBlock, Recalled, System
from turnwise.memory.conversation.events import AnyEvent, CompactionFailed, MemoryRecalled, WindowCompacted
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.longterm.recall.recalled_content import RecalledContent

_PAGE = 1000
"""How many events are read at once."""

_BLOCKS = 50
"""How many blocks of the window are shown at first."""

_RECALLED = 10

_KINDS = {"completed": "good", "failed": "bad", "interrupted": "bad"}
"""The colours of states of agents' runs."""

_REASON_CHARS = 300


class Inspector:
    """Shows one turn at a time: what its request had, or its steps; and again when the run has gone on."""

    def __init__(self, session: AsyncSession, talk: Any, viewer: Viewer, *, is_read_only: bool) -> None:
        self._session = session
        self._viewer = viewer
        self._is_read_only = is_read_only
        self._talk = talk
        self._shown: tuple[int, str, str] | None = None
        """The turn, its run, and which of the two is shown."""
        self._is_open = False
        self._whole = tag("aside", "side card hidden", aria_label="Details of a turn")

    async def open(self, turn_index: int, run_id: str, view: str = "sent") -> None:
        """Show what the model was `sent`, or the run's `steps`."""
        self._shown = shown = turn_index, run_id, view
        self._talk.classes(add="open")
        self._whole.classes(remove="hidden")
        await self._show(shown)

    async def refresh(self) -> None:
        """Show again what has changed, if the run went on."""
        if self._shown and self._is_open:
            await self._show(self._shown)

    def close(self) -> None:
        """Take the panel away."""
        self._shown = None
        self._talk.classes(remove="open")
        self._whole.classes(add="hidden")
        self._whole.clear()

    async def _show(self, request: tuple[int, str, str]) -> None:
        turn_index, run_id, view = request
        execution = await self._session.execution(run_id)
        record = await execution.info()
        events = await self._events(record)
        steps = await execution.steps() if view == "steps" else []
        tree = await agents_of(execution) if view == "steps" else None
        window: Sequence[AnyBlock] = ()
        if view == "sent":
            try:
                window = (await execution.input()).blocks
            except TurnNotFoundError:
                window = ()
        if request != self._shown:
            return
        self._is_open = record.is_open or (tree is not None and _has_open_runs(tree))
        self._whole.clear()
        with self._whole:
            with tag("div", "row"):
                tag("h2", "grow", f"Turn {turn_index}")
                for label, choice in (("Sent", "sent"), ("Steps", "steps")):
                    is_chosen = "true" if choice == view else "false"
                    button(label, partial(self.open, turn_index, run_id, choice), aria_pressed=is_chosen)
                button("Close", self.close, "quiet")
            if view == "sent":
                self._show_sent(record, window, events)
            else:
                show_timeline(record, steps, events)
                if tree and tree.agents:
                    self._show_agents(tree)

    def _show_agents(self, tree: AgentTree) -> None:
        tag("h2", "", "Agents that it has called", id="agents")
        with tag("ul", "tree", aria_labelledby="agents"):
            for agent in tree.agents:
                run = agent.record
                state = run.state if run else "not begun, or deleted"
                with tag("li").style(f"margin-left: {1.1 * (agent.depth - 1)}rem"):
                    link(agent.name, self._viewer.session_url(agent.execution.session_id, self._session.user_id))
                    badge(state.replace("_", " "), _KINDS.get(state, "busy" if run and run.is_open else ""))
                    if run and run.why:
                        tag("span", "soft small", run.why[:_REASON_CHARS])
        if tree.is_cut:
            tag("p", "soft", "There are more agents.")

    async def _events(self, record: RunRecord) -> list[AnyEvent]:
        """Return the events of the run that are not pieces of its answer."""
        events: list[AnyEvent] = []
        after: int | None = record.first_seq - 1
        while after is not None:
            page = await self._session.events(after, _PAGE)
            own = [event for event in page if event.run_id == record.run_id]
            events += [event for event in own if not event.kind.endswith("_delta")]
            after = None if any(event.terminal for event in own) else page.next
        return events

    def _show_sent(self, record: RunRecord, window: Sequence[AnyBlock], events: Sequence[AnyEvent]) -> None:
        spent = record.usage
        with tag("dl", "facts"):
            fact("Model", record.model or "the engine's")
            if record.engine:
                fact("Engine", record.engine)
            if record.params:
                fact("Parameters", json_text(record.params))
            if spent:
                fact("Tokens sent", f"{number(spent.input_tokens)}, of which {number(spent.cached_tokens)} cached")
                fact("Tokens answered", f"{number(spent.output_tokens)}, {number(spent.reasoning_tokens)} of reasoning")
                if spent.counted_tokens:
                    fact("Tokens counted here", f"{number(spent.counted_tokens)}, which the provider did not report")
                fact("Model calls", number(spent.calls))
                if record.agents_usage.calls:
                    fact("All tokens", tokens_spent(spent, record.agents_usage))
            fact("Memory", _recalled(record, events))
            for event in events:
                if isinstance(event, WindowCompacted):
                    change = f"{number(event.tokens_before)} to {number(event.tokens_after)} tokens"
                    fact("Compacted", f"{event.strategy}: {change}")
                elif isinstance(event, CompactionFailed):
                    fact("Not compacted", f"{event.strategy}: {event.why}")
            fact("Window", f"{number(len(window))} blocks before the answer")
        prompt = next((block.text for block in reversed(window) if block.kind == "user"), "")
        if record.memory != "off" and prompt and not self._is_read_only:
            self._offer_recall(prompt)
        systems = [block for block in window if isinstance(block, System)]
        if systems:
            tag("h2", "", "Instructions")
            long_text(systems[-1].text, "code")
        tag("h2", "", "The window, in order")
        with tag("div"):
            shown = [block for block in window if not isinstance(block, System)]
            _show_window(shown, self._session.user_id, partial(file_url, self._viewer, self._session))

    def _offer_recall(self, prompt: str) -> None:
        async def recall() -> None:
            try:
                content: RecalledContent | None = await self._session.memory.recall_apart(prompt, limit=_RECALLED)
            except NoMemoryError:
                content = None
            holder.clear()
            with holder:
                _show_recalled(content)

        with tag("div") as holder:
            button("Show what memory recalls for this prompt now", recall, "quiet")


def _has_open_runs(tree: AgentTree) -> bool:
    return any(agent.record and agent.record.is_open for agent in tree.agents)


def _recalled(record: RunRecord, events: Sequence[AnyEvent]) -> str:
    recalls = [event for event in events if isinstance(event, MemoryRecalled)]
    if record.memory == "off":
        return "off"
    if not recalls:
        return "nothing was noted; what was recalled is known until the run after the next one"
    parts = [f"{sent} of {recalls[-1].found.get(name, sent)} from {name}" for name, sent in recalls[-1].sent.items()]
    parts += [f"{count} of {name}'s profile" for name, count in recalls[-1].profile.items()]
    for name, reasons in recalls[-1].left_out.items():
        parts += [f"{count} of {name} left out: {reason.replace('_', ' ')}" for reason, count in reasons.items()]
    return "; ".join(parts) or "nothing recalled"


def _show_recalled(content: RecalledContent | None) -> None:
    if content is None:
        tag("p", "soft", "The service has no long-term memory.")
        return
    items = [*content.static, *content.extracted, *content.vector]
    for item in items:
        show_block(Recalled(text=item.text))
    for name, reason in content.failed.items():
        tag("p", "soft", f"{name} failed: {reason}")
    if not items:
        tag("p", "soft", "Nothing.")


def _show_window(blocks: Sequence[AnyBlock], user: str, file_url: FileUrl) -> None:
    """Show the last blocks of the window, and earlier ones on request."""
    earlier, shown = blocks[:-_BLOCKS], blocks[-_BLOCKS:]

    def more() -> None:
        holder.clear()
        with holder:
            _show_window(earlier, user, file_url)

    if earlier:
        with tag("div") as holder:
            button(f"Show earlier blocks ({number(len(earlier))})", more, "quiet")
    for block in shown:
        show_block(block, user, file_url)
