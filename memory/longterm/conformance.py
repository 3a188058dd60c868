"""The laws of `LongTermMemory`, writable and read-only; see `stores/conformance` for how to run them.

A query shares words with the items that it must find, and none with other items, so the laws do not depend on how
strictly a memory decides which items are relevant. Items have no blocks. The laws do not apply to a memory that makes
several items of one, or leaves some out.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from turnwise.errors import InvalidInputError, InvalidMemoryError, ReadOnlyMemoryError
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import (
    LongTermMemory,
    MemoryItem,
    Mentioning,
    Reminding,
    Scope,
    Source,
    is_read_only,
    trouble_of,
)
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.stores.conformance.fixtures import IDS
from turnwise.memory.stores.conformance.laws import Law, check_law, collector, equal, refuses


async def check_memory(make_memory: Callable[[str], LongTermMemory]) -> None:
    """Check all laws, in order.

    Args:
        make_memory: opens a memory on the data of this name: nothing at first, the same for the same name. A memory
            that cannot be opened twice may be returned again.

    Raises:
        AssertionError: the memory breaks a law; names it.
    """
    for law in LAWS:
        await check_law(law, functools.partial(make_memory, law.__name__))


_laws: list[Law] = []
_law = collector(_laws)

_FACTS, _SKILL, _CONTEXT = MemoryType.FACTS, MemoryType.SKILL, MemoryType.CONTEXT
_U = Scope(user_id="u")
_A = Scope(user_id="u", agent="a")
_B = Scope(user_id="u", agent="b")

_TEXTS = (
    "Sarah plays the cello in an orchestra.",
    "The invoice of March is still unpaid.",
    "Her brother lives in Valparaíso and keeps bees.",
    "Nutzt Fahrräder lieber als Züge.",
    "休暇は八月に取る予定です。",
    "Ему нравится горький шоколад.",
    "Zucchini",
    "Order 4711-0815 was refunded on 2026-02-28.",
    "user: Which trains go to Narvik?\nassistant: The night train from Stockholm, at 18:08.",
    "'; DROP TABLE memories; -- \" \\ % _ * NEAR(lighthouse) AND OR NOT ^$ {keeper}",
    " ".join(f"The {number}th crate holds harvest{number} apples." for number in range(300)),
)
"""Texts, each with words that no other text has."""


def _item(id: str, text: str, type: MemoryType = _FACTS, *, session: str | None = None, **more: Any) -> MemoryItem:
    source = Source(session_id=session, turn_index=more.pop("turn", None))
    return MemoryItem(id=id, text=text, type=type, source=source, **{"created_at": 1.5, **more})


async def _ids(memory: LongTermMemory, scope: Scope, query: str, **options: Any) -> list[str]:
    """Return the ids of the items that share words with the query, of a memory that says so; else of all it returns.

    A memory that finds items by meaning too returns the next best ones behind them.
    """
    items = await memory.recall(scope, query, **{"limit": 1000, **options})
    return sorted(item.id for item in items if item.words or item.score is None)


async def _keep(memory: LongTermMemory, scope: Scope, items: Sequence[MemoryItem]) -> None:
    durable = set(await memory.remember(scope, items))
    equal(durable >= {item.id for item in items}, True, f"whether {[item.id for item in items]!r} are durable")


@_law
async def check_items_are_recalled_by_their_words(memory: LongTermMemory, other: LongTermMemory) -> None:
    """Of every type and script, at once, with text, type, topic, source and time unchanged."""
    items = [
        MemoryItem(
            id=f"log:{number}-{number + 1}",
            text=text,
            type=list(MemoryType)[number % len(MemoryType)],
            topic=f"topic {number}" if number % 2 else None,
            source=Source(session_id="s", turn_index=number, spans=(Span("log", number, number + 1),)),
            created_at=1763700000.5 + number,
        )
        for number, text in enumerate(_TEXTS)
    ]
    await _keep(memory, _A, items)
    for handle in (memory, other):
        for item in items:
            recalled = await handle.recall(_A, item.text)
            equal(recalled[:1], [item], f"what is recalled first by {item.text[:60]!r}")
            equal((recalled[0].superseded_at, recalled[0].updated_at), (None, None), "its times")
    equal(set(await memory.remember(_A, [])), set(), "what is durable of nothing")


@_law
async def check_recalled_items_are_sorted_by_relevance(memory: LongTermMemory) -> None:
    """Scores, if any, are from 0 to 1; no word of another query is in them; at most `limit` items."""
    await _keep(memory, _U, [_item(str(number), text) for number, text in enumerate(_TEXTS)])
    await _keep(memory, _U, [_item("crowd", "Brother Tom and a friend of his play chess on Sundays in the old town.")])
    recalled = await memory.recall(_U, _TEXTS[2])
    equal(recalled[0].id, "2", f"which of {[item.id for item in recalled]!r} is best")
    scores = [item.score for item in recalled if item.score is not None]
    equal(scores, sorted(scores, reverse=True), "scores")
    equal([score for score in scores if not 0 <= score <= 1], [], "scores that are not from 0 to 1")
    for nothing in ("Quantum chromodynamics?", "Quark quark quark", "nebula"):
        equal(await _ids(memory, _U, nothing), [], f"what has to do with {nothing!r}")
    equal(await _ids(memory, Scope(user_id="nobody"), _TEXTS[2]), [], "what nobody has")
    await _keep(memory, _U, [_item(f"bee{number}", f"Beehive number {number} gave honey.") for number in range(20)])
    for limit in (1, 2, 19):
        equal(len(await memory.recall(_U, "beehive honey", limit=limit)), limit, f"how many of {limit}")
    equal(len(await memory.recall(_U, "beehive honey")), 10, "how many by default")


@_law
async def check_remembering_may_be_repeated(memory: LongTermMemory, other: LongTermMemory) -> None:
    """In part, twice in one call, concurrently, or with another text: the first item with an id stays."""
    items = [
        _item(f"i{number}", f"Lighthouse {number} shines over harbour{number}.", created_at=10.0 + number)
        for number in range(8)
    ]
    await _keep(memory, _U, items[:4])
    await _keep(other, _U, [items[3], items[2], items[4], items[4]])
    await asyncio.gather(*(_keep((memory, other)[number % 2], _U, items[number:]) for number in range(6)))
    await _keep(memory, _U, [_item("i1", "Lighthouse of another harbour.", _SKILL, created_at=99.0)])
    recalled = await memory.recall(_U, "lighthouse", limit=100)
    equal(sorted(recalled, key=lambda item: item.id), items, "the items")
    equal((await memory.recall(_U, "Lighthouse 1 shines over harbour1."))[0], items[1], "the first that came")


@_law
async def check_an_agent_recalls_its_items_and_those_of_all_agents(memory: LongTermMemory) -> None:
    """Semantic items are for all of the user's agents; others for the agent of the scope, if any."""
    for scope in (_U, _A, _B):
        await _keep(memory, scope, [_item(f"{scope.agent}-{kind}", f"Walrus {kind}.", kind) for kind in MemoryType])
    own = [kind for kind in MemoryType if kind.category is not MemoryCategory.SEMANTIC]
    semantic = {f"{agent}-{kind}" for agent in (None, "a", "b") for kind in MemoryType if kind not in own}
    of_all = semantic | {f"None-{kind}" for kind in own}
    for scope in (_U, _A, _B, Scope(user_id="u", agent="A"), Scope(user_id="u", agent="%")):
        expected = of_all | ({f"{scope.agent}-{kind}" for kind in own} if scope in (_A, _B) else set())
        equal(set(await _ids(memory, scope, "walrus")), expected, f"what agent {scope.agent!r} recalls")
    for scope in (_U, _B):
        equal(await memory.update(scope, "a-skill", "Walrus else."), False, "update of another agent's")
        equal(await memory.forget(scope, ["a-skill"]), 0, "how many were there of another agent's")
    equal(len(await _ids(memory, _A, "walrus")), len(of_all) + len(own), "what is left of its own")


