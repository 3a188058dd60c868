from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st

from turnwise.errors import TranscriptError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.events import (
    CallDecided,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunResumed,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.transcript import Ledger, Message, messages_of, repair, system_of

HM, YES, OUR_SOURCE = Thinking(text="Hm."), Text(text="Yes."), Citations(items=({"url": "https://example.org"},))


def use(call_id: str, **arguments: Any) -> ToolUse:
    return ToolUse(call_id=call_id, name="look", input=arguments)


def result(call_id: str, text: str = "seen") -> ToolResult:
    return ToolResult(call_id=call_id, text=text)


def event(cls: type[Event], **fields: Any) -> Event:
    return cls(session_id="s", seq=1, at=0.0, **fields)


# Messages


def test_messages_alternate_and_leave_the_system_prompt_out() -> None:
    blocks = [System(text="a"), User(text="Hello"), YES, System(text="b"), YES, User(text="Well?"), User(text="Hm?")]
    assert messages_of(blocks) == [
        Message("user", (User(text="Hello"),)),
        Message("assistant", (YES, YES)),
        Message("user", (User(text="Well?"), User(text="Hm?"))),
    ]
    assert system_of(blocks) == "b"
    assert system_of([YES]) is None


def test_a_message_has_its_thoughts_then_its_texts_then_its_calls() -> None:
    """Acceptance 24."""
    (message,) = messages_of([use("a"), YES, HM, OUR_SOURCE, use("b"), Thinking(text="Late.")])
    assert message.blocks == (HM, Thinking(text="Late."), YES, OUR_SOURCE, use("a"), use("b"))


def test_results_lead_the_users_message_in_the_order_of_declaration() -> None:
    """Acceptance 24."""
    blocks = [use("a"), use("b"), result("b"), User(text="And?"), result("x"), result("a")]
    assert messages_of(blocks)[1] == Message("user", (result("a"), result("b"), result("x"), User(text="And?")))


def test_a_prompt_before_a_tool_result_is_sent_after_it() -> None:
    """Acceptance 24."""
    answer = [HM, HM, YES, YES, use("a"), use("b")]
    blocks = [*answer, result("x"), User(text="And?"), result("b"), result("a")]
    assert messages_of(blocks)[1].blocks == (result("a"), result("b"), result("x"), User(text="And?"))


def test_results_are_ordered_by_the_calls_right_before_them() -> None:
    """Acceptance 24: the same ids in another order, later."""
    blocks = [use("a"), use("b"), result("a"), result("b"), use("b"), use("a"), result("a"), result("b")]
    assert [message.blocks for message in messages_of(blocks)[2:]] == [(use("b"), use("a")), (result("b"), result("a"))]


@pytest.mark.parametrize("silent", [CacheCheckpoint(), Unknown(stored_kind="hologram")], ids=repr)
def test_blocks_of_neither_side_do_not_split_a_message(silent: Block) -> None:
    """Acceptance 24: a thought that was parted from its call would be a message of thoughts alone."""
    assert messages_of([User(text="Hello"), HM, silent, use("a"), result("a"), silent, result("b")]) == [
        Message("user", (User(text="Hello"),)),
        Message("assistant", (HM, silent, use("a"))),
        Message("user", (result("a"), result("b"), silent)),
    ]
    assert messages_of([silent, YES]) == [Message("assistant", (silent, YES))]
    assert messages_of([silent]) == [Message("user", (silent,))]


# The ledger


def test_late_thoughts_come_first_and_pieces_are_joined() -> None:
    """Acceptance 24."""
    ledger = Ledger()
    ledger.append_text("Let me ")
    ledger.append_thinking("Where ")
    ledger.append_text("look.")
    ledger.declare_tool_use("a", "look")
    ledger.append_thinking("is it?")
    assert ledger.blocks() == [Thinking(text="Where is it?"), Text(text="Let me look."), use("a")]


def test_a_signature_closes_a_thought() -> None:
    """Acceptance 26."""
    ledger = Ledger()
    ledger.append_thinking("One, ")
    ledger.append_thinking("two", signature="first")
    ledger.append_thinking("Three", signature="second")
    ledger.append_thinking(redacted="hidden")
    ledger.append_thinking("Four")
    assert ledger.blocks() == [
        Thinking(text="One, two", signature="first"),
        Thinking(text="Three", signature="second"),
        Thinking(redacted="hidden"),
        Thinking(text="Four"),
    ]


def test_thoughts_with_an_index_may_alternate() -> None:
    ledger = Ledger()
    ledger.append_thinking("One, ", index=0)
    ledger.append_thinking("Three", index=1)
    ledger.append_thinking("two", index=0, final=True)
    ledger.append_thinking(", four", signature="second", index=1)
    ledger.append_thinking("Five", index=0)
    assert ledger.blocks() == [
        Thinking(text="One, two"),
        Thinking(text="Three, four", signature="second"),
        Thinking(text="Five"),
    ]


def test_a_final_piece_ends_a_thought_without_a_signature() -> None:
    ledger = Ledger()
    ledger.append_thinking(final=True)
    ledger.append_thinking("One")
    ledger.append_thinking(final=True)
    ledger.append_thinking("Two", final=True)
    ledger.append_thinking("Three")
    assert ledger.blocks() == [Thinking(text="One"), Thinking(text="Two"), Thinking(text="Three")]


def test_an_empty_delta_adds_no_thought() -> None:
    """Acceptance 26: an empty piece must not become a thought that then seems to have lost its signature."""
    ledger = Ledger()
    ledger.append_thinking("")
    ledger.declare_tool_use("a", "look")
    assert ledger.blocks() == [use("a")]


def test_results_come_in_the_order_of_declaration_however_they_arrive() -> None:
    """Acceptance 24."""
    ledger = Ledger([use("a"), use("b"), use("c")])
    ledger.append_tool_results(result("c"))
    ledger.append_text("Meanwhile.")
    ledger.append_tool_results(result("a"))
    assert ledger.uses_without_result() == [use("b")]
    assert ledger.blocks() == [*map(use, "abc"), result("a"), result("c"), Text(text="Meanwhile.")]


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([result("b"), result("x")], "no call 'x' was declared"),
        ([result("b"), result("a")], "'a' has its result already"),
        ([result("b"), result("b", "again")], "'b' has its result already"),
    ],
)
def test_an_unexpected_result_is_refused_and_no_result_is_added(results: list[ToolResult], reason: str) -> None:
    ledger = Ledger([use("a"), use("b"), result("a")])
    with pytest.raises(TranscriptError, match=reason):
        ledger.append_tool_results(*results)
    assert ledger.blocks() == [use("a"), use("b"), result("a")]


