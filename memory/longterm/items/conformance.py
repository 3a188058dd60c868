"""The laws of `ItemStore`, checked on an empty store; see `stores/conformance` for how to run them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

from turnwise.errors import InvalidInputError, InvalidMemoryError, StoreClosedError
from turnwise.memory.conversation.blocks import User
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope, Source
from turnwise.memory.longterm.items.base import (
    ALL,
    MAX_ID_BYTES,
    Change,
    ItemFilter,
    ItemStore,
    StoredItem,
    delete_sessions,
)
from turnwise.memory.longterm.items.changes import pin as _pin, supersede as _supersede, update
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.stores.conformance.fixtures import IDS, TEXT
from turnwise.memory.stores.conformance.laws import Law, check_law, collector, equal, refuses

EVER = ItemFilter(superseded=True)


async def check_item_store(make_items: Callable[[str], ItemStore]) -> None:
    """Check all laws, in order; `make_items` is like `make_store` of `check_session_store`.

    Raises:
        AssertionError: the store breaks a law; names it.
    """
    for law in LAWS:
        await check_law(law, functools.partial(make_items, law.__name__))


_laws: list[Law] = []
_law = collector(_laws)

_FACTS, _SKILL, _CONTEXT = MemoryType.FACTS, MemoryType.SKILL, MemoryType.CONTEXT
_U = Scope(user_id="u")
_A = Scope(user_id="u", agent="a")
_B = Scope(user_id="u", agent="b")


def _item(
    id: str, type: MemoryType = _FACTS, *, created_at: float = 1.5, session: str | None = None, **more: Any
) -> MemoryItem:
    source = Source(session_id=session, turn_index=more.pop("turn", None))
    return MemoryItem(
        id=id, **{"text": f"text of {id}", "type": type, "created_at": created_at, "source": source, **more}
    )


async def _all(store: ItemStore, scope: Scope = _U, which: ItemFilter = EVER) -> list[MemoryItem]:
    return list(await store.query(scope, which, limit=100_000))


async def _ids(store: ItemStore, scope: Scope = _U, which: ItemFilter = EVER) -> list[str]:
    return [item.id for item in await _all(store, scope, which)]


async def _count(store: ItemStore, scope: Scope, which: ItemFilter = ALL) -> int:
    return len(await _all(store, scope, which))


async def _update(store: ItemStore, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
    return await update(store, scope, id, text, **changes) is not None


async def _purge(
    store: ItemStore, user_id: str, *, session_id: str | None = None, turn_index: int | None = None
) -> list[str]:
    return await store.delete(Scope(user_id=user_id, session_id=session_id), turn_index=turn_index)


async def _touch(store: ItemStore, user_id: str, ids: Iterable[str], used_at: float, *, counts: bool = False) -> None:
    await store.touch([Use(user_id, tuple(ids), used_at, counts)])


async def _sweep(store: ItemStore, before: float, **options: Any) -> int:
    return sum(map(len, (await store.sweep(before, **options)).values()))


async def _dump(store: ItemStore) -> list[StoredItem]:
    return list((await store.scan(limit=100_000)).items)


@asynccontextmanager
async def _unchanged(store: ItemStore, after: str) -> AsyncIterator[None]:
    before = await _dump(store)
    yield
    equal(await _dump(store), before, f"what is stored after {after}")


@_law
async def check_items_are_returned_as_they_were_put(store: ItemStore, other: ItemStore) -> None:
    """All fields but blocks and score, by each method that returns items."""
    full = MemoryItem(
        id="i'%\"\\ü" * 100,
        text=TEXT,
        type=MemoryType.WORKFLOW,
        topic=TEXT,
        source=Source(session_id="s'%\"\\ü", turn_index=2**40, spans=(Span("7", 2**40, 2**41), Span("ü", 0, 1))),
        blocks=(User(text="hi"),),
        created_at=0.1 + 0.2,
        updated_at=1763700000.123456,
        superseded_at=1763700001.5,
        superseded_by="j'%\"\\ü",
        name=TEXT,
        aliases=("ü", TEXT),
        expires_at=1763700002.5,
        status="resolved",
        pinned=True,
        score=0.5,
    )
    items = [full, MemoryItem(id="bare", text=" x "), MemoryItem(id="long", text="ab" * 2**20)]
    stored = [replace(item, blocks=(), score=None) for item in items]
    equal(await store.put(_A, items), [item.id for item in items], "the ids of what is new")
    for handle in (store, other):
        items_by_id = await handle.get(_A, [item.id for item in reversed(items)])
        equal(list(items_by_id.items()), [(item.id, item) for item in reversed(stored)], "what get returns")
        equal([(item.blocks, item.score) for item in items_by_id.values()], [((), None)] * 3, "blocks and scores")
        equal(
            sorted(await _all(handle, _A), key=lambda item: len(item.text)), [stored[1], stored[0], stored[2]], "list"
        )
        dumped = [StoredItem("u", "a", stored[0]), StoredItem("u", None, stored[1]), StoredItem("u", None, stored[2])]
        equal(await _dump(handle), dumped, "what scan returns")
    equal(await store.put(_A, []), [], "the ids of a put of nothing")


@_law
async def check_a_put_may_be_repeated(store: ItemStore, other: ItemStore) -> None:
    """Completely, in part, twice in one call, concurrently, or with another text: the first item with an id stays."""
    first = [_item("1"), _item("2"), _item("3")]
    equal(await store.put(_U, first), ["1", "2", "3"], "what is new")
    later = [_item("4"), _item("2", text="else"), _item("5"), _item("4", text="else"), _item("1", _SKILL)]
    equal(await other.put(_U, later), ["4", "5"], "what is new of a put that repeats some")
    expected = [_item(name) for name in "54321"]
    equal(await _all(store), expected, "the items")
    many = [_item(f"m{number}") for number in range(1203)]
    puts = [(store, other)[index % 2].put(_U, many[index * 100 :]) for index in range(10)]
    new = sorted(name for names in await asyncio.gather(*puts) for name in names)
    equal(new, sorted(item.id for item in many), "what was new of ten puts at once")
    equal(await _count(store, _U), 1208, "how many there are")
    equal(await store.put(_A, [_item("1", _SKILL)]), [], "what is new of an id that a user has")


@_law
async def check_invalid_items_are_refused(store: ItemStore) -> None:
    """By put, update and supersede; nothing of the same call is written."""
    await store.put(_U, [_item("1")])
    wrong: list[MemoryItem] = [
        *(_item("2", text=text) for text in ("", " \n", "\ud800", None, 5)),
        *(_item(name) for name in ("", " ", "a\0b", "\ud800", "x" * (MAX_ID_BYTES + 1))),
        _item("2", type="no such type"),  # type: ignore[arg-type]
        *(_item("2", created_at=time) for time in (float("nan"), float("inf"))),
        _item("2", topic="\ud800"),
        *(_item("2", name=name) for name in ("\ud800", "")),
        *(_item("2", aliases=names) for names in (["\ud800"], ["x", " "], [5])),
        *(_item("2", expires_at=time) for time in (float("nan"), float("inf"))),
        _item("2", status="no such status"),
        *(_item("2", session=name) for name in ("a\0b", "\ud800")),
        _item("\ud800", text="x"),
    ]
    for item in wrong:
        async with _unchanged(store, f"a put of {item!r}"):
            await refuses(InvalidMemoryError, store.put(_U, [_item("3"), item]), repr(item))
            await refuses(InvalidMemoryError, _supersede(store, _U, "1", item), repr(item))
    async with _unchanged(store, "verbs that were refused"):
        for scope in (Scope(user_id=""), Scope(user_id="a\0"), Scope(user_id="u", agent=" ")):
            await refuses(InvalidMemoryError, store.put(scope, [_item("3")]), repr(scope))
        for text in ("", "\ud800"):
            await refuses(InvalidMemoryError, _update(store, _U, "1", text, at=2.0), f"update to {text!r}")
        await refuses(
            InvalidMemoryError, _supersede(store, _U, "1", _item("1", created_at=2.0)), "what supersedes itself"
        )
        await refuses(
            InvalidMemoryError, _supersede(store, _U, "1", _item("2", created_at=0.0)), "what supersedes at no time"
        )
        await refuses(InvalidInputError, _purge(store, "u", turn_index=0), "a turn of no session")
    equal(await store.put(_U, [_item("3", type="skill")]), ["3"], "a type by its name")  # type: ignore[arg-type]
    equal(isinstance((await store.get(_U, ["3"]))["3"].type, MemoryType), True, "whether it is a type then")


@_law
async def check_items_are_returned_newest_first(store: ItemStore) -> None:
    """Equal times by insertion, in pages of any size, each item once, even if others are put meanwhile."""
    times = (5.0, 1.0, 5.0, 0.0, 3.0, 5.0, 1.0, -2.5, 5.000001)
    for index, time in enumerate(times):
        await store.put(_U, [_item(str(index), created_at=time, type=(_FACTS, _SKILL)[index % 2])])
    await store.put(_U, [_item(name, created_at=3.0) for name in ("x", "y", "z")])
    await store.put(Scope(user_id="u2"), [_item("other", created_at=3.0)])
    expected = ["8", "5", "2", "0", "z", "y", "x", "4", "6", "1", "3", "7"]
    equal(await _ids(store), expected, "the order")
    for which in (EVER, ItemFilter(types=[_FACTS]), ItemFilter(types=[_SKILL])):
        all_ids = await _ids(store, _U, which)
        for limit in range(1, len(expected) + 2):
            listed: list[str] = []
            cursor: str | None = None
            pages = 0
            while pages == 0 or (cursor is not None and pages <= len(all_ids)):
                page = await store.query(_U, which, cursor=cursor, limit=limit)
                listed += [item.id for item in page]
                cursor, pages = page.cursor, pages + 1
            equal((listed, pages), (all_ids, -(-len(all_ids) // limit)), f"items and pages of {limit}")
    page = await store.query(_U, limit=5)
    await store.put(_U, [_item("late", created_at=9.0), _item("between", created_at=3.0)])
    rest = await store.query(_U, cursor=page.cursor, limit=100)
    equal([item.id for item in (*page, *rest)], expected, "pages with puts between them")
    equal(len(await store.query(Scope(user_id="nobody"))), 0, "items of nobody")
    await store.put(_U, [_item(f"m{number}") for number in range(101)])
    equal(len(await store.query(_U)), 100, "items of a page by default")
    for limit in (0, -1):
        await refuses(InvalidInputError, store.query(_U, limit=limit), f"a limit of {limit}")
        await refuses(InvalidInputError, store.scan(limit=limit), f"a scan with a limit of {limit}")
    for wrong in ("", "x", "nan:1"):
        await refuses(InvalidInputError, store.query(_U, cursor=wrong), f"cursor {wrong!r}")
    for wrong in ("x", "-1", "9" * 30):
        await refuses(InvalidInputError, store.scan(cursor=wrong), f"cursor {wrong!r} of a scan")


@_law
async def check_filters_can_be_combined(store: ItemStore) -> None:
    """Any two of type, session, turn, time and what is superseded; `count` agrees with `query`."""
    items = [
        _item(f"{kind}-{session}-{turn}", kind, created_at=created_at, session=session, turn=turn, superseded_at=end)
        for kind in (_FACTS, _SKILL)
        for session, turn in (("s", 1), ("s", 10), ("s1", 1), (None, None))
        for created_at, end in [(float(len(kind) + (turn or 0)), 12.0 if session == "s" else None)]
    ]
    await store.put(_U, items)
    choices: dict[str, Sequence[Any]] = {
        "types": (None, (), (_FACTS,), {_SKILL, _CONTEXT}),
        "session_id": (None, "s", "S", "s%"),
        "turn_index": (None, 1, 0),
        "as_of": (None, 0.0, 6.0, 11.9, 12.0, float("inf")),
        "superseded": (False, True),
    }
    for (field, values), (other_field, other_values) in combinations(choices.items(), 2):
        for which in [
            ItemFilter(**{field: value, other_field: other_value}) for value in values for other_value in other_values
        ]:
            expected = sorted(item.id for item in items if _holds(item, which))
            equal(sorted(await _ids(store, _U, which)), expected, f"the items of {which}")
            equal(await _count(store, _U, which), len(expected), f"the count of {which}")


@_law
async def check_expired_and_resolved_items_are_left_out_if_requested(store: ItemStore) -> None:
    """With `as_of`, resolved items are included, since the time of the resolution is unknown."""
    items = [_item(str(end), expires_at=end) for end in (None, 5.0, 6.0)]
    items += [_item(f"resolved {end}", expires_at=end, status="resolved") for end in (None, 5.0)]
    await store.put(_U, items)
    everything = {item.id for item in items}
    for which, left_out in (
        (ItemFilter(), set()),
        (ItemFilter(live_at=4.9), {"resolved None", "resolved 5.0"}),
        (ItemFilter(live_at=5.0), {"5.0", "resolved None", "resolved 5.0"}),
        (ItemFilter(live_at=5.0, as_of=5.0), {"5.0", "resolved 5.0"}),
        (ItemFilter(live_at=99.0), everything - {"None"}),
    ):
        equal(set(await _ids(store, _U, which)), everything - left_out, f"the items of {which}")
        equal(await _count(store, _U, which), len(everything - left_out), f"the count of {which}")


def _holds(item: MemoryItem, which: ItemFilter) -> bool:
    end, as_of = item.superseded_at, which.as_of
    return (
        (which.types is None or item.type in which.types)
        and (which.session_id is None or item.source.session_id == which.session_id)
        and (which.turn_index is None or item.source.turn_index == which.turn_index)
        and (as_of is None or item.created_at <= as_of)
        and (which.superseded or end is None or (as_of is not None and end > as_of))
    )


@_law
async def check_a_scope_sees_items_of_its_agent_and_of_all_agents(store: ItemStore) -> None:
    """Semantic items are for all agents; others for the agent that put them, or for all if there was none."""
    for scope in (_U, _A, _B):
        await store.put(scope, [_item(f"{scope.agent}-{kind}", kind) for kind in MemoryType])
    kinds = [kind for kind in MemoryType if kind.category is not MemoryCategory.SEMANTIC]
    semantic = {f"{agent}-{kind}" for agent in (None, "a", "b") for kind in MemoryType if kind not in kinds}
    visible = {agent: semantic | {f"{owner}-{kind}" for owner in {None, agent} for kind in kinds} for agent in "ab"}
    visible["U"] = semantic | {f"None-{kind}" for kind in kinds}
    ids = {f"{agent}-{kind}" for agent in (None, "a", "b") for kind in MemoryType}
    for scope, name in ((_A, "a"), (_B, "b"), (_U, "U"), (replace(_A, session_id="s"), "a")):
        equal(set(await _ids(store, scope)), visible[name], f"what agent {scope.agent!r} lists")
        equal(set(await store.get(scope, ids)), visible[name], f"what agent {scope.agent!r} gets")
        equal(await _count(store, scope), len(visible[name]), f"what agent {scope.agent!r} counts")
    for agent in ("c", "A", "a%", "_", "%"):
        equal(set(await _ids(store, replace(_U, agent=agent))), visible["U"], f"what agent {agent!r} lists")
    async with _unchanged(store, "verbs of another agent"):
        for scope in (_U, _B):
            equal(await _update(store, scope, "a-skill", "else", at=2.0), False, "update of another agent's")
            equal(
                await _supersede(store, scope, "a-skill", _item("n", created_at=2.0)),
                False,
                "supersede of another agent's",
            )
            equal(await store.delete(scope, ["a-skill"]), [], "deletion of another agent's")
    await _purge(store, "u", session_id="none")
    equal(await store.delete(_A, ["a-skill", "None-skill", "b-facts"]), ["a-skill", "None-skill", "b-facts"], "its own")
    equal({fact.agent for fact in await _dump(store) if fact.item.type in kinds}, {None, "a", "b"}, "owners")


@_law
async def check_an_update_changes_text_and_type(store: ItemStore, other: ItemStore) -> None:
    """And nothing else. The owner follows from the type, and no copy is left."""
    await store.put(_A, [_item("1", session="s", turn=3, topic="t"), _item("2", _SKILL), _item("3", _CONTEXT)])
    await store.put(_U, [_item("4", _SKILL)])
    equal(await _update(other, _A, "1", TEXT, at=7.5), True, "whether it was there")
    expected = _item("1", session="s", turn=3, topic="t", text=TEXT, updated_at=7.5)
    equal((await store.get(_B, ["1"]))["1"], expected, "the item after an update")
    moves: list[tuple[str, Scope, MemoryType, str | None]] = [
        *[("1", _B, _SKILL, "b"), ("1", _B, _CONTEXT, "b"), ("1", _B, _FACTS, None), ("1", _U, _SKILL, None)],
        *[("2", _A, _CONTEXT, "a"), ("2", _A, _SKILL, "a"), ("2", _A, _FACTS, None), ("2", _A, _FACTS, None)],
        *[("4", _A, _CONTEXT, None), ("4", _A, _FACTS, None), ("4", _A, _SKILL, "a")],
    ]
    for number, (name, scope, kind, agent) in enumerate(moves):
        equal(await _update(store, scope, name, f"n{number}", type=kind, at=8.0 + number), True, "whether it was there")
        copies = [fact for fact in await _dump(other) if fact.item.id == name]
        equal(len(copies), 1, f"copies after move {number}")
        fact = copies[0]
        equal((fact.agent, fact.item.type, fact.item.text), (agent, kind, f"n{number}"), f"owner after move {number}")
        equal((fact.item.created_at, fact.item.updated_at), (1.5, 8.0 + number), f"times after move {number}")
    async with _unchanged(store, "updates of what is not there"):
        for missing in ("5", "", "%", "1 ", "1\0"):
            equal(await _update(store, _A, missing, "x", at=9.0), False, f"update of {missing!r}")
        equal(await _update(store, Scope(user_id="u2"), "3", "x", at=9.0), False, "update of another's")
        await refuses(InvalidMemoryError, _update(store, _A, "3", "x", type="no", at=9.0), "no type")


@_law
async def check_an_update_removes_names_of_the_old_text(store: ItemStore, other: ItemStore) -> None:
    """Name and aliases, and the topic, if the old text contains them and the new text does not."""
    cases: list[tuple[dict[str, Any], str, str, dict[str, Any]]] = [
        ({"name": "Rex", "aliases": ("Rexy",)}, "Rex barks.", "Tom purrs.", {}),
        ({"aliases": ("Old Rex",)}, "Old rex barks.", "Rex barks, and is old.", {}),
        ({"name": "Rex", "aliases": ("Rexy",)}, "Rex barks.", "Rexy sleeps.", {"name": "Rex", "aliases": ("Rexy",)}),
        ({"name": "Aurora", "topic": "lead"}, "Ann leads it.", "Bob leads it.", {"name": "Aurora", "topic": "lead"}),
        ({"topic": "peanut allergy"}, "A peanut allergy.", "Eats all.", {}),
        ({"topic": "cats"}, "Has a cat.", "Has two cats.", {"topic": "cats"}),
    ]
    for index, (fields, before, after, remaining) in enumerate(cases):
        await store.put(_U, [_item(str(index), text=before, **fields)])
        equal(await _update(other, _U, str(index), after, at=7.5), True, "whether it was there")
        expected = _item(str(index), text=after, updated_at=7.5, **remaining)
        equal((await store.get(_U, [str(index)]))[str(index)], expected, f"{fields} after {before!r} became {after!r}")


@_law
async def check_an_update_changes_only_the_given_fields(store: ItemStore, other: ItemStore) -> None:
    """Each field alone, all together, and removed again; an invalid value changes nothing."""
    item = _item("1", topic="t", name="Rex", aliases=("Rexy",), text="Barks.", pinned=True)
    await store.put(_U, [item, _item("2")])
    steps: list[ItemChanges] = [
        {"topic": TEXT},
        {"name": "Tom"},
        {"aliases": ["ü", TEXT]},
        {"status": "resolved"},
        {"expires_at": 1763700002.5},
        {"topic": None, "name": None, "aliases": (), "status": "active", "expires_at": None},
        {"topic": "dogs", "name": "Rex", "aliases": ("Rexy", "Max"), "status": "resolved", "expires_at": 0.5},
    ]
    for number, step in enumerate(steps):
        updated_at = 10.0 + number
        equal(
            await _update((store, other)[number % 2], _U, "1", at=updated_at, **step), True, f"whether {step} was done"
        )
        more: dict[str, Any] = {**step}
        if "aliases" in more:
            more["aliases"] = tuple(more["aliases"])
        item = replace(item, updated_at=updated_at, **more)
        equal((await other.get(_U, ["1"]))["1"], item, f"the item after {step}")
    equal([item.id for item in await _all(store, _U, ItemFilter(live_at=0.2))], ["2"], "what is not resolved")
    # by its id it can be changed still
    equal(await _update(store, _U, "1", at=30.0, status="active"), True, "whether it was there")
    equal(await _count(store, _U, ItemFilter(live_at=0.2)), 2, "what is active")
    equal(await _count(store, _U, ItemFilter(live_at=0.6)), 1, "what is active and has not expired")
    # what is given stays, whatever the new text says
    equal(
        await _update(store, _U, "1", "Purrs.", at=31.0, type=_SKILL, name="Rex", topic="t"),
        True,
        "whether it was there",
    )
    equal((await store.get(_U, ["1"]))["1"].name, "Rex", "its name")
    wrong: dict[str, list[Any]] = {
        "status": ["done", None],
        "name": [" ", "", 5],
        "aliases": ["Rex", ["a", ""], [5], None],
        "expires_at": [float("nan"), "soon"],
        "topic": ["\ud800", 5],
        "created_at": [1.0],
        "pinned": [True],
        "nothing": [1],
    }
    async with _unchanged(store, "changes to what cannot be kept"):
        await refuses(InvalidMemoryError, _update(store, _U, "1", at=40.0), "a change of nothing")
        for name, value in ((name, value) for name, values in wrong.items() for value in values):
            change: dict[str, Any] = {name: value}
            await refuses(InvalidMemoryError, _update(store, _U, "1", at=40.0, **change), f"a change to {change!r}")


@_law
async def check_an_item_stays_pinned_until_it_is_unpinned(store: ItemStore, other: ItemStore) -> None:
    """For all processes, without other changes; items of others and superseded items cannot be pinned."""
    await store.put(_A, [_item("mine", _SKILL), _item("old"), _item("pinned", pinned=True)])
    await _supersede(store, _A, "old", _item("new", created_at=50.0))
    before = await store.get(_A, ["mine", "old"])
    for pinned in (True, True, False, True):
        equal(await _pin(store, _A, "mine", pinned), True, "whether there is something to pin")
        (item,) = (await other.get(_A, ["mine"])).values()
        equal(item, replace(before["mine"], pinned=pinned), "the item")
    equal(await _pin(store, _B, "mine", False), False, "the pin of another agent")
    equal(await _pin(store, Scope(user_id="another", agent="a"), "mine", False), False, "the pin of another user")
    equal(await _pin(store, _A, "old", True), False, "the pin of history")
    equal(await _pin(store, _A, "none", True), False, "the pin of nothing")
    equal(await _pin(other, _A, "pinned", False), True, "the end of a pin that came along")
    await _update(store, _A, "mine", "changed", at=60.0)
    items = await store.get(_A, ["mine", "old", "pinned"])
    equal([item.pinned for item in items.values()], [True, False, False], "which are pinned")


@_law
async def check_superseded_items_are_history(store: ItemStore, other: ItemStore) -> None:
    """They are stored, found with `as_of`, and never changed again."""
    await store.put(_U, [_item("1", created_at=10.0)])
    second, third = _item("2", created_at=20.0), _item("3", created_at=30.0)
    for handle in (store, other):
        equal(await _supersede(handle, _U, "1", second), True, "whether it stands there")
    old = _item("1", created_at=10.0, superseded_at=20.0, superseded_by="2")
    equal(await _all(store), [second, old], "both")
    equal(await _supersede(other, _U, "2", third), True, "whether the third stands there")
    for as_of, ids in ((None, ["3"]), (9.9, []), (10.0, ["1"]), (19.9, ["1"]), (20.0, ["2"]), (30.0, ["3"])):
        equal(await _ids(store, _U, ItemFilter(as_of=as_of)), ids, f"what held at {as_of}")
    equal(await store.get(_U, ["1"]), {"1": old}, "what get returns of history")
    async with _unchanged(store, "verbs that find nothing to change"):
        equal(await _update(store, _U, "1", "else", at=40.0), False, "update of history")
        equal(await _supersede(store, _U, "1", _item("4", created_at=40.0)), False, "supersede of history")
        equal(await _supersede(store, _U, "0", _item("4", created_at=40.0)), False, "supersede of nothing")
        equal(
            await _supersede(store, Scope(user_id="u2"), "3", _item("4", created_at=40.0)),
            False,
            "supersede of another's",
        )
    await store.put(_U, [_item("5", created_at=15.0)])
    equal(
        await _supersede(store, _U, "3", replace(_item("5", created_at=50.0), text="else")),
        True,
        "by one that is there",
    )
    equal((await store.get(_U, ["5"]))["5"], _item("5", created_at=15.0), "the one that was there")
    await store.put(_A, [_item("6", _SKILL)])
    equal(
        await _supersede(store, _A, "6", _item("7", _SKILL, created_at=60.0)), True, "whether an agent's stands there"
    )
    equal(await _ids(store, _B, ItemFilter(types=[_SKILL], superseded=True)), [], "what another agent sees of it")
    rivals = [_item(f"r{number}", created_at=70.0) for number in range(6)]
    done = await asyncio.gather(
        *(_supersede((store, other)[index % 2], _U, "5", item) for index, item in enumerate(rivals))
    )
    equal(done.count(True), 1, "how many of six rivals stand there")
    equal(await _ids(store, _U, ItemFilter(types=[_FACTS])), [rivals[done.index(True)].id], "who does")


@_law
async def check_deleted_items_do_not_come_back(store: ItemStore, other: ItemStore) -> None:
    """However late they are put again, even if they did not exist; no other item gets their ids."""
    await store.put(_U, [_item(name, session="s") for name in "123"])
    equal(await store.delete(_U, ["1", "4", "1"]), ["1"], "what was there")
    equal(await store.delete(_U, ["1", "4"]), [], "what was there the second time")
    equal(await other.put(_U, [_item("1"), _item("4"), _item("5"), _item("1", text="else")]), ["5"], "what is new")
    equal(await store.put(Scope(user_id="u2"), [_item("1"), _item("4")]), ["1", "4"], "what is new of another user's")
    equal(await _supersede(store, _U, "2", _item("4", created_at=9.0)), False, "supersede by what was deleted")
    equal(await _ids(store), ["5", "3", "2"], "what is left")
    equal(await _purge(store, "u", session_id="s"), ["2", "3"], "what was from the session")
    equal(await other.put(_U, [_item("2", session="s"), _item("6", session="s")]), ["6"], "what the session may say")
    equal(sorted(await _purge(store, "u")), ["5", "6"], "what was the user's")
    equal(await other.put(_U, [_item(name) for name in "123456"]), [], "what is new of what was deleted")
    for attempt in range(10):
        items = [_item(f"r{attempt}-{number}") for number in range(3)]
        ids = [item.id for item in items]
        await asyncio.gather(store.put(_U, items), other.delete(_U, ids), other.put(_U, items), store.put(_U, items))
        equal(await _ids(store), [], f"what is left of a put and a deletion at once, round {attempt}")


@_law
async def check_a_deletion_deletes_exactly_the_given_items(store: ItemStore) -> None:
    """By ids, turn, session and user, any number, superseded ones too; returns what existed."""
    users = [Scope(user_id="u", agent=agent) for agent in (None, "a", "b")] + [Scope(user_id="u2")]
    for scope in users:
        for session, turn in (("s", 1), ("s", 10), ("s", None), ("s1", 1), (None, None)):
            name = f"{scope.user_id}-{scope.agent}-{session}-{turn}"
            await store.put(scope, [_item(name, _SKILL, session=session, turn=turn, superseded_at=3.0)])
    of_u = [f"u-{agent}" for agent in (None, "a", "b")]
    equal(await _purge(store, "u", session_id="s", turn_index=1), [f"{u}-s-1" for u in of_u], "a turn's")
    equal(await _purge(store, "u", session_id="s", turn_index=1), [], "a turn's again")
    equal(
        await _purge(store, "u", session_id="s"), [f"{u}-s-{turn}" for u in of_u for turn in (10, None)], "a session's"
    )
    for missing in ("S", "%", "_", "s%", "", "s'"):
        equal(await _purge(store, "u", session_id=missing), [], f"what session {missing!r} had")
    equal(await _purge(store, "u"), [f"{u}-{rest}" for u in of_u for rest in ("s1-1", "None-None")], "a user's")
    equal(len(await _dump(store)), 5, "what is left of others")
    many = [_item(f"m{number}", session="s") for number in range(1203)]
    await store.put(_U, many)
    equal(sorted(await store.delete(_U, [item.id for item in many[:603]])), sorted(i.id for i in many[:603]), "of many")
    equal(len(await _purge(store, "u")), 600, "of many of a user")
    equal(await _purge(store, "nobody"), [], "what nobody had")
    equal(await store.delete(_U, []), [], "a deletion of nothing")


@_law
async def check_the_predecessor_of_a_deleted_item_takes_over_its_end(store: ItemStore, other: ItemStore) -> None:
    """It is valid again if nothing else supersedes it, whichever method deletes, and whichever agent owns it."""

    async def chain(user: str, *sessions: str) -> Scope:
        """Put items from these sessions, each of which supersedes the one before."""
        scope = Scope(user_id=user, agent="a")
        await store.put(scope, [_item("0", _SKILL, created_at=10.0, session=sessions[0])], at=1.0)
        for number, session in enumerate(sessions[1:], 1):
            after = _item(str(number), created_at=10.0 + 10 * number, session=session)
            await store.put(scope, [after], at=1.0)
            equal(await _supersede(store, scope, str(number - 1), after), True, f"whether {number} stands there")
        return scope

    async def ends(scope: Scope) -> dict[str, tuple[float | None, str | None]]:
        return {item.id: (item.superseded_at, item.superseded_by) for item in await _all(other, scope)}

    scope = await chain("u1", "s", "s", "s", "s")
    equal(await store.delete(scope, ["1"]), ["1"], "what was there")
    expected: dict[str, tuple[float | None, str | None]] = {"0": (30.0, "2"), "2": (40.0, "3"), "3": (None, None)}
    equal(await ends(scope), expected, "ends without one in the middle")
    equal(await _ids(store, scope, ItemFilter(as_of=25.0)), ["0"], "what held while the deleted one did")
    await other.delete(Scope(user_id="u1", agent="b"), ["3", "never there"])
    equal(await ends(scope), {"0": (30.0, "2"), "2": (None, None)}, "ends without the last")
    equal(await store.delete(Scope(user_id="u2"), ["2"]), [], "a deletion of another's")
    equal(await ends(scope), {"0": (30.0, "2"), "2": (None, None)}, "ends after a deletion of another's")
    equal(await _update(store, scope, "2", "text of 2", at=50.0), True, "whether what holds again can be changed")
    await store.delete(scope, ["2"])
    equal(await _ids(store, scope, ItemFilter()), ["0"], "what holds when nothing else is left")
    equal(await _supersede(store, scope, "0", _item("4", created_at=60.0)), True, "whether it can be superseded again")

    scope = await chain("u3", "s", "t", "t", "s", "t", "t")
    await _purge(store, "u3", session_id="t")
    equal(await ends(scope), {"0": (40.0, "3"), "3": (None, None)}, "ends without a session")
    equal(await store.put(scope, [_item("1"), _item("5")]), [], "what is new of what was deleted")
    scope = await chain("u4", "s", "t", "t")
    equal(await store.delete(scope, ["2", "1"]), ["2", "1"], "two at once")
    equal(await ends(scope), {"0": (None, None)}, "ends without two at once")
    for user in ("u1", "u3", "u4"):
        await _purge(store, user)
    scope = await chain("u5", "s", "s", "s")
    await _touch(store, "u5", ["0", "2"], 6.0)
    await _touch(store, "u5", ["1"], 4.0)  # which was superseded when the next was created, and so used then
    await store.put(scope, [_item("9")], at=2.0)
    await _supersede(store, scope, "9", _item("2", created_at=3.0))
    equal(await _sweep(store, 25.0), 3, "how many are swept before the last of them was used")
    equal(await ends(scope), {"1": (None, None)}, "ends of what is left of a sweep")

    dangling = [
        _item("a", superseded_at=5.0, superseded_by="b"),
        _item("b", superseded_at=6.0, superseded_by="a"),
        _item("c", superseded_at=7.0, superseded_by="d"),
        _item("e", superseded_at=8.0),
    ]
    await store.put(_U, dangling)
    equal(await store.delete(_U, ["b", "d", "e"]), ["b", "e"], "what was there of those in circles")
    equal(await ends(_U), {"a": (None, None), "c": (None, None)}, "ends of what was in a circle, or of nothing")


@_law
async def check_counted_uses_are_counted_once(store: ItemStore, other: ItemStore) -> None:
    """Only uses later than the last one, even if the call is repeated; other changes do not count."""
    await store.put(_U, [_item("1"), _item("2"), replace(_item("3"), uses=5)], at=1.0)

    async def uses() -> list[int]:
        return [item.uses for item in (await other.get(_U, ["1", "2", "3"])).values()]

    equal(await uses(), [0, 0, 5], "uses as they were put")
    for used_at, ids in ((10.0, ["1", "3", "none"]), (11.0, ["1"]), (11.0, ["1", "2"]), (10.5, ["1"])):
        await _touch(store, "u", ids, used_at, counts=True)
    equal(await uses(), [2, 1, 6], "how often each was used")
    await _touch(other, "u", ["1"], 12.0)
    await _update(store, _U, "1", "changed", at=13.0)
    await _pin(store, _U, "1", True)
    equal(await uses(), [2, 1, 6], "uses after what does not count")
    await asyncio.gather(
        *(_touch((store, other)[index % 2], "u", ["2"], 20.0 + index, counts=True) for index in range(4))
    )
    equal((await uses())[1] in range(2, 6), True, "whether uses at once are counted, if none came late")
    await refuses(InvalidMemoryError, store.put(_U, [replace(_item("4"), uses=-1)]), "a number of uses below 0")


@_law
async def check_putting_changing_superseding_and_touching_are_uses(store: ItemStore, other: ItemStore) -> None:
    """The latest use counts. It changes nothing else, and no other user's items."""
    await store.put(_U, [_item("1"), _item("2"), _item("3", created_at=1000.0)], at=10.0)
    await store.put(_A, [_item("4", _SKILL)], at=10.0)
    await store.put(Scope(user_id="u2"), [_item("1"), _item("2")], at=10.0)

    async def used(since: float, scope: Scope = _A, **more: Any) -> set[str]:
        which = ItemFilter(used_since=since, superseded=True, **more)
        ids = set(await _ids(other, scope, which))
        equal(await _count(other, scope, which), len(ids), f"how many were used since {since}")
        return ids

    equal((await used(10.0), await used(10.1)), ({"1", "2", "3", "4"}, set()), "what was put at 10")
    async with _unchanged(store, "touches"):
        await _touch(store, "u", ["1", "4", "missing", "1"], 20.0)
        await _touch(other, "u", ["1"], 15.0)
        await _touch(store, "u", [], 99.0)
        await _touch(store, "nobody", ["1"], 99.0)
    equal((await used(20.0), await used(20.1)), ({"1", "4"}, set()), "what was touched at 20")
    equal(await used(11.0, Scope(user_id="u2")), set(), "what another has of the same id")
    await store.put(_U, [_item("1"), _item("2")], at=50.0)
    equal(await used(20.1), set(), "what was put again")
    equal(await _update(store, _U, "2", "else", at=30.0), True, "whether it was there")
    equal(await _update(store, _U, "1", "else", at=12.0), True, "whether it was there")
    equal((await used(20.0), await used(30.0)), ({"1", "2", "4"}, {"2"}), "what was changed at 30")
    await store.put(_U, [_item("5", created_at=40.0)], at=35.0)
    await _supersede(store, _U, "1", _item("5", created_at=40.0))
    equal((await used(40.0), await used(40.1)), ({"1"}, set()), "what was superseded at 40")
    equal(await used(10.0, types=[_SKILL]), {"4"}, "of a type")
    equal(await used(10.0, as_of=2.0), {"1", "2", "4"}, "of a time")
    await store.put(_U, [_item("6", created_at=1.0)])
    await _supersede(store, _U, "2", _item("7", created_at=2.0))
    equal(await used(1e9), {"6", "7"}, "what was put just now")
    await _touch(store, "u", [str(number) for number in range(1203)], 2e9)
    equal(len(await used(2e9)), 7, "what was touched of many")