@_law
async def check_changed_items_are_found_by_their_new_names(memory: LongTermMemory) -> None:
    """And not by old names and aliases; not at all while they are resolved or expired."""
    await _keep(memory, _U, [replace(_item("1", "The user has a dog."), name="Rex"), _item("2", "Rain fell at night.")])
    equal(await memory.update(_U, "1", name="Wuffi", aliases=["Bello"], topic="pets"), True, "whether it was there")
    for query, expected in (("How old is Wuffi?", ["1"]), ("And Bello?", ["1"]), ("How is Rex?", [])):
        equal(await _ids(memory, _U, query), expected, f"what {query!r} finds")
    item, *_ = await memory.recall(_U, "Wuffi")
    equal(
        (item.text, item.topic, item.created_at),
        ("The user has a dog.", "pets", _item("1", "x").created_at),
        "the rest",
    )
    for away, back in (({"status": "resolved"}, {"status": "active"}), ({"expires_at": 5.0}, {"expires_at": None})):
        equal(await memory.update(_U, "1", **away), True, "whether it was there")
        equal(await _ids(memory, _U, "Wuffi"), [], f"what is found after {away}")
        equal(await memory.update(_U, "1", **back), True, "whether it was there")
        equal(await _ids(memory, _U, "Wuffi"), ["1"], f"what is found after {back}")
    equal(await memory.update(Scope(user_id="v"), "1", name="Max"), False, "the change of another's")
    equal(await memory.update(_U, "none", name="Max"), False, "the change of nothing")
    for wrong in ({}, {"name": ""}, {"status": "done"}, {"aliases": "Max"}):
        await refuses(InvalidMemoryError, memory.update(_U, "1", **wrong), f"a change to {wrong}")  # type: ignore[arg-type]
    equal(await _ids(memory, _U, "Wuffi"), ["1"], "what is found after what was refused")