def test_definitive_blocks_replace_all_that_was_streamed() -> None:
    """Acceptance 28: an id that is streamed twice opens a second group, which is part of the same message."""
    ledger = Ledger([YES])
    ledger.append_text("Let me")
    ledger.declare_tool_use("a", "look")
    ledger.declare_tool_use("a", "look", {"city": "Paris"})
    ledger.flush_assistant([use("a"), use("b")])
    assert ledger.blocks() == [YES, use("a"), use("b")]
    ledger.append_tool_results(result("a"), result("b"))
    assert ledger.uses_without_result() == []


def test_a_waiting_call_is_found_after_a_streamed_call_with_its_id_is_dropped() -> None:
    """Acceptance 28."""
    ledger = Ledger([use("a")])
    ledger.declare_tool_use("a", "look", {"city": "Paris"})
    ledger.void()
    ledger.append_tool_results(result("a"))
    assert ledger.blocks() == [use("a"), result("a")]


def test_a_final_call_with_an_earlier_id_does_not_edit_the_earlier_call() -> None:
    """Acceptance 28."""
    first = [use("a", city="Paris"), result("a", "sun")]
    last = [use("a", city="Rome"), ToolResult(call_id="a", text="cancelled: enough", is_error=True)]
    events = [
        event(ModelCallEnded, call=0, seconds=0.0, blocks=first[:1]),
        event(ToolEnded, call_id="a", name="look", blocks=first[1:]),
        event(RunCancelled, why="enough", blocks=last),
    ]
    assert Ledger.replay(events).blocks() == [*first, *last]


def test_a_decision_that_edits_a_call_replaces_it() -> None:
    """Acceptance 28."""
    events = [
        event(ModelCallEnded, call=0, seconds=0.0, blocks=[use("a", city="Paris"), use("b")]),
        event(CallDecided, call_id="a", verdict="approved", blocks=[use("a", city="Rome")]),
    ]
    assert Ledger.replay(events).blocks() == [use("a", city="Rome"), use("b")]


@given(
    st.lists(st.sampled_from([HM, YES, OUR_SOURCE, use("a"), use("b"), result("a"), Unknown(stored_kind="hologram")]))
)
def test_a_repaired_output_with_unknown_kinds_survives_json(output: list[Block]) -> None:
    """Acceptance 27."""
    repaired = repair(output, why="enough", interrupted=True)
    assert [decode(encode(block)) for block in repaired] == repaired
    assert [block for block in repaired if isinstance(block, Unknown)] == [
        block for block in output if isinstance(block, Unknown)
    ]


# Live streams and logs

PIECES = st.sampled_from(["", "a", "b ", "\n"])