@_law
async def check_items_of_many_sessions_are_deleted_together(store: ItemStore, other: ItemStore) -> None:
    """Of several users; those of other sessions and users stay, and deleted ids do not come back."""
    users = [replace(_U, user_id=f"user {number}") for number in range(3)]
    for scope in users:
        named = [
            MemoryItem(id=f"{name}{at}", text="x", source=Source(session_id=name)) for name in "ab" for at in (0, 1)
        ]
        await store.put(scope, named)
    await _supersede(store, users[0], "b0", _item("a2", created_at=3.0, session="a"))
    deleted = await delete_sessions(other, {"user 0": {"a"}, "user 1": {"a", "b"}, "user 9": {"a"}})
    found = {user_id: sorted(ids) for user_id, ids in deleted.items() if ids}
    equal(found, {"user 0": ["a0", "a1", "a2"], "user 1": ["a0", "a1", "b0", "b1"]}, "what was deleted, by user")
    left = [await _count(store, replace(scope, session_id=None), EVER) for scope in users]
    equal(left, [2, 0, 4], "what is left of each user")
    equal(await store.put(users[0], [MemoryItem(id="a0", text="x")]), [], "a deleted item that is put again")
    valid = {item.id for item in await _all(store, users[0], ALL)}
    equal(valid, {"b0", "b1"}, "what is valid, also what a deleted one had superseded")
    equal(await delete_sessions(other, {}), {}, "what is deleted of none")
    equal((await delete_sessions(other, {"user 2": {"b"}}))["user 2"], ["b0", "b1"], "what is deleted of one session")


