"""Laws of stores that can search: what commits, forks and deletions do to the texts that search finds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnwise.errors import InvalidInputError, SessionFencedError
from turnwise.memory.conversation.blocks import CLEARED, Block, Text, User, encode
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import IDS, Owner, a_run, a_session, a_turn, own, unchanged
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.stores.search.query import parse_query
from turnwise.memory.stores.search.records import (
    MessageText,
    Searchable,
    SearchedRole,
    TextFilter,
    TextHit,
    searchable,
    text_of_blocks,
)
from turnwise.memory.values.frozen_json import freeze

LAWS: list[Law] = []
"""All laws of this file, in order. A store that cannot search obeys them."""


def _law(check: Law) -> Law:
    @functools.wraps(check)
    async def if_searchable(store: SessionStore) -> None:
        if isinstance(store, Searchable):
            await check(store)

    return collector(LAWS)(if_searchable)


async def _say(owner: Owner, index: int, *texts: str, roles: Sequence[SearchedRole] = (), at: float = 1.5) -> Span:
    """Commit a turn whose messages have these texts: a prompt, an answer and so on, unless roles are given."""
    roles = roles or [("user", "assistant")[number % 2] for number in range(len(texts))]
    blocks = [
        encode(User(text=text) if role == "user" else Text(text=text)) for text, role in zip(texts, roles, strict=True)
    ]
    size, log = owner.session.log_size, owner.session.log
    messages = [
        MessageText(
            turn_index=index,
            number=number,
            role=role,
            at=at,
            spans=(Span(log, size + number, size + number + 1),),
            text=text_of_blocks([block]),
        )
        for number, (role, block) in enumerate(zip(roles, blocks, strict=True))
    ]
    return await owner.commit(*blocks, turns=[a_turn(index, status="completed")], texts=messages)


async def _found(store: SessionStore, text: str, user_id: str = DEFAULT_USER, **filters: object) -> list[str]:
    """Return the hits of a search as `session#turn:number`."""
    texts = TextFilter(query=parse_query(text), user_id=user_id, **filters)  # type: ignore[arg-type]
    hits = await searchable(store).search_texts(texts, limit=100)
    count = await searchable(store).count_texts(texts, limit=100)
    equal(count, len(hits), f"the count of {text!r}")
    return [f"{hit.session.session_id}#{hit.turn_index}:{hit.number}" for hit in hits]


@_law
async def check_search_finds_all_words_phrases_and_beginnings(store: SessionStore) -> None:
    """All words must occur; those in quotes follow each other; the last word may be the beginning of one."""
    owner = await own(store)
    await _say(owner, 0, "We take the night train to Paris.", "The Night Train leaves at nine.")
    await _say(owner, 1, "Çok güzel: naïve Ünïcödé STRASSE 2024", "東京都へ行きます。हिन्दी में")
    await _say(owner, 2, "it's 100% ok_or not; a NEAR b AND c* OR ^d -e (f) {g}: 'h'")
    for text, expected in {
        "night train": ["s#0:1", "s#0:0"],
        "train night": ["s#0:1", "s#0:0"],
        '"night train"': ["s#0:1", "s#0:0"],
        '"train night"': [],
        '"take the night" paris': ["s#0:0"],
        "tra": ["s#0:1", "s#0:0"],
        "tra ": [],
        "tra night": [],
        "t": [],
        "naive unicode": ["s#1:0"],
        "NAÏVE ÜNI": ["s#1:0"],
        "straße": ["s#1:0"],
        "202": ["s#1:0"],
        "東京": ["s#1:1"],
        "京": ["s#1:1"],
        "京都へ": ["s#1:1"],
        "東都": [],
        "हिन्दी": ["s#1:1"],
        "100%": ["s#2:0"],
        "NEAR(a b)": ["s#2:0"],
        "c* AND ^d": ["s#2:0"],
        "ok_or": ["s#2:0"],
        "\"it's 100% ok": ["s#2:0"],
        "nothing": [],
    }.items():
        equal(await _found(store, text), expected, f"the hits of {text!r}")
    for text in ("", "  ", '"', "%_*", "x" * 2000):
        try:
            parse_query(text)
        except InvalidInputError:
            continue
        raise AssertionError(f"a search for {text!r} was not refused")


@_law
async def check_search_shows_a_user_no_texts_of_others(store: SessionStore) -> None:
    """Each user, whatever the id, finds the texts of own sessions only."""
    for user_id in IDS[:12]:
        await _say(await own(store, user_id=user_id), 0, f"common word {user_id}")
    for user_id in IDS[:12]:
        texts = TextFilter(query=parse_query("common word"), user_id=user_id)
        hits = await searchable(store).search_texts(texts)
        equal([hit.session for hit in hits], [SessionKey("s", user_id)], f"the hits of user {user_id!r}")
    equal(await _found(store, "common", "nobody"), [], "the hits of a user without sessions")


@_law
async def check_search_finds_what_is_shared_with_a_member(store: SessionStore) -> None:
    """With `shared`, texts of sessions are found of which the user is a member in that moment."""
    owners = {name: await own(store, "s", user_id=name) for name in IDS[:8]}
    for name, owner in owners.items():
        await _say(owner, 0, f"common word {name}", "common answer")
        await _say(await own(store, "private", user_id=name), 0, "common secret")
    await _say(await own(store, "mine", user_id="tom"), 0, "common mine")
    shared = dict(list(owners.items())[:5])
    for owner in shared.values():
        await owner.commit(session=replace(owner.session, members=freeze({"tom": "reader"})), joined=["tom"])
    mine = ["mine#0:0"]
    equal(await _found(store, "common", "tom"), mine, "the hits of a member in own sessions")
    equal(len(await _found(store, "common", "tom", shared=True)), 11, "the hits of a member in all sessions")
    equal(await _found(store, "secret", "tom", shared=True), [], "the hits in sessions that are not shared")
    only = await _found(store, "common", "tom", shared=True, role="assistant")
    equal(only, ["s#0:1"] * 5, "the hits of a role in shared sessions")
    texts = TextFilter(query=parse_query("common"), user_id="tom", shared=True)
    hits, cursor = list[TextHit](), None
    while page := await searchable(store).search_texts(texts, cursor=cursor, limit=3):
        hits, cursor = [*hits, *page], page[-1].cursor
    users = [hit.session.user_id for hit in hits]
    equal(users, ["tom", *(name for name in reversed(shared) for _ in range(2))], "whose sessions the hits are of")
    equal(await searchable(store).count_texts(texts, limit=4), 4, "a count that ends at its limit")
    for left, owner in enumerate(shared.values(), 1):
        await owner.commit(session=replace(owner.session, members=freeze({})), left=["tom"])
        found = await _found(store, "common", "tom", shared=True)
        equal(len(found), 11 - 2 * left, f"the hits after {left} removals")
    await _say(owners[IDS[0]], 1, "common later")
    equal(await _found(store, "common", "tom", shared=True), mine, "the hits of who is no member any more")


@_law
async def check_search_filters_by_agent_session_role_and_time(store: SessionStore) -> None:
    """Filters that are given must all match; `since` is included, `until` is not."""
    helper = await own(store, "helper", called_by="one", agent="clerk")
    await _say(helper, 0, "banana apple", at=30.0)
    equal(await _found(store, "banana", agents=False), [], "the hits without sessions of agents")
    equal(await _found(store, "banana"), ["helper#0:0"], "the hits with sessions of agents")
    first = await own(store, "one", agent="clerk", title="A trip")
    second = await own(store, "two")
    await _say(first, 0, "apple", "apple", at=10.0)
    await _say(second, 0, "apple", "apple", at=20.0)
    for filters, expected in (
        ({"agents": False}, ["two#0:1", "two#0:0", "one#0:1", "one#0:0"]),
        ({"agent": "clerk", "agents": False}, ["one#0:1", "one#0:0"]),
        ({"session_id": "two"}, ["two#0:1", "two#0:0"]),
        ({"role": "user", "until": 30.0}, ["two#0:0", "one#0:0"]),
        ({"since": 20.0, "until": 30.0}, ["two#0:1", "two#0:0"]),
        ({"until": 20.0}, ["one#0:1", "one#0:0"]),
        ({"role": "assistant", "since": 10.0, "until": 11.0, "agent": "clerk"}, ["one#0:1"]),
    ):
        equal(await _found(store, "apple", **filters), expected, f"the hits with {filters}")
    (hit, *_) = await searchable(store).search_texts(
        TextFilter(query=parse_query("apple"), user_id=DEFAULT_USER, session_id="one", role="user")
    )
    equal((hit.title, hit.agent, hit.role, hit.at), ("A trip", "clerk", "user", 10.0), "what a hit says")
    equal(len(await store.blocks(hit.spans)), 1, "the blocks of a hit")


@_law
async def check_search_filters_by_the_time_of_runs(store: SessionStore) -> None:
    """A prompt was said when its run was created, and an answer when that ended, as the run's record says too."""
    owner = await own(store)
    run = a_run("r", 0, created_at=10.25)
    end = replace(run, state="completed", ended_at=20.5)
    commits: tuple[tuple[SearchedRole, float, Block, dict[str, Any]], ...] = (
        ("user", 10.25, User(text="mango"), {"new_run": run, "turns": [a_turn(0, status="running", run_id="r")]}),
        ("assistant", 20.5, Text(text="mango"), {"runs": [end], "turns": [a_turn(0, status="completed", run_id="r")]}),
    )
    for role, at, block, commit in commits:
        size, log = owner.session.log_size, owner.session.log
        text = MessageText(
            turn_index=0, number=size, role=role, at=at, spans=(Span(log, size, size + 1),), text="mango"
        )
        await owner.commit(encode(block), texts=[text], **commit)
    hits = await searchable(store).search_texts(TextFilter(query=parse_query("mango"), user_id=DEFAULT_USER))
    equal([hit.at for hit in hits], [20.5, 10.25], "the times of hits")
    equal(await _found(store, "mango", since=10.25, until=20.5), ["s#0:0"], "the hits before the run's end")
    equal(await _found(store, "mango", since=10.5), ["s#0:1"], "the hits after the run's start")


