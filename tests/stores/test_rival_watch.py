"""Which other owners of a store have ended, by the connections that the store shows."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.memory.stores.store_owner import RivalWatch, Shared, StoreOwner

A, B = "10.0.0.1:6379", "process-7-on-elsewhere"


class Shown(Shared):
    """A store that shows some owners."""

    def __init__(self, *others: str) -> None:
        self.others = list(others)

    def own(self, owner: StoreOwner) -> None:
        pass

    async def rivals(self) -> Sequence[str]:
        return list(self.others)


async def test_an_owner_that_was_seen_has_ended_once_it_has_gone() -> None:
    store = Shown(A, B)
    watch = RivalWatch(store)
    for _ in range(2):
        assert await watch.look() == [A, B]
        assert not watch.has_ended(A) and not watch.has_ended(B)
    store.others.remove(A)
    for _ in range(3):
        await watch.look()
        assert watch.has_ended(A) and not watch.has_ended(B)
    store.others.append(A)
    await watch.look()
    assert not watch.has_ended(A)


async def test_an_owner_that_was_never_seen_has_ended_once_and_lives_afterwards() -> None:
    """It had ended before, or the store does not show its connections."""
    watch = RivalWatch(Shown())
    await watch.look()
    assert watch.has_ended(A) and not watch.has_ended(A) and watch.has_ended(B) and not watch.has_ended(B)