@_law
async def check_a_sweep_deletes_unused_items(store: ItemStore, other: ItemStore) -> None:
    """Of all users and agents, the longest unused first, superseded ones too; they do not come back."""
    kinds = (_FACTS, _SKILL, _CONTEXT)
    for user in ("u", "u2"):
        for index, kind in enumerate(kinds):
            scope = Scope(user_id=user, agent="a" if index else None)
            items = [_item(f"{number}-{kind}", kind, session="s") for number in range(4)]
            for number, item in enumerate(items):
                await store.put(scope, [replace(item, superseded_at=3.0 if number == 1 else None)], at=10.0 + number)
    for limit in (0, -1):
        await refuses(InvalidInputError, _sweep(store, 5.0, limit=limit), f"a limit of {limit}")
    async with _unchanged(store, "sweeps of nothing"):
        equal(await _sweep(store, 10.0), 0, "how many were not used before any was")
        equal(await _sweep(store, 99.0, types=[]), 0, "how many of no type")
        equal(await _sweep(store, 99.0, types=[MemoryType.GOALS]), 0, "how many of a type that none has")
    equal(await _sweep(other, 13.0, types={_SKILL}), 6, "how many of a type")
    equal({fact.item.id for fact in await _dump(store) if fact.item.type is _SKILL}, {f"3-{_SKILL}"}, "what is left")
    await _touch(store, "u", [f"0-{_FACTS}"], 50.0)
    equal([await _sweep(store, 12.0, limit=2) for _ in range(5)], [2, 2, 2, 1, 0], "how many by twos")
    remaining = {(fact.user_id, fact.item.id) for fact in await _dump(store)}
    rest = {(user, f"{number}-{kind}") for user in ("u", "u2") for number in (2, 3) for kind in (_FACTS, _CONTEXT)}
    equal(remaining, rest | {(user, f"3-{_SKILL}") for user in ("u", "u2")} | {("u", f"0-{_FACTS}")}, "what is left")
    equal(await store.put(_U, [_item(f"0-{_CONTEXT}"), _item(f"1-{_SKILL}")]), [], "what comes back")
    await store.put(_U, [_item(f"m{number}") for number in range(1203)], at=1.0)
    equal(await _sweep(store, 2.0), 1000, "how many by default")
    await asyncio.gather(*(_sweep((store, other)[index % 2], 2.0, limit=50) for index in range(6)))
    equal(await _sweep(other, 2.0), 0, "how many are left of many")
    equal(await _sweep(store, float("inf")), 11, "how many there were at all")
    equal(await _dump(store), [], "what is left in the end")


