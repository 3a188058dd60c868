"""Replaces pictures and files that a provider refused by a text, in later requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Document, Image, Summary, described
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.conversation.turns import TurnRecord


def leave_out(turn: TurnRecord, cache: BlockCache, log: str, size: int) -> tuple[TurnRecord, list[Block]]:
    """Return the turn of a refused run such that it hands on a text for what was refused, and these texts.

    They are summaries of what they stand for, so that expanding, forgetting, forking and exporting know what that is.
    Nothing is left out if the run has recorded output: then the provider has taken its prompts in an earlier step.

    Args:
        cache: holds what the turn hands on.
        size: of the log; the texts are to be stored behind it.
    """
    handed_on = [
        Span(span.log, at, at + 1) for span in turn.carried or turn.input for at in range(span.start, span.stop)
    ]
    texts: list[Block] = []
    for at, block in [] if turn.output else _refused(cache.read(handed_on)):
        text = f"[{described(block)} is left out: the provider refused it]"
        texts.append(Summary(text=text, of=(handed_on[at],)))
        handed_on[at] = Span(log, size + len(texts) - 1, size + len(texts))
    return (replace(turn, carried=join(handed_on)) if texts else turn), texts


def _refused(blocks: Sequence[Block]) -> list[tuple[int, Image | Document]]:
    """Return the pictures and files, with their places, that no model has answered; all, if there are none such."""
    found = [(at, block) for at, block in enumerate(blocks) if isinstance(block, Image | Document)]
    answered = max((at for at, block in enumerate(blocks) if block.role == "assistant"), default=-1)
    return [(at, block) for at, block in found if at > answered] or found
