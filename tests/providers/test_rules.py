from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from frameworks.anthropic_types import check_types
from turnwise.errors import InvalidRequestError, UnsupportedBlockError
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.conversation.transcript import Message, messages_of, repair
from turnwise.memory.providers import anthropic, openai_chat as chat, openai_responses as responses
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, Rules, check, fit
from turnwise.testing.local_provider.message_rules import check_anthropic, check_chat, check_responses

ALL = [CHAT, RESPONSES, ANTHROPIC]
HELLO, HM, YES = User(text="Hello"), Thinking(text="Hm.", signature="EqoB"), Text(text="Yes.")
OUR_SOURCE = Citations(items=({"url": "https://example.org"},))


def use(call_id: str, name: str = "look") -> ToolUse:
    return ToolUse(call_id=call_id, name=name)


def result(call_id: str) -> ToolResult:
    return ToolResult(call_id=call_id, text="seen")


def check_for_anthropic(blocks: list[Block], *, thinking: bool = False) -> None:
    """Check what is sent by the rules of Anthropic's API and by the types of the official client."""
    system, messages = anthropic.encode(blocks)
    check_anthropic(messages, thinking=thinking)
    check_types(system, messages)


def user(*blocks: Block) -> Message:
    return Message("user", blocks)


def model(*blocks: Block) -> Message:
    return Message("assistant", blocks)


def refused(messages: list[Message], rules: Rules) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        check(messages, rules)
    return caught.value


# What is taken


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: rules.name)
@pytest.mark.parametrize(
    "messages",
    [
        [user(HELLO)],
        [user(Summary(text="They met.")), model(YES), user(HELLO)],
        [user(HELLO), model(HM, YES, use("a"), use("b")), user(result("b"), result("a"), HELLO)],
        [user(HELLO), model(use("a")), user(result("a")), model(use("a")), user(result("a"))],
        [
            user(HELLO, OUR_SOURCE),
            model(Unknown(stored_kind="hologram"), Text(text="")),
            user(CacheCheckpoint(), HELLO),
        ],
        [user(HELLO), model(use("functions.look:0" * 9, name="look up!")), user(result("functions.look:0" * 9))],
    ],
)
def test_a_valid_conversation_passes(messages: list[Message], rules: Rules) -> None:
    """Acceptance 25."""
    check(messages, rules)


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: rules.name)
def test_adjacent_messages_of_the_assistant_are_one_group(rules: Rules) -> None:
    """Acceptance 25."""
    apart = [user(HELLO), model(HM), model(YES, use("a")), model(use("b"))]
    check([*apart, user(result("a"), result("b"))], rules)
    error = refused([*apart, user(result("b"))], rules)
    assert (error.index, error.block, error.kind) == (2, 1, "partial")
    error = refused([*apart, model(use("a")), user(result("a"), result("b"))], rules)
    assert (error.index, error.block, error.kind) == (4, 0, "duplicate_id")


# What is refused

EVERYWHERE: list[tuple[list[Message], int, int, str, str]] = [
    ([], 0, 0, "empty", "nothing to send"),
    ([user(CacheCheckpoint())], 0, 0, "empty", "nothing to send"),
    ([user(HELLO), model(), user(HELLO)], 1, 0, "empty", "no blocks"),
    ([user(HELLO, YES)], 0, 1, "misplaced", "text"),
    ([user(HELLO), model(Summary(text="They met."))], 1, 0, "misplaced", "summary"),
    ([user(HELLO), model(YES, Image(url="https://example.org/cat.png"))], 1, 1, "misplaced", "image"),
    ([user(System(text="Be brief."), HELLO)], 0, 0, "misplaced", "system prompt"),
    ([user(HELLO), model(use("a"))], 1, 0, "missing", "'a'"),
    ([user(HELLO), model(YES, use("a")), user(HELLO)], 1, 1, "missing", "'a'"),
    ([user(HELLO), model(use("a"), use("b"), use("c")), user(result("a"), result("c"))], 1, 1, "partial", "'b'"),
    ([user(HELLO), model(YES), user(HELLO, result("a"))], 2, 1, "orphan", "'a'"),
    ([user(result("a")), model(use("a")), user(result("a"))], 0, 0, "orphan", "'a'"),
    ([user(HELLO), model(use("a"), use("b"), use("a")), user(result("a"))], 1, 2, "duplicate_id", "'a'"),
    ([user(HELLO), model(use("a")), user(result("a"), result("a"))], 2, 1, "duplicate_id", "'a'"),
    ([user(HELLO), model(YES, use("")), user(result(""))], 1, 1, "empty_id", "look"),
    ([user(HELLO), model(use("a")), user(result("a"), result(""))], 2, 1, "empty_id", "result"),
    ([user(HELLO), model(use("a", name="")), user(result("a"))], 1, 0, "empty_name", "'a'"),
]


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: rules.name)
@pytest.mark.parametrize("case", EVERYWHERE)
def test_errors_name_message_block_and_call(case: tuple[list[Message], int, int, str, str], rules: Rules) -> None:
    """Acceptance 25."""
    messages, index, block, kind, reason = case
    error = refused(messages, rules)
    assert (error.provider, error.index, error.block, error.kind) == (rules.name, index, block, kind)
    assert reason in error.why
    assert f"messages[{index}], block {block}" in str(error)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