@_law
async def check_a_sweep_leaves_items_that_are_used_meanwhile(store: ItemStore, other: ItemStore) -> None:
    """An item that is recorded as used was not deleted, and a deleted item is not returned."""
    for attempt in range(10):
        ids = [f"{attempt}-{number}" for number in range(20)]
        await store.put(_U, [_item(name) for name in ids], at=1.0)
        sweep = asyncio.ensure_future(_sweep(store, 2.0))
        await asyncio.gather(sweep, *(_touch(other, "u", [name], 3.0) for name in ids[::2]))
        deleted = sweep.result()
        remaining = await _ids(store, _U, ItemFilter(used_since=3.0, superseded=True))
        equal(await _count(store, _U, EVER), 20 - deleted, "what is there after a sweep")
        equal(await _sweep(store, 2.0) + deleted + len(remaining), 20, "what was swept or is used")
        await _purge(store, "u")


@_law
async def check_ids_are_literal(store: ItemStore) -> None:
    """Ids of users, agents, sessions and items match only themselves."""
    for name in IDS:
        scope = Scope(user_id=name, agent=name)
        await store.put(
            scope,
            [
                _item(item_id, kind, session=item_id, text=f"{name} {item_id}")
                for item_id, kind in ((name, _SKILL), ("x", _FACTS))
            ],
        )
    for name in IDS:
        scope = Scope(user_id=name, agent=name)
        expected = {item_id: f"{name} {item_id}" for item_id in (name, "x")}
        items = await store.get(scope, (*IDS, "x"))
        equal({item_id: item.text for item_id, item in items.items()}, expected, f"what {name!r} gets")
        equal(sorted(await _ids(store, scope)), sorted(expected), f"what {name!r} lists")
        equal(await _ids(store, scope, ItemFilter(session_id=name)), [name], f"what {name!r} has of session {name!r}")
        equal([fact.user_id for fact in await store.scan(name)], [name, name], f"what a scan of {name!r} finds")
        equal(await _ids(store, Scope(user_id=name)), ["x"], f"what {name!r} sees without its agent")
        equal(await _update(store, scope, name, f"new {name}", at=2.0), True, f"update of {name!r}")
    texts = sorted(text for name in IDS for text in (f"new {name}", f"{name} x"))
    equal(sorted(fact.item.text for fact in await _dump(store)), texts, "all texts after updates")
    remaining = list(IDS)
    while remaining:
        name = remaining.pop(0)
        if len(remaining) % 2:
            equal(await _purge(store, name, session_id=name), [name], f"the purge of session {name!r}")
        equal("x" in await _purge(store, name), True, f"the purge of {name!r}")
        equal(sorted({fact.user_id for fact in await _dump(store)}), sorted(remaining), "who is left")


