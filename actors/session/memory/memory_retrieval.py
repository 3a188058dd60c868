"""`MemoryRetrieval`: searches long-term memories before a run, and adds the results to the run's requests."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.observing import part
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import MemoryConfig, scope_of
from turnwise.actors.memory.session_memory import SessionMemoryAccess
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.memory.conversation.blocks import Block, Document, Recalled, System, User
from turnwise.memory.conversation.events import LeftOut, MemoryDegraded, MemoryFailed, MemoryRecalled
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.spans import subtract
from turnwise.memory.longterm.base import (
    MemoryItem,
    Profiled,
    ProfiledRecall,
    Scope,
    first_of_each,
    is_read_only,
    trouble_of,
)
from turnwise.memory.longterm.recall.prompt_sections import (
    Profile,
    RetrievalResult as Found,
    make_profile,
    make_sections,
)
from turnwise.memory.longterm.recall.query import question_of
from turnwise.memory.tokens.counter import ByteCounter, TokenCounter
from turnwise.memory.working.memory import WorkingMemory

MOST_ASKED = 8000
"""The maximum number of characters of a prompt that are used as the query."""

SHARE = 2
"""Retrieved text may take up to 1/SHARE of a request's tokens."""


_Answer = tuple[MemorySlot, Sequence[MemoryItem] | ProfiledRecall | Exception]


