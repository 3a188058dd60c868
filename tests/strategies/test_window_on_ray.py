"""The context window, end to end: real actors, real SQLite files, real kills, the real openai client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_agents_on_ray import is_alive, results
from test_sessions_on_ray import kill, python

from engines import ScriptedEngine, process_of
from patience import until
from stored.audit import store_of
from tools.agent_tools import prompt
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import (
    CompactionError,
    ConfigError,
    InvalidInputError,
    RunCancelledError,
    RunFailedError,
    WindowOverflowError,
)
from turnwise.memory.conversation.blocks import (
    Summary,
    System,
    ToolResult,
    ToolUse,
    decode as decode_block,
)
from turnwise.memory.conversation.events import CompactionFailed, RunStarted, WindowCompacted
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.openai_chat import decode, encode
from turnwise.memory.values.records import replace
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.summary_task import PROMPT
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.replies import text_of, tokens_of
from windows.bench import (
    CALL,
    COUNTER,
    LIMIT,
    MODEL,
    RAMBLE,
    SMALL,
    WAIT_S,
    Bench,
    Fact,
    answer,
    ask,
    audit,
    compacted,
    configured,
    events_of,
    exchanges,
    facts,
    facts_of,
    gone_from,
    noted,
    respond,
    summary_of,
    talk,
    talk_until_due,
    tokens_taken,
)
from windows.models import Gate, Notebook, OnlyTheNewest, dig

"""What a request may take, in bytes: some eight exchanges."""


"""What has a summarizer misbehave, in its prompt."""


"""What a summarizer is shown of a block: who, and what."""


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=respond) as provider:
        yield provider


@pytest.fixture
def bench(make_manager: Callable[..., SessionManager], provider: LocalProvider) -> Bench:
    return Bench(make_manager, provider)


@pytest.fixture
def ray_bench(make_ray_manager: Callable[..., SessionManager], provider: LocalProvider) -> Bench:
    return Bench(make_ray_manager, provider)


# A conversation

READ = """
import json, sys
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.memory.providers.openai_chat import encode
manager = SessionManager(sys.argv[1], engine=EchoEngine(), namespace=sys.argv[2], placement=InProcess(), read_only=True)
turns = manager.get("chat", user_id="ada").turns()
print(json.dumps([encode(turn.blocks[: len(turn.blocks) - len(turn.output)]) for turn in turns]))
"""


def test_forty_turns_in_a_small_window(bench: Bench, tmp_path: Path, namespace: str) -> None:
    """Cases 34, 37, 39 and 43: each request fits, and what is not in it is in its summary, which was paid for once."""
    manager = bench.manager(bench.summarize())
    chat = manager.open("chat", user_id="ada")
    for number in range(40):
        new = {0: [System(text="Be kind.")], 20: [System(text="Be brief.")]}.get(number, [])
        assert chat.run(*new, ask(number)).wait(WAIT_S).text == answer(number)
    chat.compact()  # waits for what is under way
    done = compacted(chat, len(events_of(chat, WindowCompacted)))
    bench.check()
    assert (
        len(bench.sent_requests()) == 40
        and not events_of(chat, CompactionFailed)
        and not events_of(chat, RunFailedError)
    )
    assert all(event.strategy == "Summarize" and event.tokens_after < event.tokens_before <= LIMIT for event in done)

    # Each block that went was shown once, behind the summary of what went before it.
    shown = bench.summed_up()
    assert len(done) == len(shown) >= 6
    summarized = [fact for _, told_of in shown for fact in told_of]
    assert summarized == exchanges(0, len(summarized) // 2)
    until_now = 0
    ends = []
    for index, (earlier, told_of) in enumerate(shown):
        assert earlier == (f"Talked of p00 to p{until_now - 1:02}" if index else None)
        until_now += len(told_of) // 2
        ends.append(until_now)

    # The summary is in each request from its commit on, in front of what it does not stand for.
    marks = {event.seq: end for event, end in zip(done, ends, strict=True)}
    for number, (start, body) in enumerate(zip(events_of(chat, RunStarted), bench.sent_requests(), strict=True)):
        at_least = max((end for seq, end in marks.items() if seq < start.seq), default=0)
        system, *rest = body["messages"]
        assert system == {"role": "system", "content": "Be brief." if number >= 20 else "Be kind."}
        sent_facts = facts(rest)
        first = int(sent_facts[0][1].split()[-1][1:]) + 1 if sent_facts[0][0] == "summary" else 0
        assert first >= at_least and first in (0, *ends)
        assert sent_facts[bool(first) :] == [*exchanges(first, number), ("user", ask(number))]

    # Earlier turns read as they were sent, in another process too, and each stands for all that was said.
    reader = python(READ, f"sqlite:///{tmp_path}/chats.db", namespace)
    turns = audit(manager, "chat", user_id="ada")
    summary = summary_of(turns[-1])
    behind = chat.expand(summary)
    assert facts_of(behind) == exchanges(0, len(behind) // 2)
    assert [*behind, *turns[-1].blocks[2:]] == [
        block for turn in turns for block in turn.new_blocks if not isinstance(block, System)
    ]
    assert json.loads(reader.communicate(timeout=WAIT_S)[0]) == [body["messages"] for body in bench.sent_requests()]
    assert reader.returncode == 0

    # What the summaries cost is in the bill.
    usage = chat.info().session.usage
    requests = [*bench.sent_requests(), *bench.sent_requests(SMALL)]
    assert usage.calls == len(requests) == 40 + len(done)
    assert usage.input_tokens == sum(
        len(tokens_of(text_of(message))) for body in requests for message in body["messages"]
    )
    spent_in_all = manager.usage(user_id="ada", by=["kind"])
    assert spent_in_all.total == replace(usage, seconds=round(usage.seconds, 6))
    assert [(row.kind, row.usage.calls) for row in spent_in_all] == [("run", 40), ("summary", len(done))]
    (spent,) = {event.usage.calls for event in done if event.usage}
    assert spent == 1 and all(event.usage for event in done)


async def test_the_async_family_explains_compacts_and_expands(bench: Bench, tmp_path: Path, namespace: str) -> None:
    """And a summary may come from the other API."""
    settings: Any = {"engine": bench.engine(), "namespace": namespace, "placement": InProcess()}
    small = bench.engine(SMALL, api="responses")
    early = Summarize(small, max_summary_tokens=150, trigger_ratio=0.5)
    async with AsyncSessionManager(
        f"sqlite:///{tmp_path}/chats.db", overflow=early, config=configured(max_context_tokens=1400), **settings
    ) as opened:
        chat = await opened.open("chat")
        assert await chat.compact() is None
        for number in range(6):
            await (await chat.run(ask(number)))
        assert await chat.compact(explain=True) is None, "it is under its trigger"
        for number in range(6, 12):
            await (await chat.run(ask(number)))
        await chat.compact()
        await chat.append(ask(12))
        pending = await chat.latest()
        assert pending and (await (await chat.start())).text == answer(12)
        assert bench.last() == encode(pending.blocks), "what waits is shown as it will be sent"
        behind = await chat.expand(summary_of(pending))
        assert facts_of(behind) == exchanges(0, len(behind) // 2) != []
        assert all(body["instructions"].startswith(PROMPT) for body in bench.sent_requests(SMALL))


# Slow summarizers


def test_a_slow_summarizer_delays_only_prompts_that_do_not_fit(bench: Bench, tmp_path: Path) -> None:
    """Case 40. The summarizer is let go only when all that must not wait for it is done."""
    gate = Gate(tmp_path)
    gate.before.on()
    manager = bench.manager(bench.summarize(gate))
    chat, second = manager.open("chat"), manager.open("other")
    number = talk_until_due(chat)
    noted(gate, "came")

    talk(second, 0, 3)
    assert len(chat.turns()) == number and chat.latest() == chat.turn(number - 1) and chat.events()
    assert chat.run("short").wait(WAIT_S).text.startswith("as to short")
    assert facts(bench.last())[:-1] == exchanges(0, number), "it was sent what there was"
    request_count = len(bench.sent_requests())

    long = chat.run(f"long {'z' * 200}")  # does not fit, so it waits
    queued = chat.run("behind", if_busy="enqueue")
    talk(second, 3, 5)
    assert len(chat.turns()) == number + 3 and chat.info().active_run_id == long.run_id
    assert long.status() == "running" and queued.status() == "queued"
    assert len(bench.sent_requests()) == request_count + 2, "the other's"
    assert gate.notes() == ["came"] and not events_of(chat, WindowCompacted) and not bench.sent_requests(SMALL)

    gate.before.off()
    assert long.wait(WAIT_S).text.startswith("as to long")
    assert queued.wait(WAIT_S).text.startswith("as to behind")
    models = [record.body["model"] for record in bench.provider.requests]
    assert models[: request_count + 4] == [*[MODEL] * (request_count + 2), SMALL, MODEL], (
        "it was taken over, not made again"
    )
    sent_facts = facts(bench.sent_requests()[request_count + 2]["messages"])
    assert sent_facts[0][0] == "summary" and sent_facts[-3][1] == "short" and sent_facts[-1][1].startswith("long")
    (earlier, summarized) = bench.summed_up()[0]
    assert earlier is None and [*summarized, *sent_facts[1:-3]] == exchanges(0, number)
    chat.compact()
    bench.check()
    audit(manager, "chat")


def test_a_summary_is_applied_once_whatever_happens_to_waiting_runs(bench: Bench, tmp_path: Path) -> None:
    """Cases 8, 37 and 40: they are cancelled, interrupted and rolled back, which no slow summarizer delays."""
    gate = Gate(tmp_path)
    gate.before.on()
    manager = bench.manager(bench.summarize(gate))
    chat = manager.open("chat")
    number = talk_until_due(chat)
    noted(gate, "came")
    first = chat.run(f"first {'z' * 180}")
    assert first.cancel("never mind")
    second = chat.run(f"second {'z' * 180}")
    third = chat.run(f"third {'z' * 180}", if_busy="interrupt")
    last = chat.run("short", if_busy="rollback")
    for run in (first, second, third):
        with pytest.raises(RunCancelledError) as cancelled:
            run.wait(WAIT_S)
        assert (cancelled.value.turn is None) is (run is third), "what was rolled back left no trace"
    assert len(bench.sent_requests()) == number and gate.notes() == ["came"] and not events_of(chat, WindowCompacted)
    gate.before.off()
    assert last.wait(WAIT_S).text.startswith("as to short")
    (who, _), *rest = facts(bench.last())
    assert who == "summary" and [text.split()[0] for _, text in rest[-3:]] == ["first", "second", "short"]
    assert [*bench.summed_up()[0][1], *rest[:-3]] == exchanges(0, number)
    chat.compact()
    bench.check()
    audit(manager, "chat")


def test_a_run_cancelled_during_its_summary_has_the_usage_of_the_summary(bench: Bench, tmp_path: Path) -> None:
    """Cases 8 and 37: nothing was under way beside it, so it asked for the summary itself."""
    gate = Gate(tmp_path)
    gate.after.on()
    manager = bench.manager(bench.summarize(gate))
    chat = manager.open("chat")
    talk(chat, 0, 6)
    long = chat.run(f"long {'z' * 300}")
    noted(gate, "came", "answered")
    assert long.cancel("never mind")
    usage = chat.runs()[-1].usage
    assert usage and usage.calls == 1 and usage.input_tokens > 0 and chat.info().session.usage.calls == 6 + 1
    gate.after.off()
    chat.compact()
    chat.run("short").wait(WAIT_S)
    chat.compact()
    assert chat.info().session.usage.calls == len(bench.provider.requests)
    bench.check()
    audit(manager, "chat")


def test_a_failed_summary_is_reported_and_requested_again(bench: Bench) -> None:
    """Case 37, by the real client: whatever is wrong with an answer, and then one that is right at the second try."""
    limit = {"max_context_tokens": 3000, "compaction_attempts": 1}
    settings: dict[str, Any] = {"max_summary_tokens": 150, "trigger_ratio": 0.1}
    number = 0
    chat = bench.manager(None).open("chat")
    for fault, more, reason in (
        ("/empty", "", "returned nothing"),
        ("/length", "", r"\(cut\)"),
        ("/500", "", "You asked for a 500"),
        ("/cut", "", "cut the connection"),
        ("/stall", "", "sent nothing"),
        ("", CALL, r"\(tool_call\)"),
        ("", RAMBLE, r"\(oversize\)"),
    ):
        model = bench.engine(f"{SMALL}{fault}", timeout_s=0.3)
        chat = bench.manager(Summarize(model, prompt=f"{PROMPT} {more}", **settings), limit).open("chat")
        talk(chat, number, number + 4)
        number += 4
        with pytest.raises(CompactionError, match=reason):
            chat.compact()
        assert re.search(reason, events_of(chat, CompactionFailed)[-1].why)
    talk(chat, number, number + 1)
    assert facts(bench.last())[:-1] == exchanges(0, number) and not events_of(chat, WindowCompacted)

    failed = len(events_of(chat, CompactionFailed))
    model = bench.engine(f"{SMALL}/500-once")
    manager = bench.manager(Summarize(model, **settings), {**limit, "compaction_attempts": 2})
    chat = manager.open("chat")
    talk(chat, number + 1, number + 2)
    chat.compact()
    compacted(chat, 1)
    assert [(event.attempt, event.of) for event in events_of(chat, CompactionFailed)[failed:]] == [(1, 2)]
    talk(chat, number + 2, number + 3)
    assert facts(bench.last())[0][0] == "summary"
    chat.compact()
    assert chat.info().session.usage.calls == len(bench.provider.requests), "failures were paid for too"
    bench.check(3000)
    audit(manager, "chat")


# Kills


def kill_when(path: Path, chat: Session, count: int) -> None:
    """SIGKILL the session's process as soon as so many compactions are in the store."""
    pid = process_of(chat.info())
    with closing(sqlite3.connect(path, timeout=30.0)) as database:

        def is_there() -> bool:
            (count_row,) = database.execute("SELECT COUNT(*) FROM turnwise_events WHERE kind = 'window_compacted'")
            return bool(count_row[0] >= count)

        until(is_there)
        os.kill(pid, signal.SIGKILL)


