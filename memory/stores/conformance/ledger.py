"""Laws of the ledger: what commits add to it, how it is summed up, and what deletions leave of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from turnwise.errors import SessionFencedError
from turnwise.memory.conversation.ledger import COLUMNS, LedgerField, LedgerQuery, LedgerRow, Spent, rows_of
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.quotas.tenants import MAX_TENANT_BYTES
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.fixtures import IDS, TEXT, USAGE, own
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.values.ids import MAX_BYTES
from turnwise.memory.values.records import replace

LAWS: list[Law] = []

_law = collector(LAWS)

_ALL: tuple[LedgerField, ...] = tuple(COLUMNS)


def a_row(day: str = "2026-11-29", model: str = "m", tool: str = "", kind: str = "run", **values: Any) -> LedgerRow:
    """Return what a commit adds to the ledger: by default, one run with one call of a model, of no tenant."""
    values = {"tenant": "", "engine": "", "runs": 1, "usage": Usage(calls=1), **values}
    return LedgerRow(day=day, model=model, tool=tool, kind=kind, **values)


async def _check_sums(store: SessionStore, expected: Sequence[LedgerRow], *by: LedgerField, **filters: Any) -> None:
    """Check the sums of the ledger, split by these fields."""
    equal(await store.ledger(LedgerQuery(by=by, **filters)), list(expected), f"the ledger by {by} of {filters}")


@_law
async def check_a_commit_adds_to_the_ledger(store: SessionStore) -> None:
    """Rows of one key are added up exactly, in one commit and over several; a refused commit adds nothing."""
    await _check_sums(store, [LedgerRow()])
    await _check_sums(store, [], *_ALL)
    owner = await own(store, "s", user_id="u", agent="a")
    spent = replace(USAGE, cost=0.000_000_003, counted_tokens=2)
    owned = {"user_id": "u", "agent": "a", "session_id": "s"}
    row = a_row(usage=spent)
    await owner.commit(spent=[row, a_row(model="other", runs=0)])
    await owner.commit(spent=[row, row])
    await owner.commit()
    times_3 = {name: 3 * value for name, value in vars(spent).items()}
    whole = a_row(runs=3, usage=Usage(**{**times_3, "seconds": 3703.703673, "cost": 0.000_000_009}), **owned)
    rest = a_row(model="other", runs=0, **owned)
    await _check_sums(store, [whole, rest], *_ALL)
    total = whole.usage + rest.usage
    await _check_sums(store, [LedgerRow(runs=3, usage=total)])
    stale = Commit(session=owner.session.committed(), spent=[row])
    await refuses(SessionFencedError, store.commit(SessionKey("s", "u"), 99, stale), "a stale owner")
    await _check_sums(store, [LedgerRow(runs=3, usage=total)], user_id="u")


@_law
async def check_the_ledger_is_split_by_each_field(store: SessionStore) -> None:
    """By any fields in any order, with sums in the order of their values; between two days, which both count."""
    days, models, tools = ("2025-12-31", "2026-01-01", "2026-01-02"), ("m", TEXT.replace("\0", "")[:32]), ("", "look")
    for user, agent in (("u", None), ("u", "a"), ("v", "a")):
        owner = await own(store, f"{user} {agent}", user_id=user, agent=agent)
        rows = itertools.product(days, models, tools)
        await owner.commit(spent=[a_row(day, model, tool, "summary", engine=f"e{tool}") for day, model, tool in rows])

    def sums(count: int, **names: str) -> LedgerRow:
        return LedgerRow(runs=count, usage=Usage(calls=count), **names)

    await _check_sums(store, [sums(36)])
    await _check_sums(store, [sums(12, day=day) for day in days], "day")
    await _check_sums(store, [sums(24, user_id="u"), sums(12, user_id="v")], "user")
    await _check_sums(store, [sums(12, agent=""), sums(24, agent="a")], "agent")
    await _check_sums(store, [sums(18, model=model) for model in sorted(models)], "model")
    await _check_sums(store, [sums(18, tool=tool) for tool in tools], "tool")
    await _check_sums(store, [sums(36, kind="summary")], "kind")
    await _check_sums(store, [sums(18, engine=engine) for engine in ("e", "elook")], "engine")
    pairs = [sums(2, tool=tool, day=day) for tool in tools for day in days]
    await _check_sums(store, pairs, "tool", "day", user_id="u", agent="a")
    await _check_sums(store, [sums(12, day=day) for day in days[1:]], "day", since=days[1])
    await _check_sums(store, [sums(12, day=day) for day in days[:2]], "day", until=days[1])
    await _check_sums(store, [sums(12)], since=days[1], until=days[1])
    await _check_sums(store, [sums(0)], since="2026-01-03")
    await _check_sums(store, [], "day", since=days[1], until=days[0])


@_law
async def check_the_ledger_takes_the_longest_names(store: SessionStore) -> None:
    """Also if all names of a row are as long as they can be, and cannot be compressed."""
    dice = random.Random(7)  # noqa: S311 - not for secrets

    def longest(size: int) -> str:
        return "".join(chr(dice.randrange(0x4E00, 0x9F00)) for _ in range(size // 3))

    user, session, agent = (longest(MAX_BYTES) for _ in range(3))
    owner = await own(store, session, user_id=user, agent=agent)
    spent = Spent.on(Usage(calls=1), kind="extraction", model=longest(300), tool=longest(300), engine=longest(300))
    rows = [replace(row, tenant=longest(MAX_TENANT_BYTES)) for row in rows_of(spent, (), 0.0)]
    await owner.commit(spent=rows)
    await owner.commit(spent=rows)
    (row,) = await store.ledger(LedgerQuery(by=_ALL))
    equal((row.user_id, row.session_id, row.agent, row.usage.calls), (user, session, agent, 2), "the row")


@_law
async def check_names_in_the_ledger_match_only_themselves(store: SessionStore) -> None:
    """An id that resembles another one has sums of its own."""
    for index, name in enumerate(IDS):
        owner = await own(store, name, user_id=name, agent=name)
        await owner.commit(spent=[a_row(model=name[:32], usage=Usage(calls=index))])
    for index, name in enumerate(IDS):
        expected = LedgerRow(runs=1, usage=Usage(calls=index))
        await _check_sums(store, [expected], user_id=name)
        await _check_sums(store, [expected], agent=name)
        await _check_sums(store, [replace(expected, session_id=name)], "session", user_id=name)
    for filters in ({"user_id": "user"}, {"agent": ""}, {"user_id": "user-1", "agent": "user-10"}):
        await _check_sums(store, [LedgerRow()], **filters)


@_law
async def check_the_ledger_outlives_sessions(store: SessionStore) -> None:
    """The rows of a deleted session lose its id, and are added to equal ones. A new session of its id has its own."""
    for name, user in (("s", "u"), ("t", "u"), ("s", "v")):
        owner = await own(store, name, user_id=user, agent="a")
        await owner.commit(spent=[a_row(), a_row("2026-11-30"), a_row(tool="look")])
    await store.delete(SessionKey("s", "u"))
    sums = [LedgerRow(session_id=name, runs=3, usage=Usage(calls=3)) for name in ("", "t")]
    await _check_sums(store, sums, "session", user_id="u")
    await _check_sums(store, [replace(sums[0], session_id="s")], "session", user_id="v")
    owner = await own(store, "s", user_id="u", agent="a")
    await owner.commit(spent=[a_row()])
    await store.delete(SessionKey("t", "u"))
    twice: dict[str, Any] = {"user_id": "u", "agent": "a", "session_id": "", "runs": 2, "usage": Usage(calls=2)}
    deleted = [a_row(**twice), a_row(tool="look", **twice), a_row("2026-11-30", **twice)]
    new = a_row(user_id="u", agent="a", session_id="s")
    await _check_sums(store, [deleted[0], deleted[1], new, deleted[2]], *_ALL, user_id="u")
    await _check_sums(store, [LedgerRow(runs=10, usage=Usage(calls=10))])


@_law
async def check_the_ledger_forgets_users(store: SessionStore) -> None:
    """What a forgotten user has spent stays without the user and the sessions, for each agent."""
    for name, user, agent in (("s", "u", "a"), ("t", "u", "a"), ("x", "u", "b"), ("s", "v", "a"), ("y", "w", "a")):
        owner = await own(store, name, user_id=user, agent=agent)
        await owner.commit(spent=[a_row(), a_row(tool="look")])
    await store.delete(SessionKey("t", "u"))
    for user in ("u", "w", "nobody", "u"):
        await store.forget_in_ledger(user)
    await _check_sums(store, [LedgerRow()], user_id="u")
    by: tuple[LedgerField, ...] = ("user", "agent", "session", "tool")
    rows = [
        LedgerRow(user_id=user, agent=agent, session_id=session, tool=tool, runs=count, usage=Usage(calls=count))
        for user, agent, session, count in (("", "a", "", 3), ("", "b", "", 1), ("v", "a", "s", 1))
        for tool in ("", "look")
    ]
    await _check_sums(store, rows, *by)
    owner = await own(store, "z", user_id="u", agent="a")
    await owner.commit(spent=[a_row()])
    await _check_sums(store, [LedgerRow(session_id="z", runs=1, usage=Usage(calls=1))], "session", user_id="u")
