"""Attacks turnwise from outside: `make siege`. Writes the results to LAST.md beside this file.

Callers, members who reach for more than their role allows, also over HTTP, timers, messages, teams of agents, webhooks,
kills, freezes, crashes of servers, ends of programs, rival Rays, restores of older copies, bad calls, abandoned waits
and damaged archives, all at once, on SQLite, PostgreSQL and Redis in turn. The result is checked with a simple ledger
and with what `sqlite3`, `psycopg` and `redis` read from the store, without code of `turnwise.testing`.

    make siege ARGS="--minutes 20 --seed 0 --store sqlite redis"
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import ray
from siege_callers import ANSWER_S, Caller, misuse, mutate, trespass
from siege_engine import SiegeEngine, tasks_of
from siege_ledger import Entry, Ledger
from siege_members import HttpMembers, tokens_of
from siege_stores import IMPORTED, STORES, Found, Store

from processes.large_settings import OtherEngineError, orphan
from servers.http_service import on_server
from servers.webhook_receiver import Receiver
from turnwise import AsyncSessionManager, Dedicated, LexicalMemory, NotFoundError, Packed, SessionConfig, TurnwiseError
from turnwise.errors import RunEndedError
from turnwise.http import create_app
from turnwise.stores import SQLItems
from webhook_calls import ToldRuns

HERE = Path(__file__).parent
NAMESPACE = "siege"
SETTLED = {"completed", "cancelled", "failed", "interrupted"}
RIVAL_S = 90.0
DUE_S = 240.0
"""How long what is due may wait after the attack, in seconds: above a lease, and the pause after some failures."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One attacked store, with its placement, users and sessions."""

    name: str
    seed: int
    seconds: float
    users: int
    chats: int

    @property
    def sessions(self) -> list[tuple[str, str]]:
        """The sessions of each user. All users have the same ids."""
        return [(f"u{user}", f"chat-{chat}") for user in range(self.users) for chat in range(self.chats)]