@_law
async def check_search_pages_have_each_hit_once(store: SessionStore) -> None:
    """Hits come in the order in which they were stored, the newest first; a count ends at its limit."""
    owners = [await own(store, f"s{number}") for number in range(3)]
    for index in range(50):
        await _say(owners[index % 3], index, f"pear {index}", f"pear {index}", "fig")
    texts = TextFilter(query=parse_query("pear"), user_id=DEFAULT_USER)
    expected = [f"s{index % 3}#{index}:{number}" for index in reversed(range(50)) for number in (1, 0)]
    for limit in (7, 100):
        names: list[str] = []
        cursor: str | None = None
        while hits := await searchable(store).search_texts(texts, cursor=cursor, limit=limit):
            names += [f"{hit.session.session_id}#{hit.turn_index}:{hit.number}" for hit in hits]
            cursor = hits[-1].cursor
        equal(names, expected, f"the pages of {limit}")
    equal(await _found(store, "pear 17"), ["s2#17:1", "s2#17:0"], "the hits of an older text")
    equal(await _found(store, '"pear 17"'), ["s2#17:1", "s2#17:0"], "the hits of words in their sequence")
    equal(await _found(store, '"17 pear"'), [], "the hits of these words in another sequence")
    equal(await searchable(store).count_texts(texts, limit=3), 3, "a count that ends at its limit")
    for wrong in ("", "x", "-1", "9" * 30):
        await refuses(InvalidInputError, searchable(store).search_texts(texts, cursor=wrong), f"cursor {wrong!r}")
    for owner in owners[1:]:
        await store.delete(owner.session.key)
    for index in range(50, 150):
        await _say(owners[0], index, "grape")
    equal(len(await _found(store, "grape")), 100, "how many are found that were stored after a deletion")
    equal(len(await _found(store, "pear")), 34, "how many are found of those that stay")