LATE = [user(HELLO), model(use("a")), user(HELLO), model(YES), user(result("a"))]
MIXED = [user(HELLO), model(use("a")), user(HELLO, result("a"))]
PARTED = [user(HELLO), model(use("a"), use("b")), user(result("a")), user(result("b"))]
AGAIN = [user(HELLO), model(use("a")), user(result("a")), model(YES), user(result("a"))]
THOUGHTS = [user(HELLO), model(HM), user(HELLO)]
BLANK = [user(HELLO), model(HM, Text(text=" ")), user(HELLO)]
THOUGHT_LATE = [user(HELLO), model(HM, YES, HM, use("a")), user(result("a"))]
TEXT_FIRST = [user(HELLO), model(YES), model(HM, use("a")), user(result("a"))]


@pytest.mark.parametrize(
    ("messages", "rules", "index", "block", "kind"),
    [
        (LATE, CHAT, 1, 0, "missing"),
        (LATE, ANTHROPIC, 1, 0, "missing"),
        (MIXED, CHAT, 2, 1, "late"),
        (MIXED, ANTHROPIC, 2, 1, "late"),
        (PARTED, ANTHROPIC, 3, 0, "late"),
        (AGAIN, CHAT, 4, 0, "orphan"),
        (AGAIN, RESPONSES, 4, 0, "duplicate_id"),
        ([*AGAIN[:3], model(use("b"), use("c"))], RESPONSES, 3, 0, "missing"),
        ([*AGAIN[:3], model(use("b"), use("c")), user(result("c"))], RESPONSES, 3, 0, "partial"),
        (THOUGHTS, RESPONSES, 1, 0, "thinking_only"),
        (THOUGHTS, ANTHROPIC, 1, 0, "thinking_only"),
        (BLANK, ANTHROPIC, 1, 0, "thinking_only"),
        (THOUGHT_LATE, ANTHROPIC, 1, 2, "thinking_late"),
        (TEXT_FIRST, ANTHROPIC, 2, 0, "thinking_late"),
        ([model(YES), user(HELLO)], ANTHROPIC, 0, 0, "first"),
        ([user(HELLO), model(YES, YES)], ANTHROPIC, 1, 1, "last"),
    ],
)
def test_the_rules_of_one_provider_are_enforced(
    messages: list[Message], rules: Rules, index: int, block: int, kind: str
) -> None:
    """Acceptance 25."""
    error = refused(messages, rules)
    assert (error.index, error.block, error.kind) == (index, block, kind)


@pytest.mark.parametrize(
    ("messages", "rules"),
    [
        (LATE, RESPONSES),
        (MIXED, RESPONSES),
        (PARTED, CHAT),
        (THOUGHTS, CHAT),
        (BLANK, CHAT),
        (THOUGHT_LATE, RESPONSES),
        (TEXT_FIRST, CHAT),
        ([user(HELLO), model(HM, YES), model(HM, use("a")), user(result("a"))], ANTHROPIC),
        ([model(YES), user(HELLO)], CHAT),
        ([user(HELLO), model(YES)], RESPONSES),
    ],
)
def test_a_conversation_valid_for_another_provider_passes_there(messages: list[Message], rules: Rules) -> None:
    """Acceptance 25: rules are data, so one provider's are not another's."""
    check(messages, rules)


def file(kind: str, text: str | None = None) -> Document:
    return Document(name=f"a.{kind}", data="aGk=", media_type=f"application/{kind}", text=text)