@_law
async def check_a_change_replaces_one_item(store: ItemStore, other: ItemStore) -> None:
    """It gets the item as it is, or None if the scope sees none, and what it returns is stored in its place."""

    def appends(item: MemoryItem | None) -> MemoryItem:
        return _item("n", text="0") if item is None else replace(item, text=f"{item.text}+")

    new = await store.change(_U, "n", appends)
    equal(new, _item("n", text="0"), "what a change makes of nothing")
    await store.put(_U, [_item("m"), _item("n", text="else")])
    for handle in (store, other):
        await handle.change(_U, "n", appends)
    equal((await other.get(_U, ["n"]))["n"].text, "0++", "the text after changes")
    await asyncio.gather(*((store, other)[index % 2].change(_U, "n", appends) for index in range(8)))
    equal((await store.get(_U, ["n"]))["n"].text, "0" + 10 * "+", "the text after changes at once")
    equal(await _ids(store), ["m", "n"], "the items, of which the changed one keeps its place")
    equal(await store.delete(_U, ["n"]), ["n"], "what was there")
    equal(await store.put(_U, [_item("n")]), [], "what is new of what was deleted")
    await other.change(_U, "n", appends)
    equal((await store.get(_U, ["n"]))["n"].text, "0", "the text of an item that is made anew")
    await store.put(_A, [_item("a", _SKILL)])
    async with _unchanged(store, "changes that change nothing"):
        equal(await store.change(_U, "m", lambda item: item), _item("m"), "an item that stays")
        equal(await store.change(_U, "none", lambda item: None), None, "nothing that stays nothing")
        for scope in (_U, _B):
            equal(await store.change(scope, "a", lambda item: _item("a")), None, "a change of another agent's item")
        for wrong in (_item("k"), _item("m", created_at=9.0), _item("m", text=" ")):
            await refuses(InvalidMemoryError, store.change(_U, "m", _always(wrong)), f"a change to {wrong}")
        await refuses(ZeroDivisionError, store.change(_U, "m", _fails), "a change that raises")


