"""`StaticMemory`: read-only facts that all users see."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeGuard, Unpack

from turnwise.errors import ConfigError, InvalidMemoryError, ReadOnlyMemoryError
from turnwise.memory.background import on_thread
from turnwise.memory.longterm.base import (
    ItemChanges,
    Label,
    MemoryItem,
    Reminder,
    Scope,
    first_of_each,
    is_local,
    recalled,
)
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore, all_items
from turnwise.memory.longterm.items.rules import checked_item, is_of_later, matches, parse_position, trouble_of_past
from turnwise.memory.longterm.items.urls import items_at
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.embedding_function import portable
from turnwise.memory.longterm.recall.item_indexes import ItemIndexes
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.similarity import Similarity
from turnwise.memory.stores.base import Page, check_limit
from turnwise.memory.values.ranges import check_whole_number
from turnwise.memory.values.required_arguments import needs

if TYPE_CHECKING:
    from turnwise.memory.longterm.fact_table import FactTable
    from turnwise.memory.longterm.recall.user_index import UserIndex

Fact = str | tuple[str, str] | MemoryItem | Mapping[str, Any]

EVERYONE = "everyone"
"""The user id under which a store keeps the facts for everyone."""


@needs(facts="pass the facts, such as StaticMemory(['The shop opens at nine.'])")
class StaticMemory:
    """Read-only facts for all users: a handbook, a policy. `remember`, `update` and `forget` raise.

    Up to `all_up_to` facts are all recalled for every query and prompt, the best first; of more facts, the best for a
    query, and those that stand out for a prompt. A pickle has the settings: the facts, and those of their store.

    Args:
        facts: texts, pairs such as `("opening hours", "nine to five")`, items, mappings such as
            `{"id": "fact1", "content": "..."}` or `{"key": "...", "value": "..."}`; a mapping of names to facts, which
            are pairs; a `FactTable`; or a store or the URL of one.
        store: a store with more facts, or its URL. It has them as facts of the user `owner`, and is read at each
            recall, so changes in it are seen. Of two facts with the same id, the one in `facts` counts.
        owner: the user whose facts in the store are for everyone.
        all_up_to: the most facts that are all recalled for any query.
        weights: the weights of the ranking.
        embedding: one of Chroma's embedding functions, by whose vectors facts are found too; see `Similarity`.
        query_s: how long it may take for one query, in seconds; after that the query is answered by words.
        name: its name in sessions, see `Label`; `max_tokens` likewise.

    Raises:
        InvalidMemoryError: a fact is blank, or of no known type.
        ConfigError: two items have the same id, or a setting is out of range.
    """

    read_only = True
    limits_categories = True
    """See `base.limits_categories`."""

    def __init__(
        self,
        facts: Iterable[Fact] | Mapping[str, str] | FactTable | ItemStore | str,
        store: ItemStore | str | None = None,
        *,
        owner: str = EVERYONE,
        all_up_to: int = 10,
        weights: Weights = FACTS,
        embedding: Any = None,
        query_s: float = 1.0,
        name: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        check_whole_number("StaticMemory.all_up_to", all_up_to)
        self.label = Label(name=name, max_tokens=max_tokens)
        """Its name and limit in sessions."""
        self._owner = Scope(user_id=owner)
        if isinstance(facts, ItemStore) or (isinstance(facts, str) and "://" in facts):
            if store is not None:
                raise ConfigError("StaticMemory.store", store, "is a second store: pass one of them")
            store, facts = facts, list[str]()
        self._store = None if store is None else items_at(store)
        self._table = facts if _is_table(facts) else None
        self._items = () if self._table else _items(facts)
        self._all_up_to = all_up_to
        self._weights = weights
        self._embedding = embedding
        self._query_s = query_s
        self._indexes = ItemIndexes()
        """The index of the facts as of the last recall."""
        self._similarity = None if self._embedding is None else Similarity(self._embedding, limit_s=self._query_s)

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {
            "owner": self._owner.user_id,
            "all_up_to": self._all_up_to,
            "weights": self._weights,
            "embedding": portable(self._embedding),
            "query_s": self._query_s,
        }
        facts = self._items if self._table is None else self._table
        return functools.partial(type(self), **settings), (facts, self._store), self.label

    def __setstate__(self, label: Label) -> None:
        self.label = label

    @property
    def is_local(self) -> bool:
        """Whether facts are in a store that is a file on one machine."""
        return is_local(self._store) or is_local(self._table)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        type: MemoryType = MemoryType.FACTS,
        topic: str | None = None,
        all_up_to: int = 10,
        weights: Weights = FACTS,
        embedding: Any = None,
        name: str | None = None,
        max_tokens: int | None = None,
    ) -> Self:
        """Return a memory of the facts in a UTF-8 file, which is read once, now.

        In a file `.json` or `.jsonl`, a fact is a string or an object with `text` or `content` and, as it needs, `id`,
        `type`, `topic` and other fields of an item: in a list, or one per line. For any other file:
        A fact is a bullet or a numbered item of Markdown, with the lines that continue it, or a paragraph. In a file
        without blank lines and bullets, each line is a fact. A heading is the topic of the facts below it.

        Args:
            topic: the topic of facts that are under no heading.

        Raises:
            ConfigError: the file cannot be read, or has no facts.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError("StaticMemory.from_file", str(path), f"cannot be read: {error}") from error
        facts: Sequence[str | MemoryItem | Mapping[str, Any]]
        if Path(path).suffix in (".json", ".jsonl"):
            facts = [_with(fact, type=type, topic=topic) for fact in _from_json(str(path), text)]
        else:
            facts = [
                MemoryItem(id=f"{number}", text=fact, type=type, topic=heading or topic)
                for number, (heading, fact) in enumerate(read_facts(text), 1)
            ]
        if not facts:
            raise ConfigError("StaticMemory.from_file", str(path), "contains no facts")
        return cls(facts, all_up_to=all_up_to, weights=weights, embedding=embedding, name=name, max_tokens=max_tokens)

    def __repr__(self) -> str:
        own = repr(self._table) if self._table else f"<{len(self._items)} facts>" if self._items else ""
        return f"StaticMemory({', '.join(filter(None, (own, repr(self._store) if self._store else '')))})"

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "remember")

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
        return await self._best(query, limit, types=types, as_of=as_of, per_category=per_category)

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
        """See `Reminding`. The profile is empty."""
        options = {"per_category": per_category, "is_reminder": True}
        items = await self._best(prompt, limit, types=types, as_of=as_of, **options)
        return Reminder(profile=(), items=items)

    async def _best(
        self,
        query: str,
        limit: int,
        *,
        types: Collection[MemoryType] | None,
        per_category: bool,
        as_of: float | None = None,
        is_reminder: bool = False,
    ) -> Sequence[MemoryItem]:
        which = ItemFilter(types=types, as_of=as_of, live_at=time.time() if as_of is None else as_of)
        facts = await self._facts(which)
        items = [item for item in facts if not is_of_later(item, as_of)]
        past = trouble_of_past(len(facts) - len(items))
        kinds = None if types is None else frozenset(types)
        indexed = await self._indexes.of(self._owner.user_id, (kinds, as_of is None), items)
        options = {"per_category": per_category, "is_reminder": is_reminder}
        ranked, trouble = await on_thread(self._rank, indexed.user_index, query, max(limit, 0), options)
        if len(items) <= self._all_up_to:
            ranked_ids = {item.id for item in ranked}
            ranked += [replace(item, score=0.0) for item in items if item.id not in ranked_ids]
        best = first_of_each(ranked, max(limit, 0)) if per_category else ranked[: max(limit, 0)]
        return recalled(best, indexed.trouble or (self._table.trouble if self._table else None) or trouble or past)

    async def _facts(self, which: ItemFilter) -> Sequence[MemoryItem]:
        own = [item for item in await self._own() if matches(item, which)]
        if self._store is None:
            return own
        ids = {item.id for item in own}
        return [*own, *(item for item in await all_items(self._store, self._owner, which) if item.id not in ids)]

    async def _own(self) -> Sequence[MemoryItem]:
        """Return the facts that are in no store."""
        return await self._table.items() if self._table else self._items

    def _rank(
        self, user_index: UserIndex, query: str, limit: int, options: dict[str, bool]
    ) -> tuple[list[MemoryItem], str | None]:
        """Return the best facts, and why only words were ranked (None if vectors worked)."""
        from turnwise.memory.longterm.recall.user_index import find_near

        return find_near(user_index, self._similarity, query, limit=limit, weights=self._weights, **options)

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """See `Listing.list_items`. Facts that were passed come first, in their order."""
        which, of_store = ItemFilter(types=types), (cursor or "").startswith(_OF_STORE)
        if self._store and of_store:
            page = await self._store.query(
                self._owner, which, cursor=(cursor or "").removeprefix(_OF_STORE) or None, limit=limit
            )
            own_ids = {item.id for item in await self._own()}
            items = tuple(item for item in page.items if item.id not in own_ids)
            return Page(items, page.cursor and _OF_STORE + page.cursor)
        start = parse_position(cursor)
        stop = start + check_limit(limit)
        facts = [item for item in await self._own() if matches(item, which)]
        if not facts and self._store:
            return await self.list_items(scope, types=types, cursor=_OF_STORE, limit=limit)
        following = str(stop) if stop < len(facts) else _OF_STORE if self._store else None
        return Page(tuple(facts[start:stop]), following)

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "update")

    async def forget(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "forget")

    async def close(self) -> None:
        """Close the store and the table that were passed."""
        if self._similarity is not None:
            self._similarity.close()
        if self._store:
            await self._store.close()
        if self._table:
            await self._table.close()