@pytest.mark.parametrize(
    ("block", "takers"),
    [
        (Image(url="https://example.org/cat.png"), ALL),
        (Image(url="http://example.org/cat.png"), [CHAT, RESPONSES]),
        (Image(data="aGk=", media_type="image/png"), ALL),
        (Image(data="aGk=", media_type="image/bmp"), []),
        (Image(url="https://example.org/cat.bmp", data="aGk=", media_type="image/bmp"), ALL),
        (file("pdf"), ALL),
        (file("zip"), [RESPONSES]),
        (file("zip", "see inside"), ALL),
        (Document(name="a.pdf", url="https://example.org/a.pdf"), ALL),
        (Document(name="a.pdf", url="http://example.org/a.pdf"), [CHAT, RESPONSES]),
        (Document(name="notes.txt", text="Buy milk."), ALL),
    ],
    ids=repr,
)
def test_encoders_and_rules_agree_about_images_and_documents(block: Block, takers: list[Rules]) -> None:
    """Acceptance 25."""
    encoders: list[tuple[Rules, Any]] = [
        (CHAT, lambda blocks: check_chat(chat.encode(blocks))),
        (RESPONSES, lambda blocks: check_responses(responses.encode(blocks)[1])),
        (ANTHROPIC, check_for_anthropic),
    ]
    blocks = [HELLO, YES, HELLO, block]
    for rules, encode_and_check in encoders:
        if rules in takers:
            check(messages_of(blocks), rules)
            encode_and_check(blocks)
        else:
            with pytest.raises(UnsupportedBlockError, match=rf"{rules.name} .*messages\[2\], block 1") as by_rules:
                check(messages_of(blocks), rules)
            with pytest.raises(UnsupportedBlockError) as by_encoder:
                encode_and_check(blocks)
            assert by_encoder.value.args == by_rules.value.args


def test_the_clients_types_take_what_our_encoder_makes_and_nothing_else() -> None:
    blocks: list[Block] = [System(text="Be brief."), HELLO, HM, YES, use("a"), result("a"), HELLO]
    system, messages = anthropic.encode([CacheCheckpoint(), *blocks, CacheCheckpoint()], cache="1h")
    check_types(system, messages)
    for content in ([{"type": "hologram"}], [{"type": "text", "text": "Hi", "tone": "soft"}], [{"type": "thinking"}]):
        with pytest.raises((ValidationError, AssertionError)):
            check_types(system, [*messages, {"role": "assistant", "content": content}])


# Names and ids


def ids_of(messages: list[Message]) -> list[list[str]]:
    return [
        [block.call_id for block in message.blocks if isinstance(block, ToolUse | ToolResult)] for message in messages
    ]


def test_a_repeated_id_gets_a_number_and_so_does_its_result() -> None:
    """Acceptance 25."""
    rounds = [model(use("a"), use("b")), user(result("b"), result("a"))]
    messages = [*rounds, *rounds, *rounds]
    assert ids_of(fit(messages, CHAT)) == [["a", "b"], ["b", "a"]] * 3
    assert ids_of(fit(messages, ANTHROPIC)) == [
        *(["a", "b"], ["b", "a"]),
        *(["a_2", "b_2"], ["b_2", "a_2"]),
        *(["a_3", "b_3"], ["b_3", "a_3"]),
    ]


def test_ids_that_differ_in_replaced_characters_stay_different() -> None:
    """Acceptance 25."""
    long = "x" * 200
    messages = [
        model(use("a.1"), use("a:1"), use(long + "y"), use(long + "z")),
        user(result(long + "z"), result("a:1")),
    ]
    declared, answered = ids_of(fit(messages, ANTHROPIC))
    assert declared[:2] == ["a_1", "a_1_2"]
    assert len(set(declared)) == 4 and max(map(len, declared)) == ANTHROPIC.id_limit
    assert answered == [declared[3], declared[1]]
    assert max(len(call_id) for call_id in ids_of(fit(messages, CHAT))[0]) == 40


CLASHES = st.lists(st.sampled_from(["a", "a.", "a_", "a__2", "a_2", "a" * 80, ""]), max_size=3, unique=True)


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: rules.name)
@given(st.lists(CLASHES, max_size=6), st.data())
def test_ids_are_unique_paired_and_stable_as_the_conversation_grows(
    rules: Rules, rounds: list[list[str]], data: st.DataObject
) -> None:
    """Acceptance 25; the same, so that a provider's cache of the shorter one is of use."""
    messages = [part for ids in rounds for part in (model(*map(use, ids)), user(*map(result, ids)))]
    end = data.draw(st.integers(0, len(messages)))
    fitted = fit(messages, rules)
    assert fitted[:end] == fit(messages[:end], rules)
    ids_of_calls = ids_of(fitted)[::2]
    assert ids_of_calls == ids_of(fitted)[1::2]
    assert [[bool(call_id) for call_id in ids] for ids in ids_of_calls] == [
        [bool(call_id) for call_id in ids] for ids in rounds
    ]
    scopes = ids_of_calls if rules.unique_ids == "message" else [[call_id for ids in ids_of_calls for call_id in ids]]
    for ids in scopes:
        there = [call_id for call_id in ids if call_id]
        assert len(there) == len(set(there))


def test_valid_blocks_stay_the_same_objects() -> None:
    """Acceptance 26."""
    blocks = (HM, YES, use("toolu_1"), OUR_SOURCE)
    for rules in ALL:
        (message,) = fit([model(*blocks)], rules)
        assert all(after is before for after, before in zip(message.blocks, blocks, strict=True))


# Whatever happens in a run

