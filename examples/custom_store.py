"""A session store of your own: it keeps sessions in another store, and leaves a line in a file for each change.

    pip install turnwise
    python examples/custom_store.py

It is made by composition: what it does not change, it passes on. A store for a database of your own has the same
methods; `turnwise.stores.InMemoryStore` is the shortest complete one. The example checks the laws of stores first.
"""

import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from turnwise import EchoEngine, SessionManager
from turnwise.conformance import check_session_store
from turnwise.stores import Commit, InMemoryStore, SessionKey, SessionRecord, SessionStore, SQLStore


def passed_on(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method that asks the store within."""

    async def method(self: "AuditedStore", *args: Any, **options: Any) -> Any:
        return await getattr(self.within, name)(*args, **options)

    return method


class AuditedStore:
    """A store that writes down who changed what, after each change is durable.

    It must pickle, since each process that uses the store has its own; so it opens nothing before the first call.
    """

    is_local = True  # it opens files, so its sessions stay on this node

    def __init__(self, within: SessionStore, trail: Path) -> None:
        self.within, self._trail = within, trail

    async def create(self, session: SessionRecord, *more: Any, **options: Any) -> SessionRecord:
        created = await self.within.create(session, *more, **options)
        self._note("create", created.key)
        return created

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        """Raises what the store within raises; then nothing is written down."""
        await self.within.commit(key, epoch, commit)
        runs = {run.run_id: run.state for run in (*filter(None, [commit.new_run]), *commit.runs)}
        self._note("commit", key, blocks=len(commit.blocks), runs=runs)

    async def delete(self, key: SessionKey, **options: Any) -> int:
        turns = await self.within.delete(key, **options)
        self._note("delete", key)
        return turns

    def _note(self, verb: str, key: SessionKey, **more: Any) -> None:
        line = {"at": round(time.time(), 3), "verb": verb, "user": key.user_id, "session": key.session_id, **more}
        with self._trail.open("a", encoding="utf-8") as file:  # lines this short are appended whole
            file.write(f"{json.dumps(line)}\n")

    now, get, state, activate = map(passed_on, ("now", "get", "state", "activate"))
    try_writing, close = map(passed_on, ("try_writing", "close"))
    blocks, turns, events, event_of_key = map(passed_on, ("blocks", "turns", "events", "event_of_key"))
    run, runs, run_of_key = map(passed_on, ("run", "runs", "run_of_key"))
    delivery, deliveries, due = map(passed_on, ("delivery", "deliveries", "due"))
    add_delivery, change_delivery = map(passed_on, ("add_delivery", "change_delivery"))
    lease_deliveries, webhooks, change_webhook = map(passed_on, ("lease_deliveries", "webhooks", "change_webhook"))
    query, count, unsettled, expired = map(passed_on, ("query", "count", "unsettled", "expired"))
    ledger, forget_in_ledger = map(passed_on, ("ledger", "forget_in_ledger"))
    quotas, quota_counters = map(passed_on, ("quotas", "quota_counters"))
    set_tenant, tenants_of, tenants, users = map(passed_on, ("set_tenant", "tenants_of", "tenants", "users"))
    set_quota, remove_quota, use_quotas = map(passed_on, ("set_quota", "remove_quota", "use_quotas"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        trail, stores = Path(folder, "laws.jsonl"), defaultdict[str, InMemoryStore](InMemoryStore)
        asyncio.run(check_session_store(lambda law: AuditedStore(stores[law], trail)))
        print(f"AuditedStore keeps the laws; {len(trail.read_text().splitlines())} changes were written down")

        trail = Path(folder, "trail.jsonl")
        store = AuditedStore(SQLStore(f"sqlite:///{folder}/chats.db"), trail)
        with SessionManager(store, engine=EchoEngine()) as manager:
            chat = manager.open("plans", user_id="sarah")
            print(chat.run("Hello!").wait().text)
            chat.delete()
        for line in map(json.loads, trail.read_text(encoding="utf-8").splitlines()):
            print(" ", line["verb"], line["session"], *line.get("runs", {}).values())


if __name__ == "__main__":
    main()