def _always(item: MemoryItem) -> Change:
    return lambda _: item


def _fails(item: MemoryItem | None) -> MemoryItem | None:
    raise ZeroDivisionError(item and item.id)


@_law
async def check_a_scan_returns_each_item_once(store: ItemStore) -> None:
    """Of one user or of all, those of each user in the order of insertion, in pages of any size."""
    order = [("u", "1"), ("u2", "1"), ("u", "2"), ("u", "0"), ("u2", "0")]
    for index, (user, name) in enumerate(order):
        await store.put(Scope(user_id=user, agent="a"), [_item(name, _SKILL, created_at=9.0 - index)])
    await _supersede(store, _A, "2", _item("3", created_at=50.0))
    order.append(("u", "3"))
    for of_user in (None, "u", "u2", "nobody"):
        for limit in range(1, len(order) + 2):
            names: list[tuple[str, str]] = []
            page = await store.scan(of_user, limit=limit)
            names += _names(page)
            while page.cursor is not None and len(names) <= len(order):
                page = await store.scan(of_user, cursor=page.cursor, limit=limit)
                names += _names(page)
            subject = f"what a scan of {of_user!r} finds in pages of {limit}"
            expected = [entry for entry in order if of_user in (None, entry[0])]
            equal(sorted(names), sorted(expected), subject)
            for user in ("u", "u2"):
                in_order = [name for name in expected if name[0] == user]
                equal([name for name in names if name[0] == user], in_order, f"{subject}: its order for {user!r}")