class Siege:
    """The attack on one store."""

    def __init__(self, stage: Stage, store: Store, folder: Path) -> None:
        self.ledger = Ledger()
        self._stage = stage
        self._store = store
        self._folder = folder
        self._leaks = folder / "leaks.txt"
        self._dice = random.Random(f"{stage.seed}/{stage.name}")
        self._over = asyncio.Event()
        self._server = asyncio.Lock()
        """Held while the server of the store is crashed or frozen: one that is down cannot be frozen."""
        self._manager = AsyncSessionManager(
            store.url,
            engine=SiegeEngine(str(self._leaks)),
            memory=[LexicalMemory(SQLItems(f"sqlite:///{folder}/facts.db"))],
            placement=Dedicated() if stage.name == "sqlite" else Packed(hosts=2),
            config=SessionConfig(cancel_grace_s=0.5, idle_s=20.0),
            namespace=NAMESPACE,
        )
        chats = sorted({chat for _, chat in stage.sessions})
        self._callers = [
            Caller(self._manager, self.ledger, user, chat, chats=chats, seed=f"{stage.seed}/{user}/{chat}/{number}")
            for user, chat in stage.sessions
            for number in range(2)
        ]
        self._receiver = Receiver()

    async def run(self) -> None:
        """Attack for the length of the stage, then wait until everything has ended, and check the store."""
        try:
            await self._run()
        finally:
            self._receiver.close()

    async def _run(self) -> None:
        tokens = tokens_of(sorted({user for user, _ in self._stage.sessions}))
        async with on_server(create_app(self._manager, auth=tokens)) as url:
            await self._attack(HttpMembers(url, self.ledger, self._dice))
        await self._settle()
        await self._judge()
        await self._manager.close()

    async def _attack(self, members: HttpMembers) -> None:
        await self._manager.webhook(self._receiver.url, events=["run.completed"], allow_private=True)
        for user, chat in self._stage.sessions:
            await self._manager.open(chat, user_id=user)
        dedicated = self._stage.name == "sqlite"
        attacks: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self._kill, 6.0 if dedicated else 10.0),
            (self._freeze_owner, 15.0),
            (self._kill_dispatcher, 12.0),
            (self._kill_agent, 10.0),
            (self._lose_receiver, 20.0),
            (self._crash_store, 25.0),
            (self._freeze_store, 20.0),
            (self._cut, 3.0),
            (self._restore, 40.0),
            (self._rival, 60.0),
            (self._orphan, 40.0),
            (self._misuse, 1.0),
            (partial(self._trespass, members), 1.0),
            (self._import, 5.0),
        ]
        calling = [asyncio.create_task(caller.call(self._over.is_set)) for caller in self._callers]
        attacking = [asyncio.create_task(self._again(attack, pause_s)) for attack, pause_s in attacks]
        done, _ = await asyncio.wait(
            [*calling, *attacking], timeout=self._stage.seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        self._over.set()
        for task in done:
            task.result()
        await asyncio.gather(*attacking)
        for task in (await asyncio.wait(calling, timeout=4 * ANSWER_S))[1]:
            task.cancel()
            self.ledger.violate("a caller has no answer")
        await asyncio.gather(*calling, return_exceptions=True)

    async def _again(self, attack: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), self._dice.random() * 2 * pause_s)
                return
            await attack()

    # Attacks

    async def _owner(self) -> int | None:
        """Return the process that hosts one of the sessions."""
        caller = self._dice.choice(self._callers)
        with contextlib.suppress(TurnwiseError):
            return (await caller.result_of((await caller.session()).info())).pid
        return None

    async def _kill(self) -> None:
        if (pid := await self._owner()) and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.ledger.deeds["kill of an owner"] += 1

    async def _kill_dispatcher(self) -> None:
        for actor in await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True):
            if actor["namespace"] == NAMESPACE and "dispatcher" in actor["name"]:
                with contextlib.suppress(ValueError):  # it has left
                    ray.kill(ray.get_actor(actor["name"], namespace=NAMESPACE), no_restart=False)
                    self.ledger.deeds["kill of a dispatcher"] += 1

    async def _kill_agent(self) -> None:
        """Kill the process of an agent that a run has called, if one has a process."""
        with contextlib.suppress(TurnwiseError, ProcessLookupError):
            user = self._dice.choice(self._stage.sessions)[0]
            sessions = [session for session in await self._manager.list(user_id=user, agents=True) if session.called_by]
            if sessions:
                session = await self._manager.get(self._dice.choice(sessions).session_id, user_id=user)
                if (pid := (await session.info()).pid) and pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
                    self.ledger.deeds["kill of an agent's process"] += 1

    async def _lose_receiver(self) -> None:
        """Have the receiver of webhooks answer with errors for a while."""
        self._receiver.status = self._dice.choice((500, 503))
        await asyncio.sleep(1 + 3 * self._dice.random())
        self._receiver.status = 200
        self.ledger.deeds["receiver of webhooks that was away"] += 1

    async def _freeze_owner(self) -> None:
        if (pid := await self._owner()) and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.ledger.deeds["freeze of an owner"] += 1
                try:
                    await asyncio.sleep(1 + 2 * self._dice.random())
                finally:
                    os.kill(pid, signal.SIGCONT)

    async def _crash_store(self) -> None:
        if self._stage.name != "sqlite":
            async with self._server:
                await asyncio.to_thread(self._store.crash)
            self.ledger.deeds["crash of the server"] += 1

    async def _freeze_store(self) -> None:
        async with self._server:
            await asyncio.to_thread(self._store.freeze, 1 + 2 * self._dice.random())
        self.ledger.deeds["freeze of the store"] += 1

    async def _cut(self) -> None:
        """Lose the answers to all commits under way: some are stored, and no caller learns of it."""
        with contextlib.suppress(Exception):  # another attack has the server down
            if cut := await asyncio.to_thread(self._store.cut):
                self.ledger.deeds["cut of all connections"] += 1
                self.ledger.deeds["connection that was cut"] += cut

    async def _restore(self) -> None:
        """Copy the store, wait a little, and restore the copy while callers continue."""
        began = time.monotonic()
        try:
            copy = await asyncio.to_thread(self._store.copy)
        except Exception as error:  # noqa: BLE001 - another attack has the server down: no copy, no restore
            self.ledger.deeds[f"copy given up: {type(error).__name__}"] += 1
            return
        copied = began, time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), 2 + 8 * self._dice.random())
        with self.ledger.putting_back(copied):
            for _ in range(60):
                try:
                    await asyncio.to_thread(self._store.put_back, copy)
                    return
                except Exception:  # noqa: BLE001 - likewise; it is in one step, so it has not been done, or is done again
                    await asyncio.sleep(0.5)
        raise AssertionError("the copy cannot be put back")

    async def _rival(self) -> None:
        """Start a program with its own Ray, which opens one of the sessions."""
        user, chat = self._dice.choice(self._stage.sessions)
        entry = self.ledger.ask(user, chat)
        command = [str(HERE / "siege_rival.py"), self._store.url, NAMESPACE, str(self._leaks), user, chat, entry.token]
        rival = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(RIVAL_S):
                out, err = await rival.communicate()
        except TimeoutError:
            _end_tree(rival.pid)
            await rival.wait()
            self.ledger.deeds["rival Ray that was ended"] += 1
            return
        if rival.returncode:
            self.ledger.violate(f"a rival Ray failed: {err.decode(errors='replace')[-2000:]}")
            return
        done = json.loads(out.splitlines()[-1])
        if self._stage.name == "sqlite" and "error" not in done and "ray start --head" not in done["refused"]:
            self.ledger.violate(f"a rival Ray was not refused: {done}")
        if done["run_id"]:
            self.ledger.tell(entry, done["run_id"])
        self.ledger.deeds[f"rival Ray {'refused' if done['refused'] else done.get('error', 'let in')}"] += 1

    async def _orphan(self) -> None:
        """Kill the processes of a program with large settings that has ended: a session's or host's, and a memory's."""
        outcome = "could not begin"  # another attack has the store down: then it begins again
        while outcome == "could not begin" and not self._over.is_set():
            number = sum(count for deed, count in self.ledger.deeds.items() if deed.startswith("orphan"))
            placement = "dedicated" if self._stage.name == "sqlite" else "packed"
            arguments = self._store.url, f"orphan-{number}", self._folder / f"orphan-{number}", placement
            began = time.monotonic()
            try:
                outcome = await orphan(*arguments)
            except AssertionError as error:
                if isinstance(error, OtherEngineError) and self.ledger.was_restored_since(began):
                    # Its process found that the store was restored and ended, and the asker started the next one.
                    self.ledger.deeds["orphan that a restore ended, and the asker's engine went on"] += 1
                    continue
                outcome = "did not come back"
                self.ledger.violate(str(error))
            self.ledger.deeds[f"orphan with large settings, killed: {outcome}"] += 1

    async def _misuse(self) -> None:
        caller = self._dice.choice(self._callers)
        with contextlib.suppress(TurnwiseError):
            await misuse(caller, self._manager, self.ledger, caller.user, self._dice)

    async def _trespass(self, members: HttpMembers) -> None:
        """Have a user whose role does not allow it reach for another one's session: by a manager, and over HTTP."""
        caller = self._dice.choice(self._callers)
        others = sorted({user for user, _ in self._stage.sessions} - {caller.user})
        if others:
            with contextlib.suppress(TurnwiseError):  # the server is down
                await trespass(caller, self._manager, self.ledger, self._dice.choice(others), self._dice)
            await members.visit(caller, self._dice.choice(others))

    async def _import(self) -> None:
        """Import a damaged archive; if it is accepted, check that the session can be used."""
        user, chat = self._dice.choice(self._stage.sessions)
        number = self.ledger.deeds["damaged archive"]
        self.ledger.deeds["damaged archive"] += 1
        caller = next(candidate for candidate in self._callers if (candidate.user, candidate.chat) == (user, chat))
        try:
            name = await caller.result_of(mutate(self._store.url, (user, chat), number, self._dice, self.ledger))
            if name:
                session = await caller.result_of(self._manager.get(name, user_id=user))
                handle = await caller.result_of(session.run("say", if_busy="enqueue"))
                await caller.result_of(handle.wait(ANSWER_S))
        except NotFoundError:
            self.ledger.deeds["imported session that a restore took"] += 1
        except RunEndedError as error:
            if "interrupted" not in str(error):
                self.ledger.violate(f"an imported session cannot be used: {error}")
        except TurnwiseError as error:
            self.ledger.refusals[type(error).__name__] += 1

    # Judgement

    async def _settle(self) -> None:
        """Check after the attack that every session accepts a run, and that every run of the ledger has ended."""
        for user, chat in self._stage.sessions:
            caller = next(candidate for candidate in self._callers if (candidate.user, candidate.chat) == (user, chat))
            last: TurnwiseError | None = None
            for _ in range(20):
                try:
                    while await caller.release():
                        pass
                    handle, entry = await caller.run("say")
                    await caller.end(handle, entry)
                    break
                except TurnwiseError as error:
                    last = error
                    await asyncio.sleep(1.0)
            else:
                self.ledger.violate(f"{user}'s {chat} is bricked: {last!r}")
        for user, chat in self._stage.sessions:
            await self._carry_out(
                next(caller for caller in self._callers if (caller.user, caller.chat) == (user, chat))
            )

    async def _carry_out(self, caller: Caller) -> None:
        """Wait until all that a session was to do later has been done, and its runs have ended."""
        until, waiting, what = time.monotonic() + DUE_S, True, ""
        while waiting and time.monotonic() < until:
            with contextlib.suppress(TurnwiseError):
                await caller.release()
                session = await caller.session()
                scheduled = await caller.result_of(self._manager.schedules(user_id=caller.user))
                due = [delivery for delivery in scheduled if not delivery.session_id.startswith(IMPORTED)]
                info = await caller.result_of(session.info())
                waiting = bool(due or info.active_run_id)
                of = [(row.session_id, row.kind, row.key, row.due_at, row.attempts, row.why) for row in due]
                what = f"its active run is {info.active_run_id}, and at {time.time():.0f} these wait: {of}"
            await asyncio.sleep(0.5)
        if waiting:
            self.ledger.violate(f"{caller.user}'s {caller.chat} still has to do something after {DUE_S:g} s: {what}")

    async def _judge(self) -> None:
        ledger, records = self.ledger, await asyncio.to_thread(self._store.read)
        for violation in records.broken:
            ledger.violate(violation)
        for token, users in records.tokens.items():
            if len(users) != 1:
                ledger.violate(f"prompt {token} is stored {len(users)} times")
            if any(user != token.split(".")[1] for user in users):
                ledger.violate(f"prompt {token} is in a session of {users}")
        for entry in ledger.entries.values():
            if not entry.told_s:
                continue
            ledger.deeds["acknowledged prompt"] += 1
            if entry.delivery_id:
                self._judge_scheduled(entry, records)
                continue
            is_stored = entry.token in records.tokens and (not entry.run_id or entry.run_id in records.runs)
            if not is_stored and not ledger.may_be_gone(entry):
                ledger.violate(
                    f"prompt {entry.token} of run {entry.run_id} was acknowledged and is lost: {ledger.when(entry)}"
                )
            elif not is_stored:
                ledger.deeds["prompt that a restore took"] += 1
                await self._check_told(entry.run_id, entry.user)
            elif entry.run_id and records.runs[entry.run_id] not in SETTLED:
                ledger.violate(f"run {entry.run_id} has no outcome: it is {records.runs[entry.run_id]}")
            elif entry.run_id and entry.state not in (None, records.runs[entry.run_id]):
                if ledger.may_have_ended_otherwise(entry):
                    ledger.deeds["end that a restore took"] += 1
                    continue
                ledger.violate(f"run {entry.run_id} is {records.runs[entry.run_id]}, and {entry.state} was told")
        self._judge_teams(records)
        await self._judge_webhooks(records)
        for run_id, state in records.runs.items():
            if run_id.startswith("agent-") and state not in SETTLED:
                ledger.violate(f"the run {run_id} of an agent is {state}, and nobody waits for it")
            if state in SETTLED and records.ends.get(run_id) != 1:
                ledger.violate(f"run {run_id} has {records.ends.get(run_id, 0)} ends")
        if self._leaks.exists():
            for line in self._leaks.read_text(encoding="utf-8").splitlines():
                ledger.violate(f"seen by another user: {line}")

    def _judge_scheduled(self, entry: Entry, records: Found) -> None:
        runs = [run_id for run_id in records.runs if run_id.startswith(f"{entry.delivery_id}-")]
        if len(runs) > 1 or any(records.runs[run_id] not in SETTLED for run_id in runs):
            self.ledger.violate(f"schedule {entry.token} has begun {runs}, or one of them has no outcome")
        elif runs and entry.cancelled_s and not self.ledger.may_have_come_back(entry):
            self.ledger.violate(f"schedule {entry.token} was cancelled, and has begun {runs}")
        elif not runs and entry.cancel_asked_s and not entry.cancelled_s:
            self.ledger.deeds["cancel of a schedule that was not acknowledged, and was carried out"] += 1
        elif not runs and not entry.cancelled_s and not self.ledger.may_be_gone(entry):
            self.ledger.violate(f"schedule {entry.token} was acknowledged and is lost: {self.ledger.when(entry)}")

    def _judge_teams(self, records: Found) -> None:
        """Check that each agent that was called has its task once, and that a team that completed has called all."""
        for task, users in records.tasks.items():
            if len(users) != 1 or users[0] != task.split(".")[1]:
                self.ledger.violate(f"task {task} of an agent is stored for {users}")
        for entry in self.ledger.entries.values():
            if entry.is_team and entry.state == "completed" and not self.ledger.may_have_ended_otherwise(entry):
                tasks = [task.split()[0] for task in tasks_of(entry.token)]
                if lost := [task for task in tasks if task not in records.tasks]:
                    self.ledger.violate(f"run {entry.run_id} completed without its agents' {lost}")

    async def _judge_webhooks(self, records: Found) -> None:
        """Check that the receiver is told of each run that completed, by calls with one id each."""
        run_ids = [
            entry.run_id
            for entry in self.ledger.entries.values()
            if entry.run_id and entry.state == "completed" and not self.ledger.may_have_ended_otherwise(entry)
        ]
        until = time.monotonic() + DUE_S
        while ToldRuns(list(self._receiver.requests)).missing(run_ids) and time.monotonic() < until:
            await asyncio.sleep(1.0)
        receipts = ToldRuns(list(self._receiver.requests))
        self.ledger.deeds["call of a webhook"] += len(self._receiver.requests)
        self.ledger.deeds["run of which a receiver was told"] += len(run_ids)
        for problem, runs in (("told nobody", receipts.missing(run_ids)), ("several calls", receipts.doubled(run_ids))):
            for run_id in runs:
                self.ledger.violate(f"a webhook's receiver: run {run_id} completed, and {problem}")
        for violation in receipts.broken:
            self.ledger.violate(violation)

    async def _check_told(self, run_id: str | None, user: str) -> None:
        """Check that a run that was lost by a restore is reported as not found."""
        if run_id is None:
            return
        try:
            await self._manager.execution(run_id, user_id=user)
        except NotFoundError:
            self.ledger.deeds["run that a restore took, told as gone"] += 1


