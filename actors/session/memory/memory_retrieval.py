"""`MemoryRetrieval`: searches long-term memories before a run, and adds the results to the run's requests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.observing import part
from turnwise.actors.memory.about import SessionMemories
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig, scope_of, shared_id
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.actors.session.acting import acting_member, root_of
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.side_bill import SideBill
from turnwise.actors.session.memory.group_saves import speakers_of
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.blocks import Block, Document, Recalled, System, User
from turnwise.memory.conversation.branches import is_shown
from turnwise.memory.conversation.events import LeftOut, MemoryDegraded, MemoryFailed, MemoryRecalled
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.spans import Spans, begins_with, subtract
from turnwise.memory.longterm.base import (
    MemoryItem,
    Reminder,
    Reminding,
    Scope,
    first_of_each,
    is_read_only,
    trouble_of,
)
from turnwise.memory.longterm.recall.prompt_sections import (
    ABOUT_THE_USER,
    FOR_THE_PROMPT,
    PREAMBLE,
    Profile,
    RetrievalResult,
    make_profile,
    make_sections,
    settled_profile,
)
from turnwise.memory.longterm.recall.query import question_of
from turnwise.memory.tokens.counter import ByteCounter, TokenCounter
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.working.memory import WorkingMemory

RECALLED = "turnwise.recalled"
"""The name in a turn's metadata of the retrieved text before the prompt: see `MemoryConfig.keep_recalled`."""

FRONT = "turnwise.front"
"""The name in a turn's metadata of the retrieved text before the conversation, if there is any."""

MAX_QUERY_CHARS = 8000
"""The maximum number of characters of a prompt that are used as the query."""

SHARE = 2
"""Retrieved text may take up to 1/SHARE of a request's tokens."""


_Answer = tuple[MemorySlot, Sequence[MemoryItem] | Reminder | Exception]


