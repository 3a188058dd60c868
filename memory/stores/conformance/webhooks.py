"""Laws of `SessionStore` about webhooks: who is told of what happens in sessions, and the calls that tell them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from turnwise.errors import DeliveryChangedError, InvalidInputError, WebhookChangedError
from turnwise.memory.conversation.events import RunFailed
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord, calls_of, new_secret
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import a_delivery, a_session, eventful, unchanged
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)

KEY = SessionKey("s")


def a_webhook(webhook_id: str = "w", **values: object) -> WebhookRecord:
    """Return a webhook that is told of failed runs."""
    fields = {"url": "https://example.org/hook?a=%C3%BC", "events": ("run.failed",)}
    return WebhookRecord(webhook_id=webhook_id, **{**fields, "secret": new_secret(), **values})  # type: ignore[arg-type]


FULL_WEBHOOK = a_webhook(
    "full",
    events=("run.completed", "session.ended"),
    user_id="default",
    allow_private=True,
    is_enabled=False,
    previous_secret=new_secret(),
    previous_until=0.1 + 0.2,
    created_at=1763700000.1234567,
)
"""A webhook with a value in each field."""


@_law
async def check_webhooks_come_back_as_they_were_added(store: SessionStore, other: SessionStore) -> None:
    """They are listed by id, and gone after a removal."""
    equal(await store.webhooks(), [], "the webhooks of a new store")
    second = a_webhook("w2")
    for webhook in (second, FULL_WEBHOOK):
        await store.change_webhook(None, webhook)
    equal(await other.webhooks(), [FULL_WEBHOOK, second], "the webhooks")
    await other.change_webhook(second, None)
    equal(await store.webhooks(), [FULL_WEBHOOK], "the webhooks after a removal")


@_law
async def check_a_change_of_a_webhook_is_compared_first(store: SessionStore, other: SessionStore) -> None:
    """It is refused for another revision, and after a removal. Of many changes at once one is made."""
    first = a_webhook()
    await store.change_webhook(None, first)
    afters = [replace(first, url=f"https://example.org/{index}", revision=2) for index in range(10)]
    verbs = [(store, other)[index % 2].change_webhook(first, after) for index, after in enumerate(afters)]
    outcomes = await asyncio.gather(*verbs, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, WebhookChangedError)]
    equal((outcomes.count(None), len(refused)), (1, 9), f"changes and refusals of {outcomes}")
    equal(refused[0].webhook_id, "w", "the webhook in the error")
    second = afters[outcomes.index(None)]
    for before, after in ((None, first), (first, None), (first, second), (a_webhook("none"), None)):
        await refuses(WebhookChangedError, store.change_webhook(before, after), f"a change of {before}")
    equal(await other.webhooks(), [second], "the webhooks after refused changes")
    unusable = replace(second, url="http://example.org", revision=3)
    for before, after in ((None, None), (second, unusable)):
        await refuses(InvalidInputError, store.change_webhook(before, after), "a change that cannot be stored")


@_law
async def check_calls_are_stored_with_the_commit_that_they_tell_of(store: SessionStore, other: SessionStore) -> None:
    """All or nothing. They are due, and no list of other deliveries has them."""
    owner = await eventful(store)
    webhooks = [a_webhook("w"), a_webhook("w2")]
    event = RunFailed(session_id="s", user_id="default", seq=8, at=4.5, run_id="r", turn_index=1, why="it\0 broke")
    calls = calls_of(webhooks, [event])
    stale = DeliveryChange(a_delivery("none"), None)
    async with unchanged(store, "s"):
        refused = owner.prepare("c", events=[event], deliveries=[*calls, stale])
        await refuses(DeliveryChangedError, store.commit(KEY, 1, refused), "a commit with a stale change")
    equal(await other.deliveries(webhook_id="w"), [], "the calls after a refused commit")
    await owner.commit("c", events=[event], deliveries=calls)
    stored = [change.after for change in calls if change.after]
    for webhook_id, call in zip(("w", "w2"), stored, strict=True):
        equal(await other.deliveries(webhook_id=webhook_id), [call], f"the calls of {webhook_id}")
        of_session = await other.deliveries(user_id="default", session_id="s", webhook_id=webhook_id)
        equal(of_session, [call], f"the session's calls of {webhook_id}")
    equal([delivery.kind for delivery in await other.deliveries()], ["prompt"] * 3, "the deliveries that are no calls")
    due = [delivery for delivery in await other.due(5.0) if delivery.kind == "call"]
    equal(due, sorted(stored, key=lambda call: call.delivery_id), "what is due")


@_law
async def check_calls_of_a_webhook_are_read_page_by_page(store: SessionStore, other: SessionStore) -> None:
    """By their ids, of all users or of one; a session that is deleted takes its calls along."""
    events = [
        RunFailed(session_id="s", user_id=user, seq=seq, at=4.5, run_id=f"r{seq}", why="")
        for seq, user in enumerate(("ann", "bob") * 4)
    ]
    for user in ("ann", "bob"):
        await store.create(a_session(user_id=user))
    calls = sorted(
        (change.after for change in calls_of([a_webhook("w"), a_webhook("v")], events) if change.after),
        key=lambda call: call.delivery_id,
    )
    for call in calls:
        await store.add_delivery(call)
    own = [call for call in calls if call.delivery_id.startswith("~w~")]
    first = await other.deliveries(webhook_id="w", limit=5)
    equal(first, own[:5], "the first page")
    equal(await other.deliveries(webhook_id="w", after=first[-1].delivery_id), own[5:], "the second page")
    anns = [call for call in own if call.user_id == "ann"]
    equal(await other.deliveries(user_id="ann", webhook_id="w"), anns, "the calls of a user")
    await store.delete(SessionKey("s", "bob"))
    equal(await other.deliveries(webhook_id="w"), anns, "the calls after a session was deleted")


@_law
async def check_ids_tell_calls_from_other_deliveries(store: SessionStore, other: SessionStore) -> None:
    """A call has an id that begins with a tilde, and no other delivery has one that sorts behind it."""
    await store.create(a_session())
    wrong = (a_delivery("a", kind="call"), a_delivery("b", delivery_id="~w~b"), a_delivery("c", delivery_id="ü"))
    for delivery in wrong:
        await refuses(InvalidInputError, store.add_delivery(delivery), f"an id of {delivery}")
    equal((await other.due(100.0)).items, (), "what is due")
