"""Laws of `SessionStore` about tenants: labels on users, and the sessions and the spending of those who have them."""

from __future__ import annotations

from turnwise.errors import InvalidIdError, InvalidInputError
from turnwise.memory.conversation.ledger import LedgerQuery, LedgerRow
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.quotas.tenants import MAX_TENANT_BYTES, Tenant
from turnwise.memory.stores.base import NO_CALLER, SessionStore
from turnwise.memory.stores.conformance.fixtures import own
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.stores.conformance.ledger import a_row

LAWS: list[Law] = []

_law = collector(LAWS)

_NAMES = ["10", "9", "A", "a", "a b", "é", "\U0001f600", "x" * MAX_TENANT_BYTES]
"""In the order of code points, which is that of their bytes."""


@_law
async def check_a_user_has_the_tenant_that_was_set_last(store: SessionStore, other: SessionStore) -> None:
    """A user needs no session for it. An activation, and the state, have the tenant of the session's user."""
    equal((await store.tenants(), await store.users("a")), ([], []), "the tenants of a new store")
    equal(await store.tenants_of(["u"]), {}, "the tenant of a new user")
    await store.set_tenant("u", None)
    for name in ("a", "b", "a", "a"):
        await store.set_tenant("u", name)
    await store.set_tenant("v", "a")
    equal(await other.tenants_of(["u", "v", "w", "u' OR '1"]), {"u": "a", "v": "a"}, "the tenants of users")
    await own(store, "s", user_id="u")
    equal((await other.state(SessionKey("s", "u"))).tenant, "a", "the tenant in the state")
    await other.set_tenant("u", "b")
    equal((await store.activate(SessionKey("s", "u"))).tenant, "b", "the tenant in the activation")
    equal(
        (await other.tenants(), await other.users("a")),
        ([Tenant(tenant="a", users=1), Tenant(tenant="b", users=1)], ["v"]),
        "the tenants",
    )
    await other.set_tenant("u", None)
    equal((await store.activate(SessionKey("s", "u"))).tenant, None, "the tenant of a user who has none any more")
    equal(
        (await other.tenants(), await other.users("b")),
        ([Tenant(tenant="a", users=1)], []),
        "the tenants that are left",
    )
    for wrong in ("", "*", ".", "a\0", "x" * (MAX_TENANT_BYTES + 1)):
        await refuses(InvalidIdError, store.set_tenant("u", wrong), f"an unusable tenant {wrong!r}")


@_law
async def check_tenants_and_their_users_are_listed_in_order(store: SessionStore, other: SessionStore) -> None:
    """In pages, by code points."""
    users = [f"user {name}" for name in _NAMES]
    for index, name in enumerate(reversed(_NAMES)):
        await store.set_tenant(f"u{index}", name)
    for user in reversed(users):
        await store.set_tenant(user, _NAMES[3])
    expected = [Tenant(tenant=name, users=1 + len(users) * (name == _NAMES[3])) for name in sorted(_NAMES)]
    names, after, limit = list[Tenant](), "", 3
    while page := await other.tenants(after=after, limit=limit):
        equal(len(page) <= limit, True, "the size of a page")
        names += page
        after = page[-1].tenant
    equal(names, expected, "the tenants")
    of_tenant, after = list[str](), ""
    while ids := await other.users(_NAMES[3], after=after, limit=2):
        of_tenant += ids
        after = ids[-1]
    equal(of_tenant, sorted([*users, f"u{len(_NAMES) - 4}"]), "the users of a tenant")
    await refuses(InvalidInputError, store.tenants(limit=0), "a page of nothing")
    await refuses(InvalidInputError, store.users("a", limit=0), "a page of nothing")


@_law
async def check_sessions_are_found_by_the_tenant_of_their_user(store: SessionStore, other: SessionStore) -> None:
    """By the one that the user has now."""
    for user, tenant in (("u", "t"), ("v", "t"), ("w", "other")):
        await store.set_tenant(user, tenant)
    agents = {"s4": "a", "s5": "a"}
    for index, user in enumerate(("u", "v", "w", "nobody", "u", "v")):
        await own(store, f"s{index}", user_id=user, agent=agents.get(f"s{index}"), created_at=float(index))

    async def check(expected: list[str], tenant: str, **filters: str) -> None:
        page = await other.query(tenant=tenant, **filters)  # type: ignore[arg-type]
        equal([session.session_id for session in page], expected, f"the sessions of {tenant!r} with {filters}")
        equal(await other.count(tenant=tenant, **filters), len(expected), f"how many of {tenant!r} with {filters}")  # type: ignore[arg-type]

    await check(["s5", "s4", "s1", "s0"], "t")
    await check(["s5", "s4"], "t", agent="a", called_by=NO_CALLER)
    await check(["s4", "s0"], "t", user_id="u")
    await check([], "t", user_id="w")
    await check(["s2"], "other", status="active")
    await check([], "none")
    first = await store.query(tenant="t", limit=3)
    rest = await store.query(tenant="t", limit=3, cursor=first.cursor)
    equal([session.session_id for session in (*first, *rest)], ["s5", "s4", "s1", "s0"], "the pages")
    await store.set_tenant("u", "other")
    await check(["s5", "s1"], "t")
    await check(["s4", "s2", "s0"], "other")
    await refuses(InvalidInputError, store.query(tenant="t", member="u"), "a tenant with a member")
    await refuses(InvalidInputError, store.count(tenant="t", member="u"), "a tenant with a member")


@_law
async def check_the_ledger_keeps_the_tenant_of_each_spending(store: SessionStore, other: SessionStore) -> None:
    """Also when the session is deleted, and when the user is forgotten."""
    for user in ("u", "v"):
        owner = await own(store, "s", user_id=user)
        await owner.commit(spent=[a_row(tenant="t"), a_row(tenant="x" * MAX_TENANT_BYTES), a_row()])

    def sums(count: int, **names: str) -> LedgerRow:
        return LedgerRow(runs=count, usage=Usage(calls=count), **names)

    expected = [sums(2, tenant=tenant) for tenant in ("", "t", "x" * MAX_TENANT_BYTES)]
    for forget in (None, store.delete(SessionKey("s", "u")), store.forget_in_ledger("u")):
        if forget:
            await forget
        equal(await other.ledger(LedgerQuery(by=("tenant",))), expected, "the ledger by tenant")
    equal(await other.ledger(LedgerQuery(tenant="t")), [sums(2)], "what a tenant has spent")
    by_user = [sums(1, user_id="", day="2026-11-29"), sums(1, user_id="v", day="2026-11-29")]
    equal(await other.ledger(LedgerQuery(tenant="t", by=("user", "day"))), by_user, "what users of a tenant have spent")
    equal(await other.ledger(LedgerQuery(tenant="t", user_id="v")), [sums(1)], "what a user of a tenant has spent")
    equal(await other.ledger(LedgerQuery(tenant="none")), [LedgerRow()], "what an unknown tenant has spent")