@_law
async def check_mentions_are_all_items_that_say_a_text_or_come_from_a_turn(
    memory: LongTermMemory, other: LongTermMemory
) -> None:
    """Of a memory that is `Mentioning`: also resolved and expired ones, and never those of other users or agents."""
    if not isinstance(memory, Mentioning):
        return
    texts = ("The user rows a canoe.", "Rowed the canoe home.", "The user likes the canoe.", "Rows of figs.")
    await other.remember(_U, [_item(f"{number}", text, session="s", turn=number) for number, text in enumerate(texts)])
    await other.remember(_A, [_item("skill", "Row a canoe.", _SKILL, session="s", turn=2)])
    await other.remember(Scope(user_id="v"), [_item("theirs", texts[0], session="s", turn=2)])
    await other.update(_U, "0", status="resolved")
    await other.update(_U, "1", expires_at=5.0)
    for scope, text, turns, ids, expected in (
        (_U, "I row a canoe", (), (), ["0", "1"]),
        (_A, "I row a canoe", (), (), ["0", "1", "skill"]),
        (_U, None, [("s", 2), ("s", 9), ("t", 0)], (), ["2"]),
        (_U, None, (), ["3", "none", "theirs", "skill"], ["3"]),
        (_A, "figs in rows", [("s", 2)], ["0"], ["0", "2", "3", "skill"]),
        (_B, "figs", (), (), ["3"]),
        (_U, None, (), (), []),
    ):
        items = await memory.mentions(scope, text, turns=turns, ids=ids)
        equal(sorted(item.id for item in items), expected, f"what mentions {text!r}, or comes from {turns}")
    await refuses(InvalidInputError, memory.mentions(_U, "that I am"), "a text without a content word")


@_law
async def check_users_are_separate(memory: LongTermMemory) -> None:
    """Whatever their ids are, and whatever one of them recalls, updates or forgets."""
    scopes = {name: Scope(user_id=name, session_id=name) for name in IDS}
    for number, (name, scope) in enumerate(scopes.items()):
        await _keep(memory, scope, [_item("same", f"Otter {number} likes mussels.", session=name)])
    for number, (name, scope) in enumerate(scopes.items()):
        texts = [item.text for item in await memory.recall(scope, "Which otter likes mussels?", limit=1000)]
        equal(texts, [f"Otter {number} likes mussels."], f"what {name!r} recalls")
    for number, (name, scope) in enumerate(scopes.items()):
        equal(await memory.update(scope, "same", f"Otter {number} prefers urchins."), True, f"the update of {name!r}")
    remaining = dict(scopes)
    for name in scopes:
        scope = remaining.pop(name)
        equal(await memory.forget(scope), 1, f"how many were there of {name!r}")
        equal(await _ids(memory, scope, "otter urchins"), [], f"what {name!r} recalls then")
        for remaining_name in list(remaining)[:3]:
            equal(
                await _ids(memory, remaining[remaining_name], "otter urchins"),
                ["same"],
                f"what is left of {remaining_name!r}",
            )


