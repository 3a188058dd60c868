"""Whose long-term memory gets what was said in a shared session, and in whose words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.memory.config import GroupSaves
from turnwise.memory.conversation.blocks import Block, Document, Image, User
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, join, places


def speakers_of(blocks: Iterable[Block], owner: str) -> list[str | None]:
    """Return who has said the prompts among these blocks, each once; None for the session's user."""
    authors = (block.author for block in blocks if isinstance(block, User))
    return list(dict.fromkeys(None if author == owner else author for author in authors))


def is_of_group(author: str | None, blocks: Iterable[Block]) -> bool:
    """Return whether a turn was said in a shared session.

    Args:
        author: of the turn's run.
    """
    return author is not None or any(isinstance(block, User) and block.author is not None for block in blocks)


def recipients(
    session: SessionRecord | SessionView, author: str | None, blocks: Sequence[Block], saves: GroupSaves
) -> list[str | None]:
    """Return the people in whose memories a turn is saved; None for the session's user.

    Args:
        author: of the turn's run.
        blocks: what the turn added.
        saves: see `MemoryConfig.group_saves`. It applies to turns that were said in a shared session.
    """
    if not is_of_group(author, blocks):
        return [None]
    speakers = speakers_of(blocks, session.user_id) or [author]
    match saves:
        case "none":
            return []
        case "owner":
            return [None]
        case "all":
            return list(dict.fromkeys([None, *sorted(session.members), *speakers]))
        case "author":
            return speakers


def words_for(
    person: str | None, owner: str, spans: Spans, blocks: Sequence[Block], *, whole: bool
) -> tuple[Spans, list[Block]]:
    """Return what a person's memory gets of a turn: the person's own prompts have no author then, and others have.

    Args:
        person: None for the session's user.
        owner: the session's user.
        whole: whether the prompts of others are among it; otherwise these, and all that is attached, are left out.
    """
    is_alone = speakers_of(blocks, owner) in ([person], [])
    kept: list[tuple[Span, Block]] = []
    for place, block in zip(places(spans), blocks, strict=True):
        if not isinstance(block, User):
            if whole or is_alone or not isinstance(block, Image | Document):
                kept.append((place, block))
            continue
        speaker = None if block.author == owner else block.author
        if speaker == person:
            kept.append((place, block.model_copy(update={"author": None}) if block.author else block))
        elif whole:
            kept.append((place, block.model_copy(update={"author": speaker or owner})))
    return join([place for place, _ in kept]), [block for _, block in kept]