class MemoryRetrieval:
    """Searches all memories concurrently for what is relevant to a run's prompt, and adds it to the run's requests.

    The search is done once per run: all requests of the run have the same retrieved text, so that a provider's prompt
    cache stays valid. The text is part of no turn, so it is never summarised or saved in a memory again. A memory that
    fails or times out is left out: the run continues, and an event says so. The working memory comes first.
    """

    def __init__(
        self,
        state: SessionState,
        engines: SessionEngines,
        tasks: SessionTasks,
        ingestion: MemoryIngestion,
        bill: SideBill,
    ) -> None:
        self._state = state
        self._engines = engines
        self._tasks = tasks
        self._ingestion = ingestion
        self._bill = bill
        self._front = Profile()
        """The profile that stands before the conversation."""
        self._front_of: Spans = ()
        """The input of the last run. If the next one does not continue it, its requests begin anew, and so may this."""
        self._forget_count = 0
        """How many times memories have forgotten items; results of earlier searches may contain them."""

    def _scope(self, author: str | None) -> Scope:
        return scope_of(self._state.journal.session, self._engines.config.memory, author)

    def memory_access(self) -> SessionMemoryAccess:
        """Return access to the memories for the member who asks, or for the session's user, outside of any run."""
        return self._access(self._engines.current, acting_member())

    def _access(
        self,
        resources: RunResources,
        author: str | None,
        *,
        turn_index: int | None = None,
        is_reading: bool = False,
        is_overheard: bool = False,
    ) -> SessionMemoryAccess:
        return SessionMemoryAccess(
            self._scope(author),
            resources.memories,
            resources.working,
            turn_index=turn_index,
            is_reading=is_reading,
            is_overheard=is_overheard,
            all_memories=SessionMemories(
                resources.all_memories, resources.notes, partial(self._ingestion.unsaved_items, author)
            ),
            billed=self._bill.of,
        )

    async def recall(self, run: ActiveRun) -> None:
        """Search the memories for a run and set the text that its requests get; a second call does nothing."""
        memories, working = run.run_resources.memories, run.run_resources.working
        if run.record.memory == "off" or not (memories or working):
            return
        is_reading = run.record.memory == "read"
        author = run.record.author
        is_overheard = author is not None or await self._is_shared()
        run.memory = self._access(
            run.run_resources,
            author,
            turn_index=run.turn.index,
            is_reading=is_reading,
            is_overheard=is_overheard,
        )
        if run.has_searched_memories:
            return
        run.has_searched_memories = True
        while True:
            if working is None:
                notes, (results, forget_count) = "", await self._retrieve(run, is_overheard=is_overheard)
            else:
                notes, (results, forget_count) = await asyncio.gather(
                    self._read_notes(run, working), self._retrieve(run, is_overheard=is_overheard)
                )
            run.search = None
            if forget_count == self._forget_count:
                break
        counter = _counter(run.run_resources)
        has_front = bool(self._front.text) and bool(run.profile.text) and not is_overheard
        sections = make_sections(
            results.values(),
            now=self._state.journal.clock(),
            counter=counter,
            max_tokens=_item_limit(run, counter),
            notes=notes,
            profile=run.new_profile.text,
            preamble=FOR_THE_PROMPT if has_front else PREAMBLE,
        )
        if sections.text:
            run.recalled = Recalled(text=sections.text)
        if has_front:
            run.front = Recalled(text=f"{ABOUT_THE_USER}\n\n{self._front.text}")
        _keep(run)
        run.item_counts = {name: len(result.items) for name, result in results.items()}
        sent = dict(zip(results, map(len, sections.items), strict=True))
        self._publish_recalled(run, sent, dict(zip(results, map(dict, sections.left_out), strict=True)))

    async def _is_shared(self) -> bool:
        """Return whether others see what tools read: the members of the session, or of the one that has called it."""
        session, store = self._state.journal.session, self._state.journal.store
        try:
            return bool((await root_of(session, store)).members)
        except TurnwiseError:
            return True  # nobody knows who sees it

    def leave_out(self, run: ActiveRun) -> None:
        """Send the run's next requests without the retrieved text, and publish an event that says so."""
        run.recalled = run.front = None
        _keep(run)
        window: dict[str, dict[LeftOut, int]] = {name: {"window": count} for name, count in run.item_counts.items()}
        counts = run.profile.items.items()
        run.profile = Profile(left_out={name: {"window": len(items)} for name, items in counts if items})
        run.new_profile = Profile()
        self._publish_recalled(run, dict.fromkeys(run.item_counts, 0), window)

    def _publish_recalled(self, run: ActiveRun, sent: dict[str, int], left_out: dict[str, dict[LeftOut, int]]) -> None:
        profile = run.profile
        if any(run.item_counts.values()) or profile.text or profile.left_out:
            left_out = {name: reasons for name, reasons in left_out.items() if any(reasons.values())}
            values: dict[str, Any] = {"query": run.query, "found": run.item_counts, "sent": sent, "left_out": left_out}
            values["profile"] = {name: len(items) for name, items in profile.items.items()}
            values["profile_left_out"] = {name: dict(reasons) for name, reasons in profile.left_out.items()}
            self._state.publish_live(run, MemoryRecalled, values)

    def memories_forgot(self) -> None:
        """Invalidate searches in flight, since memories have forgotten something."""
        self._forget_count += 1

    async def recall_anew(self) -> None:
        """Search again for the active run, so that its next requests have current results."""
        if (run := self._state.active) and (run.recalled or run.front):
            run.recalled = run.front = None
            run.has_searched_memories = False
            await self.recall(run)

    async def _read_notes(self, run: ActiveRun, working: WorkingMemory) -> str:
        scope, config = self._scope(run.record.author), run.run_resources.config.memory
        try:
            return await asyncio.wait_for(working.section(scope), config.timeout_s)
        except Exception as error:  # noqa: BLE001 - the run continues without the notes, and an event says so
            self._state.publish_live(run, MemoryFailed, {"memory": "working memory", "why": reason(error)})
            return ""

    async def search_early(
        self, resources: RunResources, use: MemoryUse, prompt: Sequence[Block], author: str | None
    ) -> asyncio.Task[Any] | None:
        """Send a prompt to the memories, which search while it is being stored; return None if the run recalls nothing.

        On return the requests are sent, so that the memories search while the caller computes its commit.
        """
        if not (resources.memories and resources.config.memory.recall) or use == "off":
            return None
        search = self._tasks.spawn_logged(self._search_all(resources, prompt, author), "searching its memories")
        await asyncio.sleep(0)
        return search

    def _previous_prompt(self) -> Sequence[Block]:
        """Return the previous turn's prompt; empty if its blocks are not in memory."""
        head, cache = self._state.head, self._state.journal.blocks.cache
        if head is None or head.forgotten or cache.missing(head.prompt):
            return ()
        return cache.read(subtract(head.prompt, head.removed) if head.removed else head.prompt)

    async def _search_all(
        self, run_resources: RunResources, prompt: Sequence[Block], author: str | None
    ) -> tuple[list[_Answer], int, str]:
        """Return each memory's results, `_forget_count` at the start of the search, and the query.

        A run's memories are those of its author, and are asked for the author's words only.
        """
        owner = self._state.journal.session.user_id
        own, before = [words_of(author, owner, blocks) for blocks in (prompt, self._previous_prompt())]
        query, slots = query_of(own, before), run_resources.memories
        forget_count = self._forget_count
        if not query:  # for example, the prompt is an image; only the user's profile can be retrieved
            slots = [slot for slot in slots if _has_profile(slot, run_resources.config.memory)]
        searches = [self._search_one(slot, query, run_resources.config.memory, author) for slot in slots]
        results = [await searches[0]] if len(searches) == 1 else await asyncio.gather(*searches)
        return list(zip(slots, results, strict=True)), forget_count, query

    async def _retrieve(self, run: ActiveRun, *, is_overheard: bool) -> tuple[dict[str, RetrievalResult], int]:
        """Return the retrieved items, by memory name, and `_forget_count` at the start of the search."""
        config = run.run_resources.config.memory
        if not config.recall:
            return {}, self._forget_count
        results, forget_count, run.query = await (
            run.search
            or self._search_all(
                run.run_resources, self._state.journal.blocks.cache.read(run.turn.prompt), run.record.author
            )
        )
        counter, answers = _counter(run.run_resources), list[tuple[MemorySlot, Sequence[MemoryItem]]]()
        profiles: dict[str, Sequence[MemoryItem]] = {}
        for slot, result in results:
            if isinstance(result, Exception):
                self._state.publish_live(run, MemoryFailed, {"memory": slot.name, "why": reason(result)})
                continue
            if isinstance(result, Reminder) and (profile := self._without_hidden(result.profile)):
                profiles[slot.name] = profile
            items = result.items if isinstance(result, Reminder) else result
            if trouble := trouble_of(items):
                self._state.publish_live(run, MemoryDegraded, {"memory": slot.name, "why": trouble})
            answers.append((slot, self._without_hidden(items)))
        at_most = min(config.profile_tokens, _memory_limit(run) // SHARE)
        if is_overheard:  # each author of a shared session has another profile
            run.profile = run.new_profile = make_profile(profiles, counter=counter, max_tokens=at_most)
        else:
            front = self._front if begins_with(run.turn.input, self._front_of) else Profile()
            self._front, run.new_profile = settled_profile(front, profiles, counter=counter, max_tokens=at_most)
            self._front_of, run.profile = run.turn.input, self._front.also(run.new_profile)
        retrieved: dict[str, RetrievalResult] = {}
        for slot, items in answers:
            unprofiled, limit = run.profile.without(items), config.max_results
            unprofiled = first_of_each(unprofiled, limit) if slot.limits_categories else unprofiled[:limit]
            retrieved[slot.name] = RetrievalResult(items=unprofiled, section=slot.section, max_tokens=slot.max_tokens)
        return retrieved, forget_count

    def _without_hidden(self, items: Sequence[MemoryItem]) -> Sequence[MemoryItem]:
        """Return the items without those of turns of this session in place of which another version is shown."""
        if not self._state.journal.session.branches:
            return items
        return [item for item in items if not self._is_of_hidden_turn(item)]

    def _is_of_hidden_turn(self, item: MemoryItem) -> bool:
        source, session = item.source, self._state.journal.session
        names = (session.session_id, shared_id(session.log))
        index = source.turn_index if source.session_id in names else None
        return index is not None and not is_shown(session.branches, index)

    async def _search_one(
        self, slot: MemorySlot, query: str, config: MemoryConfig, author: str | None
    ) -> Sequence[MemoryItem] | Reminder | Exception:
        """Search one memory, and get the profile in the same call; return its error if it fails."""
        scope = self._scope(author)
        options: dict[str, Any] = {"limit": config.max_results}
        options["types"] = None if is_read_only(slot.memory) else config.types
        if slot.limits_categories:
            options["per_category"] = True
        try:
            asked = {"memory": slot.name, "query": query, "limit": config.max_results}
            with part("recall", lambda: asked) as search, self._bill.of("recall"):
                result: Sequence[MemoryItem] | Reminder
                if isinstance(slot.memory, Reminding):
                    result = await slot.memory.remind(scope, query, **options)
                else:
                    result = await slot.memory.recall(scope, query, **options)
                search.note(found=result.items if isinstance(result, Reminder) else result)
                return result
        except Exception as error:  # noqa: BLE001 - the run continues without this memory, and an event says so
            return error


def words_of(author: str | None, owner: str, blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks of a prompt that its author has said; None for the session's user, the owner.

    What is attached to a prompt of several people is left out, as it names nobody.
    """
    if speakers_of(blocks, owner) in ([author], []):
        return blocks
    return [block for block in blocks if isinstance(block, User) and speakers_of([block], owner) == [author]]


def _memory_limit(run: ActiveRun) -> int:
    """Return how many tokens of a request all memories may take, profiles included."""
    compactor = run.compactor
    return compactor.budget.max_tokens // SHARE if compactor else sys.maxsize


def _item_limit(run: ActiveRun, counter: TokenCounter) -> int:
    """Return how many tokens the items of all memories may take beside the run's profile."""
    taken = counter.count(System(text=run.profile.text)) if run.profile.text else 0
    return min(run.run_resources.config.memory.max_tokens, _memory_limit(run) - taken)


def _keep(run: ActiveRun) -> None:
    """Note the retrieved text with the run's turn, if it is to be kept."""
    if run.run_resources.config.memory.keep_recalled:
        texts = {RECALLED: run.recalled.text if run.recalled else ""}
        if run.front and run.front.text:
            texts[FRONT] = run.front.text
        others = {name: value for name, value in run.metadata.items() if name not in (RECALLED, FRONT)}
        run.metadata = freeze({**others, **texts})


def _has_profile(slot: MemorySlot, config: MemoryConfig) -> bool:
    return config.profile_tokens > 0 and slot.has_profiles


def _counter(run_resources: RunResources) -> TokenCounter:
    return run_resources.config.token_counter or _QuarterCounter()


def query_of(prompt: Sequence[object], before: Sequence[object] = ()) -> str:
    """Return the query for a prompt: its text, with the previous prompt's text if the prompt refers to it.

    A long query is cut to its beginning and its end, since a question often follows a long text.
    """
    query = question_of(_text_of(prompt), _text_of(before))
    if len(query) <= MAX_QUERY_CHARS:
        return query
    return f"{query[: MAX_QUERY_CHARS // 2]}\n{query[-MAX_QUERY_CHARS // 2 + 1 :]}"


def _text_of(prompt: Sequence[object]) -> str:
    return "\n".join(block.text for block in prompt if isinstance(block, User | Document) and block.text)


class _QuarterCounter(ByteCounter):
    """Counts four bytes as one token: accurate enough for a limit, and needs no vocabulary."""

    def text(self, text: str) -> int:
        return (super().text(text) + 3) // 4