def test_a_kill_during_a_compaction_loses_nothing(ray_bench: Bench, tmp_path: Path) -> None:
    """Case 41: before the summarizer is asked, when it has answered, and as soon as the commit is there."""
    gate = Gate(tmp_path)
    manager = ray_bench.manager(ray_bench.summarize(gate))
    chat = manager.open("chat")
    number, paid = 0, 0
    for round_, hold in enumerate((gate.before, gate.after, None)):
        if hold:
            hold.on()
        number = talk_until_due(chat, number)
        if hold:
            noted(gate, *["came", "answered"] * paid, *["came", "answered"][: 1 + (hold is gate.after)])
            kill(chat)
            hold.off()
            paid += hold is gate.after
            assert len(events_of(chat, WindowCompacted)) == round_, "nothing was committed"
            assert [turn.index for turn in chat.turns()] == list(range(number)), "and nothing is lost"
            talk(chat, number, number + 1)
            assert facts(ray_bench.last())[-1] == ("user", ask(number))
            number += 1
            compacted(chat, round_ + 1)
            paid += 1
            Path(gate.path).write_text("came\nanswered\n" * paid, encoding="utf-8")
        else:
            kill_when(tmp_path / "chats.db", chat, round_ + 1)
        assert len(chat.turns()) == number
    talk(chat, number, number + 1)
    (who, text), *rest = facts(ray_bench.last())
    first = int(text.split()[-1][1:]) + 1
    assert who == "summary" and rest == [*exchanges(first, number), ("user", ask(number))]
    compacted(chat, 3)

    # One answer was paid for and lost with its process; else each was shown what is new, once.
    shown = ray_bench.summed_up()
    assert len(shown) == 4
    lost = next(index for index in range(3) if shown[index + 1][0] == shown[index][0])
    assert shown[lost + 1][1][: len(shown[lost][1])] == shown[lost][1]
    summarized = [fact for index, (_, new) in enumerate(shown) if index != lost for fact in new]
    assert summarized == exchanges(0, first)
    assert chat.info().session.usage.calls == number + 1 + 3
    ray_bench.check()
    audit(manager, "chat")