def _names(store: Iterable[StoredItem]) -> list[tuple[str, str]]:
    return [(fact.user_id, fact.item.id) for fact in store]


@_law
async def check_a_cancelled_put_is_atomic(store: ItemStore) -> None:
    """Whenever it is cancelled; a repeated call completes it."""
    for number, wait_s in enumerate((None, 0, 0.0005, 0.002)):
        scope = Scope(user_id=f"u{number}")
        items = [_item(str(number)) for number in range(200)]
        task = asyncio.ensure_future(store.put(scope, items))
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.wait([task])
        equal(await _count(store, scope) in (0, 200), True, "whether a cancelled put is whole or not there")
        await store.put(scope, items)
        equal(await _count(store, scope), 200, "how many there are when it was repeated")


@_law
async def check_a_closed_store_raises(store: ItemStore) -> None:
    """Closing twice is fine; every other method then raises StoreClosedError."""
    await store.put(_U, [_item("1")])
    await store.close()
    await store.close()
    for method, call in {
        "put": store.put(_U, [_item("2")]),
        "put of nothing": store.put(_U, []),
        "get": store.get(_U, ["1"]),
        "list": store.query(_U),
        "count": _count(store, _U),
        "update": _update(store, _U, "1", "x", at=1.0),
        "change": store.change(_U, "1", lambda item: item),
        "supersede": _supersede(store, _U, "1", _item("2")),
        "delete": store.delete(_U, ["1"]),
        "purge": _purge(store, "u"),
        "touch": _touch(store, "u", ["1"], 1.0),
        "sweep": _sweep(store, 1.0),
        "scan": store.scan(),
    }.items():
        await refuses(StoreClosedError, call, f"{method} of a closed store")


LAWS: tuple[Law, ...] = tuple(_laws)
"""All laws, in order."""