@_law
async def check_a_hundred_concurrent_users_are_separate(memory: LongTermMemory, other: LongTermMemory) -> None:
    """Each recalls its own items while all remember, recall, update and forget."""

    async def live(number: int) -> None:
        scope = Scope(user_id=f"user-{number}", session_id="s", agent=f"agent-{number % 3}")
        handle = (memory, other)[number % 2]
        kinds = (_FACTS, _SKILL, _CONTEXT)
        items = [
            _item(f"i{iceberg}", f"Penguin {number} saw iceberg {iceberg}.", kind) for iceberg, kind in enumerate(kinds)
        ]
        for item in items:
            await _keep(handle, scope, [item])
            own_items = await handle.recall(scope, "Which penguin saw an iceberg?", limit=50)
            strangers = [item.text for item in own_items if not item.text.startswith(f"Penguin {number} ")]
            equal(strangers, [], f"what user {number} recalls of others")
        equal(await handle.update(scope, "i0", f"Penguin {number} swam home."), True, "the update")
        equal(await handle.forget(scope, ["i1"]), 1, "how many were forgotten")
        recalled = await handle.recall(scope, "penguin", limit=50)
        texts = [f"Penguin {number} saw iceberg 2.", f"Penguin {number} swam home."]
        equal(sorted(item.text for item in recalled), texts, f"what is left of user {number}")

    await asyncio.gather(*map(live, range(1, 101)))


@_law
async def check_filters_apply_before_the_limit(memory: LongTermMemory) -> None:
    """Filters by types, times, agents and users."""
    crowd = [_item(f"c{number}", f"Copper kettle {number} whistles.", created_at=100.0) for number in range(60)]
    await _keep(memory, _U, crowd)
    await _keep(memory, Scope(user_id="u2"), crowd)
    await _keep(memory, _B, [_item(f"b{number}", f"Copper kettle b{number} whistles.", _SKILL) for number in range(30)])
    few = [
        _item(f"f{number}", f"A kettle, f{number}, made of copper, which was dented.", _SKILL) for number in range(5)
    ]
    await _keep(memory, _A, few)
    old = [_item(f"o{number}", f"An old kettle, o{number}, once of copper.", created_at=2.0) for number in range(5)]
    await _keep(memory, _U, old)
    names = [item.id for item in few], [item.id for item in old]
    query = "copper kettle"
    equal(await _ids(memory, _A, query, types=[_SKILL], limit=5), names[0], "of a type")
    equal(await _ids(memory, _A, query, as_of=50.0, limit=10), names[0] + names[1], "of a time")
    equal(await _ids(memory, _A, query, as_of=50.0, types={_FACTS}, limit=5), names[1], "of a type and a time")
    equal(await _ids(memory, _A, query, types=[_CONTEXT]), [], "of a type that none has")
    equal(await _ids(memory, _A, query, types=[]), [], "of no type")
    equal(len(await memory.recall(_A, query, limit=70)), 70, "of all")
    await _keep(memory, Scope(user_id="u3"), old[:2])
    equal(await _ids(memory, Scope(user_id="u3"), query, limit=2), names[1][:2], "of a user with few")


@_law
async def check_the_session_is_not_a_filter(memory: LongTermMemory) -> None:
    """Items belong to the user, whichever session they are from and whichever session recalls."""
    await _keep(memory, Scope(user_id="u", session_id="s1"), [_item("1", "Falcons nest on the tower.", session="s1")])
    await _keep(memory, Scope(user_id="u", session_id="s2"), [_item("2", "Falcons hunt at dawn.", session="s2")])
    for session in (None, "s1", "s2", "s3"):
        scope = Scope(user_id="u", session_id=session)
        equal(await _ids(memory, scope, "falcons"), ["1", "2"], f"what session {session!r} recalls")