def test_a_run_that_waits_for_a_compaction_resumes_after_a_kill(ray_bench: Bench, tmp_path: Path) -> None:
    """Cases 33 and 41: it makes room itself then."""
    gate = Gate(tmp_path)
    gate.after.on()
    manager = ray_bench.manager(ray_bench.summarize(gate), {"on_lost": "resume"})
    chat = manager.open("chat")
    number = talk_until_due(chat)
    noted(gate, "came", "answered")
    run = chat.run(f"long {'z' * 300}")
    kill(chat)
    gate.after.off()
    turn = run.wait(WAIT_S)
    assert turn.text.startswith("as to long") and chat.runs(after=number - 1)[0].resumes == 1
    assert facts(ray_bench.last())[0][0] == "summary" and len(ray_bench.sent_requests()) == number + 1
    assert len(ray_bench.sent_requests(SMALL)) == 2 and chat.compact() is None
    ray_bench.check()
    audit(manager, "chat")


# Long-term memory


def flushed(chat: Session, notebook: Notebook, manager: SessionManager) -> list[dict[str, Any]]:
    """Return a memory's items, after comparing each with the blocks of its source."""
    items = notebook.stored_items()

    async def texts() -> list[str]:
        store = store_of(manager)
        texts_found = [
            "\n".join(f"{who}: {text}" for who, text in facts_of(map(decode_block, await store.blocks(spans))))
            for spans in ([Span(*span) for span in item["spans"]] for item in items)
        ]
        await store.close()
        return texts_found

    assert [item["text"] for item in items] == asyncio.run(texts())
    assert {(item["user"], item["session"]) for item in items} == {("ada", chat.session_id)}
    return items