def read_facts(text: str) -> list[tuple[str | None, str]]:
    """Return the facts of a text in order, each with the heading above it."""
    lines = [line.rstrip() for line in text.splitlines()]
    has_blanks = "\n\n" in "\n".join(lines).strip("\n")
    is_list = not has_blanks and not any(_BULLET.match(line) or _HEADING.match(line) for line in lines)
    facts: list[tuple[str | None, list[str]]] = []
    heading: str | None = None
    goes_on = False
    for line in lines:
        if title := _HEADING.match(line):
            heading, goes_on = title[1], False
        elif not line.strip() or _RULE.match(line):
            goes_on = False
        elif bullet := _BULLET.match(line):
            facts.append((heading, [bullet[1]]))
            goes_on = True
        elif goes_on and not is_list:
            facts[-1][1].append(line.strip())
        else:
            facts.append((heading, [line.strip()]))
            goes_on = True
    return [(heading, " ".join(parts)) for heading, parts in facts]


_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(\S.*)$")
_RULE = re.compile(r"\s*([-*_=])(\s*\1){2,}\s*$")


def _is_table(facts: object) -> TypeGuard[FactTable]:
    """Return whether the facts are a `FactTable`, without importing SQLAlchemy."""
    return any(kind.__name__ == "FactTable" for kind in type(facts).__mro__)