@_law
async def check_texts_change_with_the_commit(store: SessionStore) -> None:
    """Dropping a turn, or its texts, and adding texts are part of the commit; a refused commit changes nothing."""
    owner = await own(store)
    for index, text in enumerate(("plum one", "plum two", "plum three")):
        await _say(owner, index, text)
    await owner.commit(dropped_turns=[0])
    equal(await _found(store, "plum"), ["s#2:0", "s#1:0"], "the hits without a dropped turn")
    await owner.commit(dropped_texts=[1])
    equal(await _found(store, "plum"), ["s#2:0"], "the hits without dropped texts")
    size = owner.session.log_size
    new = MessageText(
        turn_index=2, number=1, role="user", at=1.0, spans=(Span(owner.session.log, size, size + 1),), text="plum new"
    )
    await owner.commit(encode(User(text="plum new")), dropped_texts=[2], texts=[new])
    equal(await _found(store, "plum"), ["s#2:1"], "the hits after a replacement")
    other = Owner(store, replace(owner.session, revision=owner.session.revision + 5))
    async with unchanged(store, "s"):
        await refuses(SessionFencedError, other.commit(dropped_texts=[2], texts=[replace(new, number=7)]), "a commit")
    equal(await _found(store, "plum"), ["s#2:1"], "the hits after a refused commit")