def said_in(item: Mapping[str, Any]) -> list[Fact]:
    return [(line.partition(": ")[0], line.partition(": ")[2]) for line in item["text"].splitlines()]


def test_exchanges_stay_in_the_window_until_each_memory_has_them(bench: Bench, tmp_path: Path) -> None:
    """Case 42: one memory is broken for a while, and one can never be written."""
    good, bad = Notebook(tmp_path / "good.db"), Notebook(tmp_path / "bad.db")
    static = Notebook(tmp_path / "static.db", read_only=True)
    bad.broken.on()
    manager = bench.manager(FlushToMemory([good, bad, static]), {"compaction_attempts": 2})
    chat = manager.open("chat", user_id="ada")
    chat.run(System(text="Be kind."), "hello").wait(WAIT_S)
    number = talk_until_due(chat)
    until(lambda: len(events_of(chat, CompactionFailed)) == 2)
    failed = events_of(chat, CompactionFailed)
    assert [(event.attempt, event.of) for event in failed] == [(1, 2), (2, 2)]
    assert all(event.why == "long-term memory failed: Notebook: OSError: the disk is full" for event in failed)
    first = [item["id"] for item in good.stored_items()]
    assert good.received_ids() == first, "it has them, and is not asked again"
    assert bad.received_ids() == first * 2 and not bad.stored_items()

    talk(chat, number, number + 1)  # fits as things are
    assert facts(bench.last())[2:] == [*exchanges(0, number), ("user", ask(number))], "all is still there"
    number += 1
    with pytest.raises(RunFailedError, match="the disk is full") as refused:
        chat.run(f"long {'z' * 60}").wait(WAIT_S)
    assert refused.value.turn and refused.value.turn.status == "failed" and chat.runs()[-1].code == "compaction"
    assert len(bench.sent_requests()) == number + 1 and not events_of(chat, WindowCompacted), (
        "the provider was not asked"
    )

    bad.broken.off()
    talk(chat, number, number + 1)
    (done,) = events_of(chat, WindowCompacted)
    assert done.strategy == "FlushToMemory" and done.tokens_after <= LIMIT // 2
    remaining = facts(bench.last())
    for notebook in (good, bad):
        items = flushed(chat, notebook, manager)
        assert len({item["id"] for item in items}) == len(items)
        assert [item["turn"] for item in items] == list(range(len(items))), "also what was given once more"
        saved = [fact for item in items for fact in said_in(item)]
        spoken = [("user", "hello"), ("assistant", f"as to hello {'y' * 30}"), *exchanges(0, number)]
        assert [*saved, *remaining] == [*spoken, ("user", f"long {'z' * 60}"), ("user", ask(number))]
    assert {item["id"] for item in good.stored_items()} == {item["id"] for item in bad.stored_items()} >= set(first)
    assert not static.received_ids()
    bench.check()
    audit(manager, "chat", user_id="ada", drops=True)