@_law
async def check_an_update_changes_text_and_type(memory: LongTermMemory, other: LongTermMemory) -> None:
    """By the recalled id. The old text is not found, the time stays, and no copy is left."""
    before, after, query = "Marmots sleep in burrows.", "The invoice is due on Friday.", "invoice due Friday"
    for number, kind in enumerate(MemoryType):
        own_scope, other_scope = (Scope(user_id=f"u{number}", agent=agent) for agent in ("a", "b"))
        await _keep(memory, own_scope, [_item("i", before, kind, created_at=5.0 + number, session="s")])
        (recalled,) = await memory.recall(own_scope, before)
        equal(await other.update(own_scope, recalled.id, after), True, "whether it was there")
        equal(await _ids(memory, own_scope, "marmots burrows"), [], "what is found by the old words")
        (changed,) = await memory.recall(own_scope, query)
        fields = (changed.id, changed.text, changed.type, changed.created_at, changed.source)
        equal(fields, (recalled.id, after, kind, 5.0 + number, recalled.source), "the item after an update")
        for to in (_SKILL, _FACTS, _CONTEXT):
            equal(await memory.update(own_scope, recalled.id, after, type=to), True, "whether it was there to be moved")
            under = {kind: await _ids(other, own_scope, query, types=[kind]) for kind in MemoryType}
            equal([kind for kind, ids in under.items() if ids], [to], "the types that it is found under")
            expected = ["i"] if to is _FACTS else []
            equal(await _ids(memory, other_scope, query), expected, f"what another agent recalls of it as {to}")
        (moved,) = await memory.recall(own_scope, query)
        equal((moved.created_at, moved.text), (5.0 + number, after), "what was moved")
    scope = Scope(user_id="u0", agent="a")
    for missing in ("j", "", "%", "I", " i"):
        equal(await memory.update(scope, missing, "Badgers dig."), False, f"update of {missing!r}")
    equal(await memory.update(Scope(user_id="u99"), "i", "Badgers dig."), False, "update of another's")
    equal(await _ids(memory, scope, "badgers dig"), [], "items that such updates made")


@_law
async def check_an_updated_item_is_not_found_by_its_old_name(memory: LongTermMemory, other: LongTermMemory) -> None:
    """Nor by an alias or a topic that only the old text has."""
    scope = Scope(user_id="u")
    bramble = replace(_item("i", "Bramble is a tabby marmot."), name="Bramble", aliases=("Brambs",), topic="tabby")
    await _keep(memory, scope, [bramble])
    for old in ("Bramble", "Brambs", "tabby"):
        equal(await _ids(memory, scope, f"{old} marmot"), ["i"], f"what {old!r} finds before the update")
    equal(await other.update(scope, "i", "The invoice is due on Friday."), True, "whether it was there")
    for old in ("Bramble", "Brambs", "tabby"):
        equal(await _ids(memory, scope, old), [], f"what {old!r} finds after the update")


@_law
async def check_forgotten_items_are_gone(memory: LongTermMemory, other: LongTermMemory) -> None:
    """By ids, session and user, of every type, in any number; returns how many."""
    items = [
        _item(f"{session}-{kind}-{number}", f"Heron {number} waded through {session} mud.", kind, session=session)
        for session in ("s", "s1", "S")
        for kind in MemoryType
        for number in range(6)
    ]
    other_scope = Scope(user_id="u2")
    for scope, part in ((_A, items[::2]), (_U, items[1::2]), (other_scope, items)):
        await _keep(memory, scope, part)
    names = {item.id for item in items}

    async def remaining_ids(scope: Scope = _A) -> set[str]:
        return set(await _ids(other, scope, "Which heron waded through mud?"))

    equal(await remaining_ids(), names, "what there is")
    equal(await memory.forget(_A, []), 0, "how many of no ids")
    equal(await memory.forget(_A, ["no such id", "", "%"]), 0, "how many of unknown ids")
    forgotten = [item.id for item in items if item.id.endswith(("0", "1"))]
    equal(await memory.forget(_A, [*forgotten, *forgotten, "no such id"]), len(forgotten), "how many of those ids")
    equal(await memory.forget(_A, forgotten), 0, "how many the second time")
    equal(await remaining_ids(), names - set(forgotten), "what is left of the ids")
    rest = [name for name in names - set(forgotten) if name.startswith("s-")]
    equal(await memory.forget(Scope(user_id="u", session_id="s", agent="a")), len(rest), "how many of the session")
    equal(await remaining_ids(), names - set(forgotten) - set(rest), "what is left of the session")
    for missing in ("%", "_", "s%", "s2"):
        equal(await memory.forget(Scope(user_id="u", session_id=missing)), 0, f"how many of session {missing!r}")
    equal(await memory.forget(_U), len(names) - len(forgotten) - len(rest), "how many of the user")
    equal((await remaining_ids(), await remaining_ids(_U)), (set(), set()), "what is left of the user")
    equal(await remaining_ids(other_scope), names, "what is left of another")
    equal(await memory.forget(Scope(user_id="nobody")), 0, "how many of nobody")


