"""Better and worse answers to the same prompt: versions of a turn, told apart by marks and by which one is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from turnwise.dataset.messages import has_answer, spoken
from turnwise.dataset.selection import Selection
from turnwise.dataset.turns import SessionTurns, UsableTurn, continues
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.branches import shown_among, versions_of
from turnwise.memory.conversation.spans import join
from turnwise.memory.conversation.views.chat_messages import chat_messages_of
from turnwise.memory.stores.base import SessionStore


@dataclass(frozen=True)
class Pair:
    """A better and a worse answer to one prompt, and the turns before it."""

    before: list[UsableTurn]
    better: UsableTurn
    worse: UsableTurn

    @property
    def turns(self) -> list[UsableTurn]:
        """All turns of which it is made."""
        return [*self.before, self.better, self.worse]


@dataclass(frozen=True)
class _Version:
    """A version of a turn, and what is known about how good its answer is."""

    turn: UsableTurn
    score: float | None
    """What marks say: above 0 for good, below for bad; None if no mark says anything."""
    is_shown: bool

    @property
    def rank(self) -> tuple[float, bool, int]:
        """The best version has the highest one."""
        return self.score or 0.0, self.is_shown, self.turn.record.index


NO_VERSIONS = "conversations without two answers to a prompt (a mark alone makes no pair: ask again by rerun)"
EQUAL = "other versions whose marks are equal to those of the best one, or whose texts are"


async def pairs_of(
    store: SessionStore, turns: SessionTurns, selection: Selection, left_out: Counter[str]
) -> AsyncIterator[Pair]:
    """Yield the pairs of a session: of versions with the same prompt, the best one beside each one that is worse.

    Args:
        left_out: counts conversations and versions that make no pair, by reason.
    """
    branches = turns.session.branches
    places = {tuple(version.turn_index for version in versions_of(branches, start)) for start, _ in branches}
    has_versions = False
    for indexes in sorted(place for place in places if len(place) > 1):
        by_prompt: list[list[_Version]] = []
        for index in indexes:
            page = await store.turns(turns.session.key, after=index - 1, limit=1)
            turn = await turns.usable(page[0]) if page and page[0].index == index else None
            if turn is None or not has_answer(answer_of(turn)) or turns.ends(turn):
                continue
            version = _Version(turn, await _score(turns, turn, selection), shown_among(branches)(index))
            same = next((group for group in by_prompt if _prompt_of(group[0].turn) == _prompt_of(turn)), None)
            if same is None:
                by_prompt.append([version])
            else:
                same.append(version)
        for group in by_prompt:
            best = max(group, key=lambda version: version.rank)
            worse = [version.turn for version in group if _is_worse(version, best, selection)]
            has_versions = has_versions or len(group) > 1
            left_out[EQUAL] += len(group) - 1 - len(worse)
            before = await turns.below(indexes[0]) if worse else None
            if before is None or not continues(best.turn, (turn.spans for turn in before)):
                continue
            for turn in worse:
                if continues(turn, (earlier.spans for earlier in before)):
                    yield Pair(before, best.turn, turn)
    left_out[NO_VERSIONS] += not has_versions


def prompt_blocks(pair: Pair) -> list[AnyBlock]:
    """Return what both answers of a pair answer, with the conversation before it."""
    return [*(block for turn in pair.before for block in spoken(turn)), *_prompt_of(pair.better)]


def answer_of(turn: UsableTurn) -> list[AnyBlock]:
    """Return the blocks of the answer."""
    blocks = spoken(turn)
    start = len(blocks)
    while start and isinstance(blocks[start - 1], Text):
        start -= 1
    return blocks[start:]


def _prompt_of(turn: UsableTurn) -> list[AnyBlock]:
    """Return what is said before the answer."""
    blocks = spoken(turn)
    return blocks[: len(blocks) - len(answer_of(turn))]


def _is_worse(version: _Version, best: _Version, selection: Selection) -> bool:
    if not _prompt_of(version.turn) or answer_of(version.turn) == answer_of(best.turn):
        return False
    if version.score is None and best.score is None:
        return selection.replaced_is_worse and best.is_shown
    return (version.score or 0.0) < (best.score or 0.0)


async def _score(turns: SessionTurns, turn: UsableTurn, selection: Selection) -> float | None:
    """Return the mean of what marks say about the answer; None if none says anything."""
    record = turn.record
    if not record.marks:
        return None
    prompt = await turns.blocks(join(record.prompt))
    scores: list[float] = []
    for message in chat_messages_of(turns.session.session_id, record, None, prompt, turn.output):
        mark = message.marks.get(selection.mark)
        if message.role != "assistant" or mark is None:
            continue
        if selection.marked_by is None or mark.by in selection.marked_by:
            score = selection.score(mark.value)
            scores += [] if score is None else [float(score)]
    return sum(scores) / len(scores) if scores else None