def test_acknowledged_exchanges_are_removed_and_the_others_stay(bench: Bench, tmp_path: Path) -> None:
    """Case 42: a memory that takes one item at a time."""
    slow, good = Notebook(tmp_path / "slow.db", most=1), Notebook(tmp_path / "good.db")
    manager = bench.manager(FlushToMemory([slow, good]), {"compaction_attempts": 2})
    chat = manager.open("chat", user_id="ada")
    number = talk_until_due(chat)
    compacted(chat, 1)
    assert [said_in(item) for item in slow.stored_items()] == [exchanges(0, 1), exchanges(1, 2)]
    assert "were not saved" in events_of(chat, CompactionFailed)[0].why
    talk(chat, number, number + 1)
    assert facts(bench.last()) == [*exchanges(2, number), ("user", ask(number))]
    assert len(good.stored_items()) > 2, "what it has already stays in the window all the same"
    audit(manager, "chat", user_id="ada", drops=True)


def test_a_kill_between_acknowledgement_and_commit_makes_no_duplicates(ray_bench: Bench, tmp_path: Path) -> None:
    """Cases 41 and 42."""
    notebook = Notebook(tmp_path / "notes.db")
    notebook.held.on()
    manager = ray_bench.manager(FlushToMemory([notebook]))
    chat = manager.open("chat", user_id="ada")
    number = talk_until_due(chat)
    until(lambda: Path(notebook.path).exists() and notebook.stored_items())
    first = notebook.stored_items()
    kill(chat)
    notebook.held.off()
    assert len(chat.turns()) == number and not events_of(chat, WindowCompacted)
    talk(chat, number, number + 1)
    assert facts(ray_bench.last()) == [*exchanges(0, number), ("user", ask(number))]
    number += 1
    compacted(chat, 1)
    items = flushed(chat, notebook, manager)
    assert items[: len(first)] == first and len({item["id"] for item in items}) == len(items)
    given_ids = notebook.received_ids()
    assert [given_ids.count(item["id"]) for item in first] == [2] * len(first)
    assert len(given_ids) == len(first) + len(items), "they were given once more, and are the same"
    assert [item["turn"] for item in items] == list(range(len(items)))
    talk(chat, number, number + 1)
    saved = [fact for item in items for fact in said_in(item)]
    assert [*saved, *facts(ray_bench.last())] == [*exchanges(0, number), ("user", ask(number))]
    ray_bench.check()
    audit(manager, "chat", user_id="ada", drops=True)