@dataclass
class Script:
    """Draws the steps of a run, applies them to a live ledger, and records them as events."""

    data: st.DataObject
    live: Ledger = field(default_factory=Ledger)
    events: list[Event] = field(default_factory=list)
    states: list[list[Block]] = field(default_factory=list)
    """The live ledger's blocks after each event."""
    definitive: list[list[Block]] = field(default_factory=list)
    """By group: the definitive blocks of the model, and the results in the order of their arrival."""

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def note(self, cls: type[Event], **fields: Any) -> None:
        self.events.append(event(cls, **fields))
        self.states.append(self.live.blocks())

    def run(self) -> None:
        for call in range(self.draw(st.integers(0, 3))):
            self.ask(call)
            message = [*self.thoughts(), *self.texts(), *self.calls()]
            self.live.flush_assistant(message)
            self.definitive.append(list(message))
            self.note(ModelCallEnded, call=call, seconds=0.0, blocks=message)
            self.call_tools([block for block in message if isinstance(block, ToolUse)])
            self.resume()
        self.ask(9)
        self.end()

    def ask(self, call: int) -> None:
        for _ in range(self.draw(st.integers(1, 2))):
            self.live.void()
            self.note(ModelCallStarted, call=call)
            for is_text, piece in self.draw(st.lists(st.tuples(st.booleans(), PIECES), max_size=4)):
                if is_text:
                    self.live.append_text(piece)
                    self.note(TextDelta, text=piece)
                else:
                    self.live.append_thinking(piece)
                    self.note(ThinkingDelta, text=piece)
            self.resume()

    def resume(self) -> None:
        if self.draw(st.integers(0, 4)) == 0:
            self.live.void()
            self.note(RunResumed, why="its process was lost")

    def call_tools(self, uses: Sequence[ToolUse]) -> None:
        for call in self.draw(st.permutations(uses)):
            if self.draw(st.booleans()):
                edited = use(call.call_id, city="Rome")
                self.live.replace_use(edited)
                self.definitive[-1] = [edited if block == call else block for block in self.definitive[-1]]
                self.note(CallDecided, call_id=call.call_id, verdict="approved", blocks=[edited])
            self.note(ToolStarted, call_id=call.call_id, name="look")
            settled = result(call.call_id, self.draw(PIECES))
            self.live.append_tool_results(settled)
            self.definitive[-1].append(settled)
            self.note(ToolEnded, call_id=call.call_id, name="look", blocks=[settled])

    def end(self) -> None:
        cls = self.draw(st.sampled_from([RunCompleted, RunCancelled, RunFailed, RunInterrupted]))
        calls = [] if cls is RunCompleted else list(self.calls())
        message = [*self.thoughts(), *self.texts(), *calls]
        results = [ToolResult(call_id=call.call_id, text="cancelled: enough", is_error=True) for call in calls]
        self.live.flush_assistant(message)
        self.live.append_tool_results(*results)
        self.definitive.append([*message, *results])
        self.note(cls, blocks=[*message, *results], **({} if cls is RunCompleted else {"why": "enough"}))

    def thoughts(self) -> Iterator[Block]:
        yield from self.draw(st.lists(st.builds(Thinking, text=PIECES, signature=st.none() | st.just("s")), max_size=2))

    def texts(self) -> Iterator[Block]:
        yield from self.draw(st.lists(st.builds(Text, text=PIECES) | st.just(OUR_SOURCE), max_size=2))

    def calls(self) -> Iterator[ToolUse]:
        """Ids come again: many servers count each message's calls from 0."""
        yield from map(use, self.draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1, max_size=3)))


def in_order(group: Sequence[Block]) -> list[Block]:
    declared = [block.call_id for block in group if isinstance(block, ToolUse)]
    results = [block for block in group if isinstance(block, ToolResult)]
    answer = [block for block in group if not isinstance(block, ToolResult)]
    return [*answer, *sorted(results, key=lambda block: declared.index(block.call_id))]


@given(st.data())
def test_a_replay_equals_the_live_ledger_at_every_event(data: st.DataObject) -> None:
    """Acceptance 28."""
    script = Script(data)
    script.run()
    for end, state in enumerate(script.states, 1):
        assert Ledger.replay(script.events[:end]).blocks() == state, script.events[:end]
    assert script.states[-1] == [block for group in script.definitive for block in in_order(group)]


@given(st.data())
def test_a_ledger_can_be_built_from_the_stored_events(data: st.DataObject) -> None:
    """Acceptance 28: live events are not stored, and nothing of them is missed."""
    script = Script(data)
    script.run()
    for end, state in enumerate(script.states, 1):
        if not script.events[end - 1].live:
            stored = [event for event in script.events[:end] if not event.live]
            assert Ledger.replay(stored).blocks() == state
            assert Ledger(state).blocks() == state