@_law
async def check_forgotten_items_do_not_come_back(memory: LongTermMemory, other: LongTermMemory) -> None:
    """However late they are saved again, as by a repeated flush; they count as durable, so nobody retries."""
    items = [_item(f"i{number}", f"Puffin {number} fishes.", session="s") for number in range(6)]
    await _keep(memory, _U, items[:4])
    equal(await memory.forget(_U, ["i0", "i5"]), 1, "how many were there")
    await _keep(other, _U, items)
    equal(await _ids(memory, _U, "puffin"), ["i1", "i2", "i3", "i4"], "what there is of what was given again")
    equal(await memory.forget(Scope(user_id="u", session_id="s")), 4, "how many of the session")
    await _keep(memory, _U, items)
    equal(await _ids(other, _U, "puffin"), [], "what there is of the session")
    for attempt in range(5):
        late_items = [_item(f"r{attempt}-{number}", f"Puffin {attempt} dives {number}.") for number in range(3)]
        names = [item.id for item in late_items]
        await asyncio.gather(_keep(memory, _U, late_items), other.forget(_U, names), _keep(other, _U, late_items))
        equal(await _ids(memory, _U, "puffin"), [], f"what there is when it was given and forgotten at once, {attempt}")


@_law
async def check_a_turn_is_forgotten_by_its_index(memory: LongTermMemory, other: LongTermMemory) -> None:
    """All items of the turn, of all agents, and no others; they do not come back."""
    items = [
        _item(
            f"{agent}-{session}-{turn}",
            f"Magpie {agent} {session} {turn} hides rings.",
            kind,
            session=session,
            turn=turn,
        )
        for agent, kind in (("a", _SKILL), ("b", _CONTEXT), ("None", _FACTS))
        for session, turn in (("s", 1), ("s", 10), ("s", 0), ("s1", 1), ("s", None), (None, 1))
    ]
    scopes = {"a": _A, "b": _B, "None": _U}
    other_scope = Scope(user_id="u2")
    for item in items:
        await _keep(memory, scopes[item.id.partition("-")[0]], [item])
    await _keep(memory, other_scope, items)

    async def remaining_ids(scope: Scope) -> set[str]:
        return set(await _ids(other, scope, "Which magpie hides rings?"))

    names = {agent: await remaining_ids(scope) for agent, scope in scopes.items()}
    for agent, session, turn, count in (("a", "s", 1, 3), (None, "s", 0, 3), ("c", "s", 7, 0), ("a", "s1", 10, 0)):
        scope = Scope(user_id="u", session_id=session, agent=agent)
        equal(await memory.forget(scope, turn_index=turn), count, f"how many of turn {turn} of {session!r}")
        equal(await memory.forget(scope, turn_index=turn), 0, f"how many of turn {turn} of {session!r} again")
    deleted = {f"{agent}-s-{turn}" for agent in scopes for turn in (0, 1)}
    for item in items:
        await _keep(other, scopes[item.id.partition("-")[0]], [item])
    for agent, scope in scopes.items():
        equal(await remaining_ids(scope), names[agent] - deleted, f"what is left of {agent!r}")
    equal(await remaining_ids(other_scope), {item.id for item in items}, "what is left of another user")
    of_session = Scope(user_id="u", session_id="s")
    await refuses(InvalidInputError, memory.forget(_U, turn_index=1), "a turn of no session")
    await refuses(InvalidInputError, memory.forget(of_session, ["a-s-10"], turn_index=10), "a turn and ids")
    equal(await remaining_ids(_A), names["a"] - deleted, "what is left when that was refused")
    equal(await memory.forget(of_session), 6, "how many of the rest of the session")