# What was paid for


def test_a_summary_is_requested_once_despite_kills_and_new_managers(ray_bench: Bench) -> None:
    """Case 43: a kill, an idle leave and another manager; and it advances after each."""
    config = {"idle_s": 0.5}
    manager = ray_bench.manager(ray_bench.summarize(), config)
    chat = manager.open("chat")
    number = 0
    for round_ in range(1, 5):
        number = talk_until_due(chat, number)
        compacted(chat, round_)
        assert len(ray_bench.sent_requests(SMALL)) == round_
        pid = process_of(chat.info())
        if round_ == 1:
            kill(chat)
        elif round_ == 2:
            gone_from(pid)  # it has been idle
        elif round_ == 3:
            manager = ray_bench.manager(ray_bench.summarize(), config)
            chat = manager.open("chat")
        talk(chat, number, number + 1)
        (who, text), *rest = facts(ray_bench.last())
        first = int(text.split()[-1][1:]) + 1
        assert who == "summary" and rest == [*exchanges(first, number), ("user", ask(number))]
        assert len(ray_bench.sent_requests(SMALL)) == round_
        assert round_ > 2 or chat.info().pid != pid
        number += 1
    summarized = [fact for _, new in ray_bench.summed_up() for fact in new]
    assert summarized == exchanges(0, len(summarized) // 2)
    assert chat.info().session.usage.calls == number + 4
    ray_bench.check()
    audit(manager, "chat")


def test_an_idle_process_stays_until_its_window_is_compacted(ray_bench: Bench, tmp_path: Path) -> None:
    """Cases 43 and 61: what was paid for is not left behind; another process, idle since later, leaves meanwhile."""
    gate = Gate(tmp_path)
    gate.before.on()
    manager = ray_bench.manager(ray_bench.summarize(gate), {"idle_s": 0.5})
    chat, second = manager.open("chat"), manager.open("other")
    number = talk_until_due(chat)
    noted(gate, "came")
    pid = process_of(chat.info())
    talk(second, 0, 1)
    gone_from(process_of(second.info()))
    assert is_alive(pid)
    gate.before.off()
    gone_from(pid)
    talk(chat, number, number + 1)
    assert facts(ray_bench.last())[0][0] == "summary" and len(ray_bench.sent_requests(SMALL)) == 1


# Agents


@pytest.mark.parametrize(("name", "api"), [("Trim", "chat"), ("Summarize", "responses")])
def test_a_tool_loop_that_outgrows_the_window_continues_with_fewer_old_blocks(
    bench: Bench, api: str, name: str
) -> None:
    """Cases 36 and 39: its own calls and results stay, and the tools' declarations count."""
    limit = 3000
    overflow = Trim() if name == "Trim" else bench.summarize()
    engine = bench.engine(tools=[dig], api=api, system="Dig." if api == "responses" else None)
    manager = bench.manager(overflow, {"max_context_tokens": limit}, engine=engine)
    chat = manager.open("chat")
    talk(chat, 0, 18)
    before = len(bench.sent_requests())
    turn = chat.run(prompt(*[[("dig", {"size": 200})]] * 5, "done")).wait(WAIT_S)
    assert turn.text == "done" and [len(text) > 200 and not is_error for text, is_error in results(turn)] == [True] * 5
    done = events_of(chat, WindowCompacted)
    assert done and {event.strategy for event in done} == {name}
    requests = bench.sent_requests()[before:]
    assert len(requests) == 6
    uses = [block.call_id for block in turn.output if isinstance(block, ToolUse)]
    for step, body in enumerate(requests):
        if api == "chat":
            sent = decode(body["messages"])
            assert [block.call_id for block in sent if isinstance(block, ToolUse)] == uses[:step]
            assert [block.call_id for block in sent if isinstance(block, ToolResult)] == uses[:step]
        else:
            call_ids = [item["call_id"] for item in body["input"] if item["type"] == "function_call"]
            assert call_ids == uses[:step] and body["instructions"] == "Dig."
    if api == "chat":
        bench.check(limit)
        if name == "Trim":
            assert {event.tokens_after for event in done} <= {tokens_taken(body) for body in requests}, (
                "as it was counted"
            )
    talk(chat, 18, 20)
    chat.compact()
    audit(manager, "chat", drops=name == "Trim")


def test_an_oversized_turn_fails_with_token_counts(bench: Bench) -> None:
    """Case 38: a prompt, and a tool loop; the provider is not asked, and the session goes on."""
    limit = 2000
    manager = bench.manager(bench.summarize(), {"max_context_tokens": limit}, engine=bench.engine(tools=[dig]))
    chat = manager.open("chat")
    system = System(text="Be kind. " + "s" * 100)
    chat.run(system, ask(0)).wait(WAIT_S)
    overhead = COUNTER.overhead(None, bench.sent_requests()[0]["tools"]) + COUNTER.count(system)
    request_count = len(bench.provider.requests)

    def refused(prompt: str) -> Turn:
        with pytest.raises(RunFailedError) as failed:
            chat.run(prompt).wait(WAIT_S)
        turn = failed.value.turn
        assert turn and turn.status == "failed" and chat.runs()[-1].code == "window"
        newest = sum(map(COUNTER.count, turn.new_blocks))
        summary = sum(COUNTER.count(block) for block in turn.blocks if isinstance(block, Summary))
        needed = overhead + summary + newest
        assert failed.value.why == str(WindowOverflowError(limit, needed, overhead, summary, newest))
        assert f"{overhead} for the system prompt and tools, {summary} for the summary" in str(failed.value)
        assert f"{newest} for the newest turn" in str(failed.value)
        return turn

    refused("z" * 2500)
    assert len(bench.provider.requests) == request_count, "neither the model nor the summarizer"
    talk(chat, 1, 3)
    request_count = len(bench.sent_requests())
    turn = refused(prompt([("dig", {"size": 300})]))
    assert len(results(turn)) == len(bench.sent_requests()) - request_count > 1 and not any(
        is_error for _, is_error in results(turn)
    )
    talk(chat, 3, 5)
    assert facts(bench.last())[-1] == ("user", ask(4))
    bench.check(limit)
    chat.compact()
    audit(manager, "chat", drops=True)


# Managers


def test_the_next_run_has_the_strategy_of_a_later_manager(bench: Bench) -> None:
    """A custom strategy, none, and the first one again: no summarized block is lost."""
    first = bench.manager(bench.summarize())
    chat = first.open("chat")
    number = talk_until_due(chat)
    compacted(chat, 1)
    own = bench.manager(OnlyTheNewest()).open("chat")
    while len(events_of(own, WindowCompacted)) == 1:
        talk(own, number, number + 1)
        number += 1
    done = events_of(own, WindowCompacted)[-1]
    summary, newest = facts(bench.last())
    assert (done.strategy, summary[0], newest) == ("OnlyTheNewest", "summary", ("user", ask(number - 1)))
    assert done.tokens_after == tokens_taken(bench.sent_requests()[-1]) and len(bench.sent_requests(SMALL)) == 1
    bench.check()

    none = bench.manager(None).open("chat")
    talk(none, number, number + 10)
    assert tokens_taken(bench.sent_requests()[-1]) > LIMIT and none.compact() is None, "nobody sees to it"
    assert facts(bench.last()) == [summary, *exchanges(number - 1, number + 9), ("user", ask(number + 9))]
    number += 10

    chat.run(ask(number)).wait(WAIT_S)
    assert tokens_taken(bench.sent_requests()[-1]) <= LIMIT and len(bench.sent_requests(SMALL)) == 2
    earlier, summarized = bench.summed_up()[-1]
    assert earlier == summary[1] and [*summarized, *facts(bench.last())[1:]] == [
        *exchanges(number - 11, number),
        ("user", ask(number)),
    ]
    chat.compact()


def test_a_strategy_that_cannot_be_imported_is_refused(
    ray_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from windows.models import OnlyTheNewest\n\n\nclass Mine(OnlyTheNewest):\n    pass\n"
    (tmp_path / "only_here.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    chat = ray_bench.manager(ray_bench.summarize()).open("chat")
    talk(chat, 0, 1)
    strange = ray_bench.manager(only_here.Mine())
    with pytest.raises(ConfigError, match=r"only_here.*define it in a module that is installed there"):
        strange.open("chat").run(ask(1))
    talk(chat, 1, 2)
    assert len(strange.open("chat").turns()) == 2
    fresh = strange.open("fresh")
    with pytest.raises(RunFailedError, match=r"only_here.*define it in a module that is installed there"):
        fresh.run(ask(0)).wait(WAIT_S)
    assert fresh.compact() is None and len(ray_bench.sent_requests()) == 2
    talk(ray_bench.manager(Trim()).open("fresh"), 1, 2)
    del sys.modules["only_here"]


def test_invalid_strategies_and_unknown_windows_are_refused_at_once(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"overflow='object'.*Trim\(\)"):
        bench.manager(object())
    unknown: dict[str, Any] = {"token_counter": COUNTER, "max_context_tokens": None, "reserve_output_tokens": None}
    with pytest.raises(ConfigError, match=rf"model '{MODEL}' is not known.*max_context_tokens="):
        bench.manager(Trim(), unknown)
    with pytest.raises(ConfigError, match=r"model '' is not known.*max_context_tokens="):
        bench.manager(bench.summarize(), unknown, engine=EchoEngine())
    with pytest.raises(ConfigError, match="reserve_output_tokens"):
        bench.manager(Trim(), unknown, engine=bench.engine("gpt-4", max_output_tokens=8192))
    bench.manager(Trim(500), unknown, engine=ScriptedEngine())
    bench.manager(Trim(), unknown, engine=bench.engine("gpt-4"))
    bench.manager(None, unknown)


# Forks, in PostgreSQL


def test_forks_around_a_compaction_are_complete_without_their_parent(ray_bench: Bench, database: str) -> None:
    """Case 37 on PostgreSQL: the early fork goes on with the originals, the late one with the summary."""
    manager = ray_bench.manager(ray_bench.summarize(), store=database, placement=Packed(hosts=1))
    parent = manager.open("parent", user_id="ada")
    number = talk_until_due(parent)
    compacted(parent, 1)
    number = talk_until_due(parent, number)
    compacted(parent, 2)
    talk(parent, number, number + 1)
    summary = summary_of(parent.latest())
    behind = parent.expand(summary)
    assert facts_of(behind) == exchanges(0, len(behind) // 2) and summary.folded
    carrier = next(turn for turn in parent.turns() if turn.record.carried)
    assert facts_of(carrier.blocks) == exchanges(0, carrier.index + 1), "it was compacted behind it, not in it"
    early, late = parent.fork(at=carrier.index, session_id="early"), parent.fork(session_id="late")
    assert early.latest() == early.turn(carrier.index)
    with pytest.raises(InvalidInputError, match="not a summary of session 'early'"):
        early.expand(summary)
    parent.delete()

    assert late.expand(summary) == behind
    talk(late, number + 1, number + 2)
    assert facts(ray_bench.last())[0] == ("summary", summary.text)
    own = carrier.index + 1
    talk(early, own, own + 1)
    assert facts(ray_bench.last()) == [*exchanges(0, own), ("user", ask(own))]
    reached = talk_until_due(late, number + 2)
    compacted(late, 1)
    talk(late, reached, reached + 1)
    advanced = summary_of(late.latest())
    assert advanced.text.startswith("Talked of p00 to ") and advanced != summary
    kill(late)
    held = [*late.expand(advanced), *late.latest().blocks[1:]]  # type: ignore[union-attr]
    assert facts_of(held) == exchanges(0, reached + 1), "through a summary that was folded in, of a log that is gone"
    compacted(early, 1)
    talk(early, own + 1, own + 2)
    held = [*early.expand(summary_of(early.latest())), *early.latest().blocks[1:]]  # type: ignore[union-attr]
    assert facts_of(held) == exchanges(0, own + 2)
    ray_bench.check()


def test_a_resumed_run_keeps_its_strategy(ray_bench: Bench, tmp_path: Path) -> None:
    """Cases 33 and 41: that of a later manager."""
    gate = Gate(tmp_path)
    talk(ray_bench.manager(None, {"on_lost": "resume"}).open("chat"), 0, 6)
    chat = ray_bench.manager(ray_bench.summarize(gate), {"on_lost": "resume"}).open("chat")
    gate.before.on()
    run = chat.run(f"long {'z' * 300}")
    noted(gate, "came")
    kill(chat)
    gate.before.off()
    assert run.wait(WAIT_S).text.startswith("as to long")
    ray_bench.check()