def _from_json(path: str, text: str) -> list[Any]:
    """Return the facts of a JSON file: a list, or one per line.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        if not path.endswith(".jsonl"):
            facts = json.loads(text)
            if not isinstance(facts, list):
                raise ValueError("it is not a list")
            return facts
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise ConfigError("StaticMemory.from_file", path, f"has no facts as JSON: {error}") from error


def _with(fact: Any, **defaults: Any) -> Any:
    """Return a fact of a JSON file with defaults for the fields that it lacks."""
    fact = {"text": fact} if isinstance(fact, str) else fact
    return {**defaults, **fact} if isinstance(fact, Mapping) else fact


def _items(facts: Any) -> tuple[MemoryItem, ...]:
    if not isinstance(facts, Iterable):
        what = "cannot be iterated over: pass a list of facts, or use from_file() for those of a file"
        raise ConfigError("StaticMemory.facts", facts, what)
    is_one = isinstance(facts, Mapping) and ({"text", "content"} & facts.keys() or {"key", "value"} <= facts.keys())
    if isinstance(facts, str) or is_one:
        what = (
            "is one text: pass a list of facts, or use from_file()"
            if isinstance(facts, str)
            else "is one fact: pass a list"
        )
        raise ConfigError("StaticMemory.facts", str(facts)[:80], what)
    if isinstance(facts, Mapping):
        facts = facts.items()
    items = [_item(number, fact) for number, fact in enumerate(facts, 1)]
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(repeated for repeated in ids if ids.count(repeated) > 1)
        raise ConfigError("StaticMemory.facts", twice, "is the id of two facts: give each fact its own id")
    return tuple(items)


def _item(number: int, fact: Any) -> MemoryItem:
    """Return the item of a fact as a caller passes it."""
    if isinstance(fact, MemoryItem):
        return checked_item(_ANYBODY, fact)
    values: Any = fact
    match fact:
        case str(text):
            values = {"text": text}
        case (str(key), str(value)) if key.strip() and value.strip():
            values = {"key": key, "value": value}
    if not isinstance(values, Mapping):
        reason = f"it is {type(fact).__name__}: pass a text, a pair of two texts, an item or a mapping"
        raise InvalidMemoryError(str(number), reason)
    fields: dict[str, Any] = {"id": str(number), "type": MemoryType.FACTS, **values}
    if "content" in fields:
        fields["text"] = fields.pop("content")
    if "key" in fields and "value" in fields:
        key = str(fields.pop("key"))
        fields = {"topic": key, "text": f"{key}: {fields.pop('value')}", **fields}
    if unknown := fields.keys() - _FIELDS:
        raise InvalidMemoryError(str(fields["id"]), f"has no fields {', '.join(sorted(map(str, unknown)))}")
    if not isinstance(fields.get("text"), str):
        raise InvalidMemoryError(str(fields["id"]), "its text, in the field `text` or `content`, is missing")
    return checked_item(_ANYBODY, MemoryItem(**{**fields, "id": str(fields["id"])}))


_OF_STORE = "store:"
"""How the cursor of a page begins whose items are in the store."""

_FIELDS = frozenset(("id", "text", "type", "topic", "name", "aliases", "created_at", "expires_at"))

_ANYBODY = Scope(user_id=EVERYONE)