TEXTS = st.sampled_from(["", " ", "yes", "Let me look."])
IDS = st.sampled_from(["a", "b", "a_2", "functions.look:0", "functions.look.0", "x" * 80, ""])
SIGNATURES = st.none() | st.sampled_from(
    [
        "EqoBCkgIARABGAIiQ",
        "ErcBCkgIBBABGAIiQ",
        responses.pack_reasoning("rs_1", "gAAAAA=="),
        responses.pack_reasoning("rs_2", "gAAAAB=="),
        responses.pack_reasoning("rs_3", ""),
    ]
)
THOUGHTS_OF_ALL = st.builds(Thinking, text=TEXTS, signature=SIGNATURES, redacted=st.none() | st.just("hidden"))
OUTPUTS = st.lists(
    st.one_of(
        st.builds(Text, text=TEXTS, interrupted=st.booleans()),
        THOUGHTS_OF_ALL,
        st.builds(ToolUse, call_id=IDS, name=st.sampled_from(["look", "functions.look up" * 9, ""])),
        st.builds(ToolUse, call_id=IDS, name=st.just("look")),
        st.builds(ToolResult, call_id=IDS, text=TEXTS, is_error=st.booleans()),
        st.sampled_from([OUR_SOURCE, CacheCheckpoint(), Unknown(stored_kind="hologram")]),
    ),
    max_size=12,
)
PROMPTS = st.lists(
    st.sampled_from(
        [
            User(text=" "),
            Summary(text="They met.", of=(("1", 0, 9),)),
            Image(url="https://example.org/cat.png"),
            Document(name="a.pdf", data="aGk=", media_type="application/pdf"),
            CacheCheckpoint(),
            Unknown(stored_kind="hologram"),
        ]
    ),
    max_size=3,
)
RUNS = st.lists(st.tuples(PROMPTS, OUTPUTS, st.booleans()), max_size=4)


def history_of(runs: list[tuple[list[Block], list[Block], bool]]) -> list[Block]:
    history: list[Block] = [System(text="Be brief."), CacheCheckpoint()]
    for prompts, output, interrupted in runs:
        history += [HELLO, *prompts, *repair(output, why="enough", interrupted=interrupted)]
    return history


def may_think(history: list[Block]) -> bool:
    """Return whether a request may enable thinking: not within a turn that began without it."""
    messages = messages_of(filter(ANTHROPIC.sends, history))
    return not isinstance(messages[-1].blocks[0], ToolResult) or any(
        isinstance(block, Thinking) and (block.text or block.signature or block.redacted)
        for block in messages[-2].blocks
    )


def check_everywhere(history: list[Block]) -> None:
    for rules in ALL:
        check(messages_of(history), rules)
    check_chat(chat.encode(history))
    check_responses(responses.encode(history)[1])
    check_for_anthropic(history)
    check_for_anthropic(history, thinking=may_think(history))


@given(RUNS)
def test_after_runs_of_any_engines_the_next_request_is_valid(
    runs: list[tuple[list[Block], list[Block], bool]],
) -> None:
    """Acceptance 19, 24, 25, 26."""
    check_everywhere([*history_of(runs), HELLO])


@given(RUNS, OUTPUTS, THOUGHTS_OF_ALL | st.none())
def test_during_a_run_the_next_request_is_valid_for_all_providers(
    runs: list[tuple[list[Block], list[Block], bool]], output: list[Block], thought: Thinking | None
) -> None:
    """Acceptance 24, 26."""
    thoughts = [thought] if thought else []
    conversation = repair([*output, *thoughts, use("z"), result("z")], why="enough", interrupted=False)
    check_everywhere([*history_of(runs), HELLO, *conversation])


ANYTHING = st.one_of(
    st.sampled_from([HELLO, YES, HM, use("a"), use("b"), result("a"), result("b"), use(""), OUR_SOURCE]),
    st.sampled_from([System(text="Be brief."), CacheCheckpoint(), Image(url="http://example.org/cat.png")]),
)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(ANYTHING, max_size=4).map(tuple)), max_size=5
)


@given(MESSAGES)
def test_requests_that_pass_the_rules_are_valid_on_the_wire(messages: list[Message]) -> None:
    """Acceptance 25: a list of blocks in any order."""
    blocks = [block for message in messages for block in message.blocks]
    encoders: list[tuple[Rules, Callable[[], None]]] = [
        (CHAT, lambda: check_chat(chat.encode(blocks))),
        (RESPONSES, lambda: check_responses(responses.encode(blocks)[1])),
        (ANTHROPIC, lambda: check_for_anthropic(blocks)),
    ]
    for rules, encode_and_check in encoders:
        error = None
        try:
            check(messages, rules)
        except InvalidRequestError as refusal:
            error = refusal
        else:
            encode_and_check()
        assert error is None or error.index in range(len(messages) or 1)