def _end_tree(pid: int) -> None:
    """Kill a process and its descendants by their ids."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def besiege(stage: Stage) -> Ledger:
    """Run one stage and return its ledger."""
    with tempfile.TemporaryDirectory(prefix="siege-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # the server of PostgreSQL may run under a user of its own
        store = STORES[stage.name](folder)
        ray.init("local", num_cpus=4, include_dashboard=False, configure_logging=False, log_to_driver=False)
        try:

            async def run() -> Ledger:
                siege = Siege(stage, store, folder)
                await siege.run()
                return siege.ledger

            return asyncio.run(run())
        finally:
            ray.shutdown()
            store.close()


def page(ledgers: dict[str, Ledger], minutes: float, seed: int) -> str:
    """Return the page about all stages."""
    broken = sum(len(ledger.violations) for ledger in ledgers.values())
    summary = (
        f"{minutes:g} minutes, seed {seed}; {broken} violations: nothing lost but what a restore took, nothing "
        "doubled, no run without outcome, nothing bricked, nothing seen by another user, unless one below says so."
    )
    lines = ["# The last siege", "", summary]
    for name, ledger in ledgers.items():
        lines += ["", f"## {name}", "", "| what | times |", "|---|---|"]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(ledger.deeds.items())]
        lines += ["", "| callers were refused with | times |", "|---|---|"]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(ledger.refusals.items())]
        lines += ["", *(f"- VIOLATION: {violation}" for violation in ledger.violations)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str]) -> int:
    """Attack the stores in turn; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", nargs="+", default=list(STORES), choices=list(STORES))
    parser.add_argument("--out", type=Path, default=HERE / "LAST.md")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60 / len(options.store)
    ledgers: dict[str, Ledger] = {}
    for name in options.store:
        small = name == "sqlite"
        stage = Stage(name, options.seed, seconds, users=4 if small else 6, chats=1 if small else 2)
        ledgers[name] = besiege(stage)
        options.out.write_text(page(ledgers, options.minutes, options.seed), encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))
    return 1 if any(ledger.violations for ledger in ledgers.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
