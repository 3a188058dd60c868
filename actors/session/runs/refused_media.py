"""Replaces each image or document that a provider refused by a text, in later requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Document, Image, Summary, left_out
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.conversation.turns import TurnRecord

REFUSED = "the provider refused it"


def leave_out(turn: TurnRecord, cache: BlockCache, log: str, size: int) -> tuple[TurnRecord, list[Block]]:
    """Return the turn of a refused run, with each refused attachment in `carried` replaced by a text, and the texts.

    The texts are summaries of the attachments, so that expanding, forgetting, forking and exporting find the originals.
    Nothing is replaced if the run has recorded output: the provider has then accepted its prompts in an earlier step.

    Args:
        cache: must contain the blocks that the next turn would continue with.
        size: the log's size; the texts are stored after it.
    """
    handed_on = [
        Span(span.log, position, position + 1)
        for span in turn.carried or turn.input
        for position in range(span.start, span.stop)
    ]
    texts: list[Block] = []
    for index, block in [] if turn.output else _refused(cache.read(handed_on)):
        texts.append(Summary(text=left_out(block, REFUSED), of=(handed_on[index],)))
        handed_on[index] = Span(log, size + len(texts) - 1, size + len(texts))
    return (replace(turn, carried=join(handed_on)) if texts else turn), texts


def _refused(blocks: Sequence[Block]) -> list[tuple[int, Image | Document]]:
    """Return the attachments that no model has answered, with their places; all attachments if each was answered."""
    attachments = [(index, block) for index, block in enumerate(blocks) if isinstance(block, Image | Document)]
    answered = max((index for index, block in enumerate(blocks) if block.role == "assistant"), default=-1)
    return [(index, block) for index, block in attachments if index > answered] or attachments