@_law
async def check_the_predecessor_of_a_forgotten_item_is_valid_again(
    memory: LongTermMemory, other: LongTermMemory
) -> None:
    """Unless it is forgotten too or another item supersedes it, whichever way the item is deleted."""
    ways: dict[str, tuple[tuple[Scope, Sequence[str] | None, int | None], ...]] = {
        "id": ((_U, ["second"], None),),
        "turn": ((Scope(user_id="u", session_id="t", agent="c"), None, 2),),
        "session": ((Scope(user_id="u", session_id="t"), None, None),),
        "both": ((_U, ["second", "third"], None),),
        "one by one": ((_U, ["third"], None), (_U, ["second"], None)),
    }
    for number, (way, calls) in enumerate(ways.items()):
        user = f"u{number}"
        items = [
            _item("first", "Linnet one sings.", session="s", created_at=1.0, superseded_at=5.0, superseded_by="second"),
            _item("second", "Linnet two sings.", session="t", turn=2, created_at=5.0),
        ]
        if "third" in str(calls):
            items[1] = replace(items[1], superseded_at=9.0, superseded_by="third")
            items.append(_item("third", "Linnet three sings.", session="v", created_at=9.0))
        await _keep(memory, Scope(user_id=user), items)
        equal(await _ids(memory, Scope(user_id=user), "linnet sings"), [items[-1].id], f"what holds before, by {way}")
        for scope, ids, turn in calls:
            equal(
                await memory.forget(replace(scope, user_id=user), ids, turn_index=turn) > 0, True, f"forgetting, {way}"
            )
        recalled = await other.recall(Scope(user_id=user), "linnet sings")
        equal([(item.id, item.superseded_by) for item in recalled], [("first", None)], f"what holds then, by {way}")
    middle = [
        _item("first", "Linnet one sings.", created_at=1.0, superseded_at=5.0, superseded_by="second"),
        _item("second", "Linnet two sings.", created_at=5.0, superseded_at=9.0, superseded_by="third"),
        _item("third", "Linnet three sings.", created_at=9.0),
    ]
    await _keep(memory, _U, middle)
    equal(await memory.forget(_U, ["second"]), 1, "how many in the middle")
    for as_of, expected in ((None, ["third"]), (7.0, ["first"]), (10.0, ["third"])):
        equal(await _ids(other, _U, "linnet sings", as_of=as_of), expected, f"what holds at {as_of}")


@_law
async def check_as_of_returns_past_items(memory: LongTermMemory) -> None:
    """Later items are not included, also if a prompt reminds of them."""
    times = (10.0, 20.0, 30.5)
    await _keep(memory, _U, [_item(f"i{time}", f"Glacier seen at {time}.", created_at=time) for time in times])
    for as_of in (9.9, 10.0, 19.9, 20.0, 30.4, 30.5, 1e12):
        expected = [f"i{time}" for time in times if time <= as_of]
        equal(await _ids(memory, _U, "glacier", as_of=as_of), expected, f"what there was at {as_of}")
    equal(await _ids(memory, _U, "glacier"), [f"i{time}" for time in times], "what there is")
    if isinstance(memory, Reminding):
        await _keep(memory, _U, [_item("late", "The password of the lighthouse is heron.", created_at=40.0)])
        for as_of, is_there in ((39.0, False), (40.0, True)):
            reminder = await memory.remind(_U, "What is the password of the lighthouse?", as_of=as_of)
            reminds = any("heron" in item.text for item in reminder.items)
            equal(reminds, is_there, f"whether a prompt reminds at {as_of}")


@_law
async def check_items_changed_later_are_no_part_of_the_past(memory: LongTermMemory, other: LongTermMemory) -> None:
    """Nor are those that were deleted. A recall of a time at which a changed item was there says that it lacks some."""
    names = ("changed", "kept", "deleted")
    await _keep(memory, _U, [_item(name, f"The {name} harbour is deep.", created_at=10.0) for name in names])
    equal(await memory.update(_U, "changed", "The changed harbour is shallow now."), True, "whether it was changed")
    equal(await memory.forget(_U, ["deleted"]), 1, "how many were deleted")
    past = await other.recall(_U, "harbour", as_of=20.0)
    equal([item.id for item in past], ["kept"], "what was")
    equal(trouble_of(past) is None, False, "whether it says that it may lack items")
    equal(trouble_of(await other.recall(_U, "harbour", as_of=9.0)), None, "what is missing before there was any")
    equal(await _ids(other, _U, "harbour"), ["changed", "kept"], "what there is")
    equal(await _ids(other, _U, "harbour", as_of=1e12), ["changed", "kept"], "what there will be")


