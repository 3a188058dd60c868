"""Reads the examples of a store, session by session."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

from turnwise.dataset.messages import (
    DroppedExampleError,
    Example,
    has_answer,
    messages_of,
    preference,
    spoken,
    tools_of,
    traced,
)
from turnwise.dataset.pairs import Pair, answer_of, pairs_of, prompt_blocks
from turnwise.dataset.selection import Selection
from turnwise.dataset.turns import SessionTurns, UsableTurn
from turnwise.errors import KeyMissingError, RunNotFoundError, SessionNotFoundError
from turnwise.memory.conversation.blocks import AnyBlock, System
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.base import NO_CALLER, SessionStore
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.reading import pages_by_cursor

SESSIONS_PAGE = 100
"""How many sessions are read at a time."""

PAGE = 100
"""How many examples are handed on at a time."""

Part = tuple[int, int]
"""A number and how many parts there are: of all sessions, those of this part."""


async def read_examples(
    store: SessionStore,
    selection: Selection,
    tools: Mapping[str | None, Sequence[Mapping[str, Any]]],
    left_out: Counter[str],
    part: Part = (0, 1),
) -> AsyncIterator[Example]:
    """Yield the examples of a store. The turns of one example are in memory at a time.

    Args:
        tools: the tools of each engine, by its name.
        left_out: counts what does not come along, by reason.
        part: only sessions of this part.
    """
    number, count = part
    query = partial(
        store.query,
        user_id=selection.user_id,
        agent=selection.agent,
        called_by=None if selection.agents else NO_CALLER,
        limit=SESSIONS_PAGE,
    )
    async for page in pages_by_cursor(query):
        left_out["conversations that cannot be read"] += len(page.unreadable)
        for listed in page:
            if crc32("\n".join(listed.key).encode("utf-8", "backslashreplace")) % count != number:
                continue
            try:
                session = check_session(await store.get(listed.key))
                if not selection.consents(session):
                    left_out["conversations without consent"] += 1
                    continue
                if session.has_expired(await store.now()):
                    left_out["conversations that have expired"] += 1
                elif selection.is_in_time(session):
                    async for example in _examples_of(store, session, selection, tools, left_out):
                        yield example
            except KeyMissingError:
                left_out["conversations whose user has no key"] += 1
            except SessionNotFoundError:
                continue  # deleted meanwhile


async def next_page(examples: AsyncIterator[Example]) -> list[Example]:
    """Return the next examples, up to `PAGE`; none at the end."""
    page: list[Example] = []
    with suppress(StopAsyncIteration):
        while len(page) < PAGE:
            page.append(await anext(examples))
    return page


async def _examples_of(
    store: SessionStore,
    session: SessionRecord,
    selection: Selection,
    tools: Mapping[str | None, Sequence[Mapping[str, Any]]],
    left_out: Counter[str],
) -> AsyncIterator[Example]:
    turns = SessionTurns(store, session, selection, left_out)
    if selection.kind == "preference":
        async for pair in pairs_of(store, turns, selection, left_out):
            if await _are_unchanged(turns, pair.turns, left_out) and (
                example := _made(partial(_preference, pair, selection), left_out)
            ):
                yield example
        return
    system: Sequence[AnyBlock] = ()
    async for part in _parts(turns, selection):
        blocks = [block for turn in part for block in _blocks_of(turn, selection)]
        declared = await _declared(store, part, tools, selection, session.user_id) if selection.kind == "tools" else ()
        make = partial(_conversation, [*system, *blocks], part, declared, selection)
        if await _are_unchanged(turns, part, left_out) and (example := _made(make, left_out)):
            yield example
        system = [block for block in [*system, *blocks] if isinstance(block, System)][-1:]


async def _parts(turns: SessionTurns, selection: Selection) -> AsyncIterator[list[UsableTurn]]:
    """Yield the usable turns of a conversation that have answers, up to `max_turns` at a time."""
    part: list[UsableTurn] = []
    async for turn in turns.shown():
        if turn.replaces:
            part = []
        if not has_answer(_blocks_of(turn, selection)):
            continue
        part.append(turn)
        if len(part) == selection.max_turns:
            if _is_own(part, selection):
                yield part
            part = []
    if part and _is_own(part, selection):
        yield part


def _is_own(turns: Sequence[UsableTurn], selection: Selection) -> bool:
    """Return whether the turns make an example: the session has added some, and calls tools if calls are wanted."""
    own = [turn for turn in turns if not turn.is_inherited]
    return any(turn.calls_tools for turn in own) if selection.kind == "tools" else bool(own)


def _blocks_of(turn: UsableTurn, selection: Selection) -> list[AnyBlock]:
    return traced(turn, results=selection.tool_results) if selection.kind == "tools" else spoken(turn)


def _made(make: Callable[[], Example], left_out: Counter[str]) -> Example | None:
    """Return an example; None if the function that redacts texts wants it left out."""
    try:
        return make()
    except DroppedExampleError:
        left_out["examples that the redaction left out"] += 1
        return None


def _preference(pair: Pair, selection: Selection) -> Example:
    prompt = messages_of(prompt_blocks(pair), selection)
    better, worse = (messages_of(answer_of(turn), selection, begins=False) for turn in (pair.better, pair.worse))
    return preference(prompt, better, worse, selection.format)


def _conversation(
    blocks: Sequence[AnyBlock],
    turns: Sequence[UsableTurn],
    declared: Sequence[Mapping[str, Any]],
    selection: Selection,
) -> Example:
    """Return the example of a conversation.

    OpenAI's format can say that answers are not to be learnt: those that a fork has inherited are in the example of the
    session that it was forked from.
    """
    messages = messages_of(blocks, selection)
    if selection.format == "openai":
        inherited = [block for turn in turns if turn.is_inherited for block in _blocks_of(turn, selection)]
        count = sum(message["role"] == "assistant" for message in messages_of(inherited, selection))
        for message in [message for message in messages if message["role"] == "assistant"][:count]:
            message["weight"] = 0
    if selection.kind == "tools":
        return {"messages": messages, "tools": tools_of(declared, blocks)}
    return {"messages": messages}


async def _declared(
    store: SessionStore,
    turns: Sequence[UsableTurn],
    tools: Mapping[str | None, Sequence[Mapping[str, Any]]],
    selection: Selection,
    user_id: str,
) -> list[Mapping[str, Any]]:
    """Return the tools that the model had: those of the selection, else of the engines, and those of the runs."""
    declared = [*selection.tools]
    for turn in turns:
        try:
            run = await store.run(turn.record.run_id or "", user_id)
        except RunNotFoundError:
            continue
        declared += [{"name": name, **fields} for name, fields in run.tools.items()]
        declared += () if selection.tools else tools.get(run.engine, ())
    return declared


async def _are_unchanged(turns: SessionTurns, used: Sequence[UsableTurn], left_out: Counter[str]) -> bool:
    if await turns.are_unchanged(used):
        return True
    left_out["examples of which something was deleted while they were read"] += 1
    return False
