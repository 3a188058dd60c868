"""`ExtractiveMemory`: a long-term memory of facts that a model extracts from the user's messages."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, Unpack

from turnwise.errors import ConfigError, ExtractionError, LongTermMemoryError
from turnwise.memory.background import on_thread
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.longterm.base import (
    ItemChanges,
    Label,
    MemoryItem,
    Reminder,
    Scope,
    TurnPlace,
    first_of_each,
    is_local,
    recalled,
    trouble_of,
)
from turnwise.memory.longterm.extraction import check, rerank
from turnwise.memory.longterm.extraction.candidates import EXTRACTED, Limits, Refusal, parse
from turnwise.memory.longterm.extraction.grounding import Claim, claims_of
from turnwise.memory.longterm.extraction.input import ExtractionInput, input_of, may_have_facts
from turnwise.memory.longterm.extraction.prompt import PROMPT, SCHEMA, SOURCED, request
from turnwise.memory.longterm.extraction.reconcile import Accepted, ReconcileResult, decide, nearest
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore, all_items
from turnwise.memory.longterm.items.changes import supersede
from turnwise.memory.longterm.items.rules import check_turn, checked_item, trouble_of_past
from turnwise.memory.longterm.items.urls import items_at
from turnwise.memory.longterm.lexical import LexicalMemory, profile_of, within_limits
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.recall.embedding_function import portable
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.retention.deletion import texts_of
from turnwise.memory.longterm.retention.retention import Retention
from turnwise.memory.longterm.text_model import TextModel, is_typed
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ranges import check_whole_number
from turnwise.memory.values.required_arguments import needs

PROFILE = (*(kind for kind in MemoryType if kind.category is MemoryCategory.SEMANTIC), MemoryType.INSTRUCTIONS)
"""The types of facts about who a user is and how they want to be answered."""


_KNOWN = ItemFilter(types=EXTRACTED)
"""The facts with which extracted ones are compared."""


def _types(profile: Collection[MemoryType]) -> tuple[MemoryType, ...]:
    """Return the types of the profile; raise ConfigError for invalid ones."""
    try:
        if isinstance(profile, str):
            raise TypeError("it is a text")
        return tuple(MemoryType(kind) for kind in profile)
    except (TypeError, ValueError) as error:
        names = ", ".join(MemoryType)
        raise ConfigError("ExtractiveMemory.profile", profile, f"must be types of {names}") from error


@needs(
    model="pass a text model, such as OpenAIEngine('gpt-5-mini')",
    items="pass where the facts are kept, such as SQLItems('sqlite:///items.db') or a path",
)
class ExtractiveMemory:
    """Stores typed facts about the user, which a model extracts from the user's messages, and finds them by words.

    Facts are extracted from items with blocks, by one model call for all items of a `remember`. Only the user's own
    words give facts and names, and each fact needs a verbatim quotation of them outside of questions and quoted text;
    `stats` counts the refused ones by reason. If there are such facts, a second call asks the model whether each
    quotation states its fact as true now. If it does not, the quotation is kept instead of the fact, with its date.
    Facts in the same words are merged. A fact replaces those that by the model's answer no longer hold because of it;
    these are kept as history. A fact's source is the quoted block, so it is deleted with its turn or session. An item
    without blocks, such as one that a tool or a program saves, is a fact already and is stored unchanged.

    If the model fails at either call, or its answer with the facts is invalid, `remember` raises and nothing has
    changed, so the items can be given again. If its answer to the second call is invalid, the quotations are kept
    instead of the facts. A model without typed answers, see `is_typed`, gets no second call, and its facts are stored
    as it says them.

    Facts are extracted from each item once. For that, the store holds two records per item, without any text of the
    user, which are superseded from the start so that no recall returns them: see `is_record`. The first is written
    before the model calls: if it is gone afterwards, the item was forgotten meanwhile. The second is written in one
    transaction with the item's facts.

    Pickling keeps the settings only, without the counts.

    Args:
        model: a `TextModel`, or a value from which the caller of `bind` makes one, such as an engine builder.
        items: the store of the facts, or its URL, or the path of a SQLite file; it is closed with the memory.
        facts_prompt: the instructions to the model for extracting facts. The schema of the answer is fixed.
        assistant_facts: "none", or "sourced" to keep also what the assistant stated from a tool's result: as a dated
            quotation that names the tool, of type `context`, which replaces nothing. The result must have the numbers
            and half of the words. Tools may return texts of strangers, so this is a choice.
        checks: whether the model is asked a second time, as above.
        checking_prompt: the instructions to the model for that. The schema is fixed, too.
        choosing_prompt: the instructions to the model for choosing facts with `chooses`. The schema is fixed, too.
        max_facts_per_call: the maximum number of facts taken from an answer; the rest are ignored.
        min_chars: shorter facts are refused. A wide (East Asian) character counts as two.
        max_chars: longer facts are refused.
        max_shown_chars: the maximum number of characters of messages in one model call; the longest parts are cut.
        nearest: the maximum number of similar known facts that the model is shown for each statement. The newest facts
            are added, up to three times this number.
        weights: the weights of the ranking.
        embedding: a Chroma embedding function, for vectors of facts; facts are found by words alone if left out.
        profile: the types of facts that are in every request, in addition to pinned facts; () for none. See
            `MemoryConfig.profile_tokens`.
        chooses: whether recalls ask the model which facts are relevant to the query.
        retention: how long unused facts are kept; without it, they never expire. Saying a fact again counts as a use of
            it. It applies to everything in the store, including the records of processed items.
        clock: returns the time in seconds since the epoch.
        name: its name in sessions, see `Label`; `max_tokens` likewise.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        model: Any,
        items: ItemStore | str | Path,
        *,
        facts_prompt: str = PROMPT,
        checks: bool = True,
        checking_prompt: str = check.PROMPT,
        choosing_prompt: str = rerank.PROMPT,
        assistant_facts: Literal["none", "sourced"] = "none",
        max_facts_per_call: int = 16,
        min_chars: int = 8,
        max_chars: int = 400,
        max_shown_chars: int = 60_000,
        nearest: int = 8,
        weights: Weights = FACTS,
        embedding: Any = None,
        profile: Collection[MemoryType] = PROFILE,
        chooses: bool = False,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.label = Label(name=name, max_tokens=max_tokens)
        """Its name and limit in sessions."""
        store = items_at(items)
        self._settings: dict[str, Any] = {
            "facts_prompt": facts_prompt,
            "checks": checks,
            "checking_prompt": checking_prompt,
            "choosing_prompt": choosing_prompt,
            "assistant_facts": assistant_facts,
            "max_facts_per_call": max_facts_per_call,
            "min_chars": min_chars,
            "max_chars": max_chars,
            "max_shown_chars": max_shown_chars,
            "nearest": nearest,
            "weights": weights,
            "embedding": embedding,
            "profile": _types(profile),
            "chooses": chooses,
            "retention": retention,
            "clock": clock,
        }
        least = {"max_facts_per_call": 1, "min_chars": 1, "max_chars": min_chars, "max_shown_chars": 1000, "nearest": 0}
        for setting, minimum in least.items():
            check_whole_number(f"ExtractiveMemory.{setting}", self._settings[setting], minimum)
        for setting in ("facts_prompt", "checking_prompt", "choosing_prompt"):
            if not self._settings[setting].strip():
                raise ConfigError(f"ExtractiveMemory.{setting}", self._settings[setting], "must not be blank")
        self._lexical = LexicalMemory(store, weights=weights, embedding=embedding, retention=retention, clock=clock)
        self._chooses = chooses
        self._profile = self._settings["profile"]
        self._limits = Limits(
            max_facts=max_facts_per_call, min_chars=min_chars, max_chars=max_chars, max_shown_chars=max_shown_chars
        )
        if assistant_facts not in ("none", "sourced"):
            raise ConfigError("ExtractiveMemory.assistant_facts", assistant_facts, "must be 'none' or 'sourced'")
        self._is_sourced = assistant_facts == "sourced"
        self._facts_prompt = facts_prompt + SOURCED * self._is_sourced
        self._checks = checks
        self._checking_prompt = checking_prompt
        self._choosing_prompt = choosing_prompt
        self._nearest = nearest
        self._clock = clock
        self._counts = Counter[str]()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.model = model
        """The model, or the value from which `bind`'s caller makes it."""
        self.store = store
        """The store of the facts."""

    limits_categories = True
    """See `base.limits_categories`."""

    @property
    def is_local(self) -> bool:
        """Whether the facts are in a file on one machine."""
        return is_local(self.store)

    def __repr__(self) -> str:
        return f"ExtractiveMemory({self.model!r}, {self.store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._settings | {"embedding": portable(self._settings["embedding"])}
        return functools.partial(type(self), **settings), (self.model, self.store), self.label

    def __setstate__(self, label: Label) -> None:
        self.label = label

    def bind(self, model: TextModel) -> Self:
        """Return a memory with the same facts and settings that calls this model."""
        bound = type(self)(model, self.store, **self._settings)
        bound.label = self.label
        return bound

    @property
    def stats(self) -> Mapping[str, int]:
        """Counts of model calls and of the facts in their answers.

        `calls`; of these `checks`, which ask whether facts are stated, and `failed`; `added`, `superseded`, `same`,
        `ignored`, `quoted`, `sourced`, and each `candidates.Refusal`. Calls that choose facts are not counted.
        """
        return dict(self._counts)

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        """See `LongTermMemory.remember`.

        An item that was forgotten during the model calls is not stored, and counts as durable, so it is not sent again.

        Raises:
            LongTermMemoryError: the model failed; nothing was stored.
            ExtractionError: the model's answer was invalid; nothing was stored.
        """
        items_by_id = {item.id: item for item in reversed(items)}
        messages = [item for item in reversed(items_by_id.values()) if item.blocks]
        for item in messages:
            checked_item(scope, replace(item, text="a message"))  # raises before the model is called
        if ready := [item for item in reversed(items_by_id.values()) if not item.blocks]:
            await self._lexical.remember(scope, ready)
        if messages:
            lock = self._locks.setdefault(scope.user_id, asyncio.Lock())
            async with lock:
                await self._extract(scope, messages)
        return [*dict.fromkeys(item.id for item in items)]

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Sequence[MemoryItem]:
        """Return the facts that are similar by words and vectors; with `chooses`, those that the model chooses.

        With `chooses`, each recall calls the model once. If it fails or its answer is invalid, facts are found by words
        and vectors instead, as a `DegradedRecall`.
        """
        reason = None
        if self._chooses and limit > 0:
            try:
                chosen = await self._choose(scope, query, ItemFilter(types=types, as_of=as_of))
                best = first_of_each(chosen, limit) if per_category else chosen[:limit]
                if as_of is None:
                    self._lexical.use(scope, [item.id for item in best], recalled=True)
                return recalled(best, trouble_of(chosen))
            except Exception as error:  # noqa: BLE001 - whatever a model raises is reported
                reason = _not_chosen(error)
        options: dict[str, Any] = {"types": types, "as_of": as_of, "per_category": per_category}
        items = await self._lexical.recall(scope, query, limit=limit, **options)
        return recalled(items, reason or trouble_of(items))

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Reminder:
        """See `Reminding`. With `chooses`, the items are those that the model chooses."""
        reason = None
        if self._chooses and prompt:
            try:
                which = ItemFilter(types=types, as_of=as_of)
                (items, _), chosen = await asyncio.gather(
                    self._lexical.items_then(scope, which), self._choose(scope, prompt, which)
                )
                profile = profile_of(items, self._profile)
                within = within_limits(profile, chosen, limit, per_category=per_category)
                if as_of is None:
                    self._lexical.use_profile(scope, profile, within)
                return Reminder(profile=profile, items=recalled(within, trouble_of(chosen)))
            except Exception as error:  # noqa: BLE001 - whatever a model raises is reported
                reason = _not_chosen(error)
        options: dict[str, Any] = {"limit": limit, "types": types, "as_of": as_of, "per_category": per_category}
        reminder = await self._lexical.remind(scope, prompt, profile=self._profile, **options)
        return replace(reminder, items=recalled(reminder.items, reason or trouble_of(reminder.items)))

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """See `Pinning.pin`."""
        return not is_record(id) and await self._lexical.pin(scope, id, pinned)

    def _bound_model(self) -> TextModel:
        if isinstance(self.model, TextModel):
            return self.model
        raise ConfigError(
            "ExtractiveMemory.model", self.model, "cannot answer: call bind(model) with a TextModel first"
        )

    async def _choose(self, scope: Scope, query: str, which: ItemFilter) -> Sequence[MemoryItem]:
        model = self._bound_model()
        newest, changed = await self._lexical.items_then(scope, which)
        nearest = await self._lexical.ranked(scope, query, newest, which, limit=rerank.MOST // 2)
        items_by_id = {item.id: item for item in (*nearest, *newest)}
        items = [*items_by_id.values()][: rerank.MOST]
        if not items:
            return []
        answer = await model.answer(rerank.request(query, items, self._choosing_prompt), schema=rerank.SCHEMA)
        return recalled(rerank.chosen(answer, items), trouble_of(nearest) or trouble_of_past(changed))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        return not is_record(id) and await self._lexical.update(scope, id, text, type=type, **changes)

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """See `Listing.list_items`."""
        return await self._lexical.list_items(scope, types=types, cursor=cursor, limit=limit)

    async def mentions(
        self,
        scope: Scope,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
    ) -> list[MemoryItem]:
        """See `Mentioning.mentions`."""
        items = await self._lexical.mentions(scope, text, turns=turns, ids=ids)
        return [item for item in items if not is_record(item.id)]

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        """Delete facts; an item's id deletes all facts that were extracted from it. Returns the number of facts."""
        check_turn(scope.session_id, turn_index, ids)
        deleted = await self._delete(scope, ids, turn_index)
        await self._lexical.unindex(scope.user_id, deleted)
        return sum(not is_record(name) for name in deleted)

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """See `SessionsForgetting`."""
        await self._lexical.forget_sessions(sessions)

    async def _delete(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> list[str]:
        """Delete items, facts that were extracted from them, and their records; return the ids of all."""
        if ids is None:
            return await self.store.delete(scope, turn_index=turn_index)
        names = dict.fromkeys(ids)
        keys = {_key(name) for name in names}
        # The first records go too: an extraction that finds its first record deleted deletes its facts.
        record_ids = [_begun_id(key) for key in keys]
        deleted = await self.store.delete(
            scope, [*dict.fromkeys((*names, *record_ids, *await self._extracted_ids(scope, keys)))]
        )
        # Again, since facts may have been written after the query and before the deletion of the records.
        return deleted + await self._delete_extracted(scope, keys)

    async def texts(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return texts and topics of the items that `forget` would delete with these arguments, superseded ones too."""
        if ids is not None:
            ids = {*ids, *await self._extracted_ids(scope, {_key(name) for name in ids})}
        return texts_of(
            item for item in await self._lexical.to_delete(scope, ids, turn_index) if not is_record(item.id)
        )

    async def still_contains(self, texts: Collection[str]) -> set[str]:
        """Return the texts that an item of any user still contains, whole or as a part of its text."""
        return await self._lexical.still_contains(texts)

    async def scrub(self, files: Collection[str] | None = None) -> None:
        """Rewrite the files of the store, if it supports that."""
        await self._lexical.scrub(files)

    def paths(self) -> Sequence[Path]:
        """Return the files of the store; none if it does not list them."""
        return self._lexical.paths()

    async def sweep(self) -> int:
        """Delete the expired facts and records of all users for good, in batches; return how many.

        Items whose records were deleted are not processed again.

        Raises:
            StoreError: the store fails. Items deleted before that stay deleted; the next sweep deletes the rest.
        """
        return await self._lexical.sweep()

    async def close(self) -> None:
        await self._lexical.close()

    # Extraction

    async def _extract(self, scope: Scope, items: Sequence[MemoryItem]) -> None:
        """Extract facts from the items that were not processed before."""
        now = self._clock()
        items = await self._unprocessed(scope, items, now)
        messages = await on_thread(input_of, items, self._limits, sourced=self._is_sourced)
        decision = await self._ask_model(scope, messages) if may_have_facts(messages) else ReconcileResult(())
        if items:
            # Completed even if the caller is cancelled, since it ends by deleting facts of items forgotten meanwhile.
            await asyncio.shield(self._store_facts(scope, items, decision, now))

    async def _unprocessed(self, scope: Scope, items: Sequence[MemoryItem], now: float) -> list[MemoryItem]:
        """Return the items that were not processed before, and record in the store that they are being processed."""
        keys = {item.id: _key(item.id) for item in items}
        begun_records = [_record(_begun_id(keys[item.id]), item, now, "{}") for item in items]
        new = await self.store.put(scope, begun_records, at=now)
        record_ids = [record_id for key in keys.values() for record_id in (_begun_id(key), _done_id(key))]
        records = await self.store.get(scope, record_ids)
        begun = {key for key in keys.values() if _begun_id(key) in new or _begun_id(key) in records}
        unprocessed = [item for item in items if _done_id(keys[item.id]) not in records and keys[item.id] in begun]
        # Delete facts of items that were forgotten during another extraction that crashed before deleting them.
        await self._delete_extracted(scope, {key for key in keys.values() if _done_id(key) in records} - begun)
        await self._finish(scope, {name: records[name] for key in begun for name in [_done_id(key)] if name in records})
        return unprocessed

    async def _ask_model(self, scope: Scope, messages: ExtractionInput) -> ReconcileResult:
        model = self._bound_model()
        facts = await self._lexical.items(scope, _KNOWN)
        recent = _FILLED * self._nearest
        indexed = await self._lexical.indexed(scope, facts, _KNOWN)
        shown = await on_thread(
            nearest, messages, facts, count=self._nearest, recent=recent, user_index=indexed.user_index
        )
        names = {f"f{number}": item for number, item in enumerate(shown, 1)}
        answer = await self._call(model, request(self._facts_prompt, messages, names), SCHEMA)
        try:
            candidates = await on_thread(parse, answer)
        except Exception as error:
            self._counts["failed"] += 1
            raise ExtractionError(f"the model's answer is invalid: {error!r}"[:_WHY_CHARS]) from error
        claims = await on_thread(claims_of, candidates, messages, self._limits)
        claims = await self._checked(model, claims, messages)
        facts = await self._lexical.items(scope, _KNOWN)  # facts may have been deleted meanwhile
        decision = await on_thread(decide, claims, facts, names, now=self._clock())
        self._lexical.use_again(scope, decision.again)
        self._counts.update(decision.counts)
        return decision

    async def _call(self, model: TextModel, request: Sequence[AnyBlock], schema: Mapping[str, Any]) -> str:
        self._counts["calls"] += 1
        try:
            return await model.answer(request, schema=schema)
        except Exception as error:
            self._counts["failed"] += 1
            raise LongTermMemoryError(f"the extraction model failed: {error!r}"[:_WHY_CHARS]) from error

    async def _checked(
        self, model: TextModel, claims: Sequence[Claim | Refusal], messages: ExtractionInput
    ) -> list[Claim | Refusal]:
        """Return the claims, those as quotations that by the model's answer the user does not state."""
        new = {number: claim for number, claim in enumerate(claims) if isinstance(claim, Claim) and claim.may_be_new}
        if not new or not self._checks or not is_typed(model):
            return list(claims)
        self._counts["checks"] += 1
        question = check.request(self._checking_prompt, messages, list(new.values()))
        answer = await self._call(model, question, check.schema(len(new)))
        try:
            are_stated = check.are_stated(answer, len(new))
        except ValueError:
            self._counts["failed"] += 1
            are_stated = [False] * len(new)
        verdicts = zip(new.items(), are_stated, strict=True)
        quotations = {number: claim.as_quotation() for (number, claim), is_stated in verdicts if not is_stated}
        return [quotations.get(number, claim) for number, claim in enumerate(claims)]

    async def _store_facts(
        self, scope: Scope, items: Sequence[MemoryItem], decision: ReconcileResult, now: float
    ) -> None:
        """Store facts and the records of their items in one transaction; delete those of items forgotten meanwhile.

        Args:
            now: the time of the items' first records, so that all records and facts expire together.
        """
        facts: dict[str, list[MemoryItem]] = {_key(item.id): [] for item in items}
        pairs: dict[str, list[tuple[str, str]]] = {key: [] for key in facts}
        for accepted in decision.accepted:
            key = _key(accepted.statement.item.id)
            olds = [old for predecessor in accepted.instead_of if (old := await self._predecessor(scope, predecessor))]
            facts[key].append(_fact(f"{key}-{len(facts[key])}", accepted, olds[:1], self._clock()))
            pairs[key] += [_by_age(facts[key][-1], old) for old in olds]
        done_records = [_record(_done_id(_key(item.id)), item, now, json.dumps(pairs[_key(item.id)])) for item in items]
        facts_to_put = [fact for group in facts.values() for fact in group]
        new = set(await self.store.put(scope, [*facts_to_put, *done_records], at=now))
        record_ids = [record_id for key in facts for record_id in (_begun_id(key), _done_id(key))]
        records = await self.store.get(scope, record_ids)
        stored_keys = [key for key in facts if _done_id(key) in new and _begun_id(key) in records]
        orphans = [fact.id for key in facts if key not in stored_keys for fact in facts[key] if fact.id in new]
        orphans += [_done_id(key) for key in facts if _done_id(key) in new and key not in stored_keys]
        if orphans:
            await self.store.delete(scope, orphans)
        await self._finish(
            scope, {_done_id(key): records[_done_id(key)] for key in facts if _done_id(key) in records.keys() - new}
        )
        self._counts["added"] += sum(len(facts[key]) for key in stored_keys)
        superseded = await self._supersede(scope, [pair for key in stored_keys for pair in pairs[key]])
        self._counts["superseded"] += sum(new in facts for new in (name.rpartition("-")[0] for name in superseded))

    async def _predecessor(self, scope: Scope, old: MemoryItem) -> MemoryItem | None:
        """Return the fact to be replaced; None if all agents see it but only one would see the new fact."""
        if scope.agent is None or old.type.category is MemoryCategory.SEMANTIC:
            return old
        return None if await self.store.get(replace(scope, agent=None), [old.id]) else old

    async def _finish(self, scope: Scope, records: Mapping[str, MemoryItem]) -> None:
        """Complete the replacements of concurrent extractions from these items, which may have crashed."""
        done = [json.loads(record.text) for name, record in records.items() if name.endswith("-done")]
        await self._supersede(scope, [pair for pairs in done for pair in pairs])

    async def _supersede(self, scope: Scope, pairs: Sequence[Sequence[str]]) -> list[str]:
        """In each pair, supersede the first fact by the second if both still exist. Idempotent.

        Returns the ids of the second facts for which this was done.
        """
        if not pairs:
            return []
        facts = await self.store.get(scope, [name for pair in pairs for name in pair])
        superseding = []
        for old, new in pairs:
            if (
                old in facts
                and new in facts
                and await supersede(self.store, scope, old, _since(facts[new], facts[old]))
            ):
                superseding.append(new)
        return superseding

    async def _extracted_ids(self, scope: Scope, keys: Collection[str]) -> list[str]:
        """Return the ids of the facts extracted from items, and of the items' records."""
        items = await all_items(self.store, scope, ItemFilter(superseded=True)) if keys else []
        return [item.id for item in items if item.id.rpartition("-")[0] in keys]

    async def _delete_extracted(self, scope: Scope, keys: Collection[str]) -> list[str]:
        """Delete the facts extracted from items; return their ids."""
        ids = await self._extracted_ids(scope, keys)
        return await self.store.delete(scope, ids) if ids else []


_FILLED = 3
_WHY_CHARS = 500


def _not_chosen(error: Exception) -> str:
    """Return why the model chose no facts."""
    return f"the model could not choose facts: {error!r}"[:_WHY_CHARS]


def _fact(id: str, accepted: Accepted, olds: Sequence[MemoryItem], now: float) -> MemoryItem:
    candidate = accepted.candidate
    fact = MemoryItem(
        id=id,
        text=candidate.text,
        type=MemoryType(candidate.type),
        topic=candidate.topic,
        name=candidate.name,
        aliases=candidate.aliases,
        source=accepted.statement.source,
        created_at=accepted.statement.item.created_at or now,
    )
    fact = replace(fact, pinned=any(old.pinned for old in olds), uses=max((old.uses for old in olds), default=0))
    is_semantic = fact.type.category is MemoryCategory.SEMANTIC
    for old in olds:
        if (old.type.category is MemoryCategory.SEMANTIC) is not is_semantic:
            fact = replace(fact, type=old.type)  # so that the same agents see it
    return fact


def _by_age(fact: MemoryItem, other: MemoryItem) -> tuple[str, str]:
    """Return the ids of the older and of the newer of two facts; the newer one replaces the older one."""
    return (fact.id, other.id) if _is_older_news(fact, other) else (other.id, fact.id)


def _is_older_news(fact: MemoryItem, old: MemoryItem) -> bool:
    """Return whether the new fact is older than the known one, so that the known one replaces it.

    Facts of one session are compared by turn, since the clocks of nodes may differ.
    """
    new, was = fact.source, old.source
    is_of_one = new.session_id is not None and new.session_id == was.session_id and old.updated_at is None
    if is_of_one and new.turn_index is not None and was.turn_index not in (None, new.turn_index):
        return new.turn_index < was.turn_index
    return fact.created_at < max(old.created_at, old.updated_at or 0.0)


def _since(new: MemoryItem, old: MemoryItem) -> MemoryItem:
    """Return the new fact with the time from which it replaces the old one, for `supersede`.

    If it was created earlier than the old one, this is the time of its last change, or the creation of the old one if
    that is later.
    """
    return (
        replace(new, created_at=max(new.updated_at or 0.0, old.created_at)) if new.created_at < old.created_at else new
    )


# Records of processed items: their type makes them visible to all agents, and they are superseded from the start.


def is_record(id: str) -> bool:
    """Return whether an id in the store belongs to a record that an item was processed, not to a fact."""
    return _RECORD.fullmatch(id) is not None


_RECORD = re.compile(r"[0-9a-f]{20}-(?:seen|done)")


def _key(id: str) -> str:
    """Return the prefix of the ids of an item's facts and records."""
    return hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=10).hexdigest()


def _begun_id(key: str) -> str:
    return f"{key}-seen"


def _done_id(key: str) -> str:
    return f"{key}-done"


def _record(id: str, item: MemoryItem, now: float, text: str) -> MemoryItem:
    return MemoryItem(id=id, text=text, source=item.source, created_at=now, superseded_at=now)