@_law
async def check_cleared_and_deleted_texts_are_not_found(store: SessionStore) -> None:
    """Also words that only they had; texts that stay are found as before."""
    owner, stays = await own(store), await own(store, "other")
    await _say(owner, 0, "cherry gone", "cherry went")
    await _say(owner, 1, "cherry kept")
    await _say(stays, 0, "cherry other")
    cleared = [(position, encode(CLEARED)) for position in (0, 1)]
    await owner.commit(dropped_turns=[0], cleared_blocks=cleared)
    equal(await _found(store, "cherry"), ["other#0:0", "s#1:0"], "the hits after a clear")
    await store.delete(SessionKey("s"))
    equal(await _found(store, "cherry"), ["other#0:0"], "the hits after a deletion")
    again = await own(store)
    equal(await _found(store, "cherry"), ["other#0:0"], "the hits when the id is used again")
    await _say(again, 0, "cherry again")
    equal(await _found(store, "cherry"), ["s#0:0", "other#0:0"], "the hits of the new session")


@_law
async def check_a_fork_has_texts_of_its_own(store: SessionStore) -> None:
    """The message of a shared block is found in each session that shows it, and outlives the parent in the fork."""
    owner = await own(store)
    span = await _say(owner, 0, "lemon cake")
    turn = a_turn(0, status="completed", parent="s#0", prompt=(span,))
    text = MessageText(turn_index=0, number=0, role="user", at=1.5, spans=(span,), text="lemon cake")
    fork = await store.create(a_session("fork", parent="s#0", next_index=1), turn, texts=[text])
    equal(await _found(store, "lemon"), ["fork#0:0", "s#0:0"], "the hits of a shared block")
    await store.delete(SessionKey("s"))
    equal(await _found(store, "lemon"), ["fork#0:0"], "the hits without the parent")
    await store.delete(fork.key)
    equal(await _found(store, "lemon"), [], "the hits without the fork")


@_law
async def check_search_filters_by_mark(store: SessionStore) -> None:
    """Only messages that have a mark of the name are hits; other messages of their turns are not."""
    owner = await own(store)
    await _say(owner, 0, "kiwi", "kiwi")
    await _say(owner, 1, "kiwi", "kiwi")
    marks = freeze({"1": {"thumb \"'%": {"value": "NUL \0 \\u0000", "by": None, "at": 1.5}}})
    (turn, _) = await store.turns(SessionKey("s"))
    await owner.commit(turns=[replace(turn, marks=marks)])
    equal(await _found(store, "kiwi", mark="thumb \"'%"), ["s#0:1"], "the hits with a mark")
    equal(await _found(store, "kiwi", mark="thumb"), [], "the hits with a mark that no message has")
