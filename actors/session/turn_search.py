"""Finds the turns that added given blocks of a session's log."""

from __future__ import annotations

from turnwise.actors.session.journal import Journal
from turnwise.memory.conversation.spans import Span, Spans, join, overlap, subtract, union
from turnwise.memory.longterm.turn_items import TurnBlocks


async def turns_of(journal: Journal, spans: Spans) -> list[TurnBlocks]:
    """Return the turns that added some of these blocks to the session's log, each with all that it added.

    Reads those turns and their runs, and some ten to find the first.
    """
    log = journal.session.log
    wanted = union(span for span in spans if span.log == log)
    found: list[TurnBlocks] = []
    after = await _before_turn_at(journal, wanted[0]) if wanted else -1
    while wanted and (page := await journal.store.turns(journal.session_id, after=after)):
        runs = await journal.store.runs(journal.session_id, after=after, limit=page[-1].index - after)
        private = {run.run_id for run in runs if run.memory != "on"}
        for turn in page:
            added = join(turn.prompt, turn.output)
            if overlap(wanted, added):
                is_private = turn.forgotten or turn.run_id in private
                found.append(TurnBlocks(turn.index, added, turn.created_at, is_private))
                wanted = subtract(wanted, added)
        after = page[-1].index
    return found


async def _before_turn_at(journal: Journal, place: Span) -> int:
    """Return an index such that the turn whose prompt is at this place comes behind it: prompts are in order."""
    low, high = 0, journal.session.next_index
    while low < high:
        middle = (low + high) // 2
        page = await journal.store.turns(journal.session_id, after=middle - 1, limit=1)
        starts = [span.start for turn in page for span in turn.prompt if span.log == place.log]
        if page and min(starts, default=-1) <= place.start:
            low = page[0].index + 1
        else:
            high = middle
    return low - 2