class MemoryRetrieval:
    """Searches all memories concurrently for what is relevant to a run's prompt, and adds it to the run's requests.

    The search is done once per run: all requests of the run have the same retrieved text, so that a provider's prompt
    cache stays valid. The text is part of no turn, so it is never summarised or saved in a memory again. A memory that
    fails or times out is left out: the run continues, and an event says so. The working memory comes first.
    """

    def __init__(self, state: SessionState, engines: SessionEngines, tasks: SessionTasks) -> None:
        self._state = state
        self._engines = engines
        self._tasks = tasks
        self._forgets = 0
        """How many times memories have forgotten something; results of earlier searches may contain it."""

    @property
    def _scope(self) -> Scope:
        return scope_of(self._state.journal.session, self._engines.config.memory)

    def memory_access(self) -> SessionMemoryAccess:
        """Return access to the memories for the session's user, outside of any run."""
        return SessionMemoryAccess(self._scope, self._engines.current.memories, self._engines.current.working)

    async def recall(self, run: ActiveRun) -> None:
        """Search the memories for a run and set the text that its requests get; does nothing the second time."""
        memories, working = run.run_resources.memories, run.run_resources.working
        if run.record.memory == "off" or not (memories or working):
            return
        is_reading = run.record.memory == "read"
        run.memory = SessionMemoryAccess(
            self._scope, memories, working, turn_index=run.turn.index, is_reading=is_reading
        )
        if run.has_asked_memories:
            return
        run.has_asked_memories = True
        while True:
            if working is None:
                notes, (found, forgets) = "", await self._found(run)
            else:
                notes, (found, forgets) = await asyncio.gather(self._noted(run, working), self._found(run))
            run.asked = None
            if forgets == self._forgets:
                break
        counter = _counter(run.run_resources)
        profile = run.profile.text
        sections = make_sections(
            found.values(),
            now=time.time(),
            counter=counter,
            max_tokens=_room(run, counter),
            notes=notes,
            profile=profile,
        )
        if sections.text:
            run.recalled = Recalled(text=sections.text)
        run.found = {name: len(each.items) for name, each in found.items()}
        sent = dict(zip(found, map(len, sections.items), strict=True))
        self._tell_recalled(run, sent, dict(zip(found, map(dict, sections.left_out), strict=True)))

    def leave_out(self, run: ActiveRun) -> None:
        """Send the run's next requests without the retrieved text, and publish an event that says so."""
        run.recalled = None
        window: dict[str, dict[LeftOut, int]] = {name: {"window": count} for name, count in run.found.items()}
        counts = run.profile.items.items()
        run.profile = Profile(left_out={name: {"window": len(items)} for name, items in counts if items})
        self._tell_recalled(run, dict.fromkeys(run.found, 0), window)

    def _tell_recalled(self, run: ActiveRun, sent: dict[str, int], left_out: dict[str, dict[LeftOut, int]]) -> None:
        profile = run.profile
        if any(run.found.values()) or profile.text or profile.left_out:
            left_out = {name: reasons for name, reasons in left_out.items() if any(reasons.values())}
            told: dict[str, Any] = {"query": run.query, "found": run.found, "sent": sent, "left_out": left_out}
            told["profile"] = {name: len(items) for name, items in profile.items.items()}
            told["profile_left_out"] = {name: dict(reasons) for name, reasons in profile.left_out.items()}
            self._state.publish_live(run, MemoryRecalled, told)

    def memories_forgot(self) -> None:
        """Invalidate searches in flight, since memories have forgotten something."""
        self._forgets += 1

    async def recall_anew(self) -> None:
        """Search again for the active run, so that its next requests have current results."""
        if (run := self._state.active) and run.recalled:
            run.recalled, run.has_asked_memories = None, False
            await self.recall(run)

    async def _noted(self, run: ActiveRun, working: WorkingMemory) -> str:
        try:
            return await asyncio.wait_for(working.section(self._scope), run.run_resources.config.memory.timeout_s)
        except Exception as error:  # noqa: BLE001 - the run continues without the notes, and an event says so
            self._state.publish_live(run, MemoryFailed, {"memory": "working memory", "why": reason(error)})
            return ""

    async def ask_early(
        self, resources: RunResources, use: MemoryUse, prompt: Sequence[Block]
    ) -> asyncio.Task[Any] | None:
        """Send a prompt to the memories, which search while it is being stored; return None if the run recalls nothing.

        On return the requests have left, so that the memories need not wait until the caller has computed its commit.
        """
        if not (resources.memories and resources.config.memory.recall) or use == "off":
            return None
        asked = self._tasks.spawn_logged(self._ask_all(resources, prompt), "searching its memories")
        await asyncio.sleep(0)
        return asked

    def _before(self) -> Sequence[Block]:
        """Return the previous turn's prompt; empty if its blocks are not in memory."""
        head, cache = self._state.head, self._state.journal.blocks.cache
        if head is None or head.forgotten or cache.missing(head.prompt):
            return ()
        return cache.read(subtract(head.prompt, head.removed) if head.removed else head.prompt)

    async def _ask_all(self, run_resources: RunResources, prompt: Sequence[Block]) -> tuple[list[_Answer], int, str]:
        """Return each memory's results, the value of `_forgets` at the start of the search, and the query."""
        query, slots, forgets = _query(prompt, self._before()), run_resources.memories, self._forgets
        if not query:  # for example, the prompt is an image; only the user's profile can be retrieved
            slots = [slot for slot in slots if _has_profile(slot, run_resources.config.memory)]
        asked = [self._ask(slot, query, run_resources.config.memory) for slot in slots]
        results = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        return list(zip(slots, results, strict=True)), forgets, query

    async def _found(self, run: ActiveRun) -> tuple[dict[str, Found], int]:
        """Return the items found, by memory name, and the value of `_forgets` at the start of the search."""
        config = run.run_resources.config.memory
        if not config.recall:
            return {}, self._forgets
        results, forgets, run.query = await (
            run.asked or self._ask_all(run.run_resources, self._state.journal.blocks.cache.read(run.turn.prompt))
        )
        counter, answers = _counter(run.run_resources), list[tuple[MemorySlot, Sequence[MemoryItem]]]()
        profiles: dict[str, Sequence[MemoryItem]] = {}
        for slot, result in results:
            if isinstance(result, Exception):
                self._state.publish_live(run, MemoryFailed, {"memory": slot.name, "why": reason(result)})
                continue
            if isinstance(result, ProfiledRecall):
                profiles[slot.name] = result.profile
            answers.append((slot, result.found if isinstance(result, ProfiledRecall) else result))
        at_most = min(config.profile_tokens, _share(run) // SHARE)
        run.profile = make_profile(profiles, counter=counter, max_tokens=at_most)
        found: dict[str, Found] = {}
        for slot, items in answers:
            others, most = run.profile.without(items), config.max_results
            others = first_of_each(others, most) if slot.limits_categories else others[:most]
            found[slot.name] = Found(items=others, section=slot.section, max_tokens=slot.max_tokens)
            if trouble := trouble_of(items):
                self._state.publish_live(run, MemoryDegraded, {"memory": slot.name, "why": trouble})
        return found, forgets

    async def _ask(
        self, slot: MemorySlot, query: str, config: MemoryConfig
    ) -> Sequence[MemoryItem] | ProfiledRecall | Exception:
        """Search one memory, and get the profile in the same call if it has profiles; return its error if it fails."""
        options: dict[str, Any] = {"limit": config.max_results}
        options["types"] = None if is_read_only(slot.memory) else config.types
        if slot.limits_categories:
            options["per_category"] = True
        try:
            with part("recall", lambda: {"memory": slot.name, "query": query, "limit": config.max_results}) as search:
                found: Sequence[MemoryItem] | ProfiledRecall
                if _has_profile(slot, config):
                    memory = cast(Profiled, slot.memory)
                    found = await memory.recall_with_profile(self._scope, query, **options)
                else:
                    found = await slot.memory.recall(self._scope, query, **options)
                search.note(found=found.found if isinstance(found, ProfiledRecall) else found)
                return found
        except Exception as error:  # noqa: BLE001 - the run continues without this memory, and an event says so
            return error


def _share(run: ActiveRun) -> int:
    """Return how many tokens of a request all memories may take, profiles included."""
    compactor = run.run_resources.compactor
    return compactor.budget.max_tokens // SHARE if compactor else sys.maxsize


def _room(run: ActiveRun, counter: TokenCounter) -> int:
    """Return how many tokens the items of all memories may take beside the run's profile."""
    taken = counter.count(System(text=run.profile.text)) if run.profile.text else 0
    return min(run.run_resources.config.memory.max_tokens, _share(run) - taken)


def _has_profile(slot: MemorySlot, config: MemoryConfig) -> bool:
    return config.profile_tokens > 0 and slot.has_profiles


def _counter(run_resources: RunResources) -> TokenCounter:
    return run_resources.config.token_counter or _QuarterCounter()


def _query(prompt: Sequence[object], before: Sequence[object] = ()) -> str:
    """Return the query for a prompt: its text, with the previous prompt's text if it refers to that.

    Of a long prompt these are the beginning and the end, since a question often follows a long text.
    """
    asked = question_of(_said(prompt), _said(before))
    return asked if len(asked) <= MOST_ASKED else f"{asked[: MOST_ASKED // 2]}\n{asked[-MOST_ASKED // 2 + 1 :]}"


def _said(prompt: Sequence[object]) -> str:
    return "\n".join(block.text for block in prompt if isinstance(block, User | Document) and block.text)


class _QuarterCounter(ByteCounter):
    """Counts four bytes as one token: accurate enough for a limit, and needs no vocabulary."""

    def text(self, text: str) -> int:
        return (super().text(text) + 3) // 4