@_law
async def check_expired_and_resolved_items_are_not_recalled(memory: LongTermMemory, other: LongTermMemory) -> None:
    """Names and aliases of the others are returned."""
    ends = {"never": None, "ahead": 32_503_680_000.0, "past": 10.0}
    items = [_item(name, f"The {name} ferry leaves.", expires_at=end) for name, end in ends.items()]
    items.append(_item("resolved", "The resolved ferry leaves.", status="resolved"))
    items.append(_item("named", "The named ferry leaves.", name="Huckleberry", aliases=("Hucky", "小船")))
    await _keep(memory, _U, items)
    equal(await _ids(other, _U, "ferry leaves"), ["ahead", "named", "never"], "what is recalled")
    equal(await _ids(other, _U, "ferry leaves", as_of=9.0), [item.id for item in sorted(items, key=_id)], "what was")
    (recalled,) = [item for item in await other.recall(_U, "named ferry leaves") if item.id == "named"]
    equal(recalled, items[-1], "an item with names")


def _id(item: MemoryItem) -> str:
    return item.id


@_law
async def check_closing_twice_is_fine(memory: LongTermMemory) -> None:
    """Also after items were saved."""
    await _keep(memory, _U, [_item("1", "A heron.")])
    await memory.close()
    await memory.close()


LAWS: tuple[Law, ...] = tuple(_laws)
"""All laws, in order."""


# The laws of read-only memories

READ_ONLY_ITEMS = (
    MemoryItem(id="leave", text="Parental leave is sixteen weeks.", type=MemoryType.FACTS, created_at=1.5),
    MemoryItem(id="lift", text="In a fire nobody takes the elevator.", type=MemoryType.INSTRUCTIONS, created_at=2.5),
    *(
        MemoryItem(id=f"desk {number}", text=f"Desk {number} stands in hall{number}.", created_at=3.5)
        for number in range(20)
    ),
)
"""The items of the read-only memory."""

_READERS = (
    Scope(user_id="u", session_id="s", agent="a"),
    Scope(user_id="user-1"),
    Scope(user_id="user-10", session_id="t"),
)


async def check_read_only_memory(make_memory: Callable[[Sequence[MemoryItem]], LongTermMemory]) -> None:
    """Check that all users recall the items by their words, the best first, and that none can change them.

    Args:
        make_memory: makes a memory of these items.

    Raises:
        AssertionError: the memory breaks a law; names it.
    """
    memory = make_memory(READ_ONLY_ITEMS)
    equal(is_read_only(memory), True, "whether it says that it is for reading")
    for _ in range(2):
        for scope in _READERS:
            for item in READ_ONLY_ITEMS:
                equal(list(await memory.recall(scope, item.text))[:1], [item], f"what is first by {item.text!r}")
        await _check_filters(memory)
        for scope in _READERS:
            await _check_refusals(memory, scope)
    results = await asyncio.gather(*(memory.recall(scope, "parental leave", limit=1) for scope in _READERS * 20))
    equal({tuple(item.id for item in result) for result in results}, {("leave",)}, "what many recall at once")
    await memory.close()
    await memory.close()


async def _check_filters(memory: LongTermMemory) -> None:
    scope = _READERS[0]
    equal(len(await memory.recall(scope, "Which desk stands where?", limit=3)), 3, "how many of 3")
    typed = await memory.recall(scope, "fire elevator leave", types=[MemoryType.INSTRUCTIONS])
    equal([item.id for item in typed], ["lift"], "what is of a type")
    past = await memory.recall(scope, "fire elevator leave", as_of=2.0)
    equal([item.id for item in past], ["leave"], "what held before the other came")
    equal(list(await memory.recall(scope, "Quantum chromodynamics?")), [], "what has to do with nothing")


async def _check_refusals(memory: LongTermMemory, scope: Scope) -> None:
    item = MemoryItem(id="new", text="Parental leave is a year.", created_at=9.0)
    await refuses(ReadOnlyMemoryError, memory.remember(scope, [item]), "remember")
    await refuses(ReadOnlyMemoryError, memory.update(scope, "leave", item.text), "update")
    await refuses(ReadOnlyMemoryError, memory.forget(scope, ["leave"]), "forget one")
    await refuses(ReadOnlyMemoryError, memory.forget(scope), "forget all")
