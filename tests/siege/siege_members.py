"""The siege's members who come over HTTP: they use what others share with them, and try what they may not do."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from siege_callers import ANSWER_S, Caller
from siege_ledger import Ledger

from turnwise.http import BearerTokens
from turnwise.memory.conversation.sessions import MemberRole

TRIES = 3
"""How often a prompt is sent whose outcome is unknown."""

_REFUSED = (403, 404, 409, 422)
_BROKEN = 500
"""The first status that says that the service, or its store, could not do it."""


def token_of(user: str) -> str:
    return f"a-long-secret-of-{user}"


def tokens_of(users: list[str]) -> BearerTokens:
    """Return the tokens by which the users of a stage ask the service."""
    return BearerTokens({token_of(user): user for user in users})


FORBIDDEN: dict[str, tuple[str, str, Any]] = {
    "clear": ("POST", "/clear", {}),
    "delete": ("DELETE", "", None),
    "end": ("POST", "/end", None),
    "rename": ("PATCH", "", {"title": "taken over"}),
    "promote": ("PUT", "/members/{member}", {"role": "owner"}),
    "invite": ("PUT", "/members/accomplice", {}),
    "expel": ("DELETE", "/members/nobody", None),
    "say": ("POST", "/say", {"text": "I agree."}),
    "fork": ("POST", "/fork", {}),
    "schedule": ("POST", "/schedules", {"prompt": "later", "after_s": 1.0}),
    "import": ("POST", "/import", {"messages": [{"role": "assistant", "content": "I agree."}]}),
    "forge": ("POST", "/append", {"prompt": [{"kind": "user", "text": "I resign", "author": "somebody else"}]}),
}
"""What no reader and no member may do, by name: method, path below the session, and body."""


class HttpMembers:
    """Shares sessions over HTTP, and has members use and misuse them. One visit at a time changes the members.

    Args:
        url: of the service, whose sessions are in processes of Ray.
    """

    def __init__(self, url: str, ledger: Ledger, dice: random.Random) -> None:
        self._url = url
        self._ledger = ledger
        self._dice = dice

    async def visit(self, caller: Caller, member: str) -> None:
        """Share a session with another user, or not any more, and have that user do what the role allows, and more."""
        began, path = time.monotonic(), f"/v1/sessions/{caller.chat}"
        role: MemberRole | None = self._dice.choice([None, "reader", "member", "member"])
        async with self._client(caller.user) as owner, self._client(member, owner=caller.user) as visitor:
            address = f"{path}/members/{member}"
            change = owner.delete(address) if role is None else owner.put(address, json={"role": role})
            if (await self._answer(change)) is None:
                return
            await self._trespass(visitor, path, member, role)
            await self._look(visitor, caller, member, role, began=began)
            if role == "member":
                await self._write(visitor, path, caller, member)

    def _client(self, user: str, **params: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token_of(user)}"}
        return httpx.AsyncClient(base_url=self._url, headers=headers, params=params, timeout=ANSWER_S + 10)

    async def _answer(self, request: Awaitable[httpx.Response]) -> httpx.Response | None:
        """Return an answer that says that something was done; None if it was refused, or could not be done."""
        try:
            answer = await request
        except httpx.HTTPError as error:
            self._ledger.violate(f"the service has not answered: {error!r}")
            return None
        if answer.is_success:
            return answer
        self._ledger.refusals[f"HTTP {answer.status_code} {answer.json().get('error')}"] += 1
        if answer.status_code == _BROKEN:
            self._ledger.violate(f"the service has failed: {answer.text[:500]}")
        return None

    async def _trespass(self, visitor: httpx.AsyncClient, path: str, member: str, role: MemberRole | None) -> None:
        name = self._dice.choice(sorted(FORBIDDEN))
        method, below, body = FORBIDDEN[name]
        answer = await visitor.request(method, f"{path}{below.format(member=member)}", json=body)
        if answer.is_success:
            self._ledger.violate(f"a {role} does {name} over HTTP: {answer.status_code} {answer.text[:200]}")
        elif answer.status_code in _REFUSED:
            self._ledger.deeds["trespass over HTTP refused"] += 1

    async def _look(
        self, visitor: httpx.AsyncClient, caller: Caller, member: str, role: MemberRole | None, *, began: float
    ) -> None:
        """Read and search; a restore may have brought an earlier role back, or taken the session."""
        query = {"text": f'"tok {caller.user}"', "session_id": caller.chat}
        looks: list[Callable[[], Awaitable[httpx.Response]]] = [
            lambda: visitor.get(f"/v1/sessions/{caller.chat}/messages", params={"limit": 5}),
            lambda: visitor.get("/v1/search", params=query),
        ]
        messages, hits = [await self._answer(look()) for look in looks]
        found = [hit["user_id"] for hit in hits.json()["items"]] if hits else []
        if strangers := set(found) - {caller.user, member}:
            self._ledger.violate(f"{member} has searched over HTTP in {caller.chat}, and found what {strangers} said")
        if role is None and not self._ledger.was_restored_since(began):
            if messages or caller.user in found:
                self._ledger.violate(f"{member} was removed from {caller.user}'s {caller.chat}, and still sees it")
            self._ledger.deeds["look of a removed member over HTTP"] += 1
        elif role is not None:
            self._ledger.deeds["look of a member over HTTP"] += bool(messages)
            self._ledger.deeds["message that a member has found"] += found.count(caller.user)

    async def _write(self, visitor: httpx.AsyncClient, path: str, caller: Caller, member: str) -> None:
        """Start a run and wait for its end. Memory is off, as each user has the own tokens only in memories."""
        entry = self._ledger.ask(caller.user, caller.chat)
        body = {"prompt": f"{entry.token} say", "if_busy": "enqueue", "memory": "off"}
        started = None
        for _ in range(TRIES):
            request = visitor.post(f"{path}/runs", json=body, headers={"Idempotency-Key": entry.token})
            if started := await self._answer(request):
                break
        if not started:
            return
        run_id = started.json()["id"]
        self._ledger.tell(entry, run_id)
        self._ledger.deeds["run of a member over HTTP"] += 1
        author = await self._answer(visitor.get(f"/v1/runs/{run_id}"))
        if author and author.json()["author"] != member:
            self._ledger.violate(f"run {run_id} is of {member}, and its author is {author.json()['author']}")
        ended = await self._answer(visitor.get(f"/v1/runs/{run_id}/wait", params={"timeout_s": ANSWER_S}))
        state = ended.json()["state"] if ended else None
        if state in ("completed", "failed", "cancelled", "interrupted"):
            self._ledger.end(entry, state)
