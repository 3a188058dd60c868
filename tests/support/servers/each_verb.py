"""Calls each verb of a `RemoteManager` that a service in this process serves: `use_each_verb`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from patience import within
from servers.over_http import over_http
from turnwise import EchoEngine, external_tool
from turnwise.errors import CallNotFoundError, ConfigError, InvalidInputError, NoActiveRunError, NoMemoryError
from turnwise.memories import LexicalMemory, WorkingMemory
from turnwise.memory.conversation.blocks import Summary, Text
from turnwise.memory.conversation.spans import Span
from turnwise.stores import Quota


def use_each_verb(
    folder: Path,
    *,
    seen: Any = None,
    through: Callable[[httpx2.BaseTransport], httpx2.BaseTransport] = lambda transport: transport,
) -> None:
    """Call each verb, and check what it returns.

    Args:
        folder: where the service's stores are.
        seen, through: see `over_http`.
    """
    settings: dict[str, Any] = {
        "engine": {"echo": EchoEngine(), "other": EchoEngine()},
        "memory": [LexicalMemory(folder / "facts.db")],
        "working_memory": WorkingMemory(f"sqlite:///{folder}/notes.db"),
    }
    with over_http(f"sqlite:///{folder}/chats.db", seen=seen, through=through, **settings) as manager:
        chat = manager.open("a/b", user_id="ann", metadata={"n": 1}, title="Oslo")
        run = chat.run("hello", Text(text="An answer."), "and more", labels={"k": "v"}, memory="read", overflow=None)
        assert run.wait().text and run.status() == "completed" and run.phase() == "completed"
        assert [event.kind for event in run.events()][-1] == "run_completed"
        assert run.steps() is not None and run.pending() == [] and run.children() == [] and run.input().blocks
        run.add_event("note", {"a": 1}, labels={"x": "y"})
        assert run.cancel() is False and run.event_page(0, 5)
        with pytest.raises(CallNotFoundError):
            run.approve("c", input={"a": 1})
        with pytest.raises(CallNotFoundError):
            run.reject("c", "too dear")
        with pytest.raises(CallNotFoundError):
            run.provide("c", {"a": [1]})
        tool = external_tool("locate", "Where?", {"type": "object", "properties": {}})
        with pytest.raises(InvalidInputError, match="does not"):  # an echo has no tools
            chat.run("hi", tools=[tool], output={"type": "object"}, output_retries=0, instructions="Be brief.")
        with pytest.raises(NoActiveRunError):
            chat.cancel()
        chat.append("later")
        chat.start().wait()
        chat.rerun("again", at=chat.latest()).wait()
        assert chat.choose(2) in (True, False)
        chat.say("Good morning.", key="morning")
        assert chat.messages(1).cursor and chat.turn(0).text and chat.turns() and chat.runs() and chat.events(0, 5)
        chat.mark(chat.messages()[0], "thumb", "up", by="ann")
        chat.mark(chat.messages()[0], "thumb", None)
        assert manager.marks("ann").items == () and manager.count_marks("ann") == {}
        chat.add_event("mine", {"b": 2})
        chat.update(title="Bergen", metadata={"m": 2})
        chat.use("other")
        chat.refresh()
        chat.add_member("tom", "reader")
        assert manager.list(user_id="tom", shared=True).items and chat.members() == {"ann": "owner", "tom": "reader"}
        chat.remove_member("tom")
        schedule = chat.schedule("what is new?", after_s=5_000, key="news")
        listed = chat.schedules().items[0], manager.schedules(user_id="ann").items[0]
        assert schedule == chat.get_schedule("news") == listed[0] == listed[1]
        chat.change_schedule("news", "and now?", every_s=100, after_s=4_000)
        chat.cancel_schedule("news")
        manager.open("other", user_id="ann")
        chat.send("other", "Hello from next door.")
        assert chat.compact(explain=True) is None and chat.window("next") and chat.window()
        with pytest.raises(InvalidInputError):
            chat.expand(Summary(text="s", of=(Span("log", 0, 1),)))
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        imported = manager.import_messages("i", messages)
        assert imported.export_messages("openai_chat") and imported.fork(0, "fork", schedules=True).latest()
        imported.remove(imported.messages()[0])
        use_memory(chat)
        file = chat.files.put("a.txt", b"hello")
        own = manager.files(user_id="ann")
        for files, stored in ((chat.files, file), (own, own.put("b.txt", [b"hel", b"lo"]))):
            assert files.info(stored.file_id) == stored == files.list()[0] and files.get(stored.file_id) == b"hello"
            assert b"".join(files.read(stored.file_id, 1, 3)) == b"el" and files.delete(stored.file_id)
        manager.set_tenant("ann", "acme")
        assert manager.tenant("ann") == "acme" and manager.tenants()[0].users == 1
        assert manager.users("acme").items == ("ann",)
        quota = Quota(user_id="*", runs=100)
        manager.set_quota(quota)
        assert manager.quotas(user_id="ann")[0].quota == quota
        manager.remove_quota(quota.quota_id)
        hook = manager.webhook("https://example.org/hook", events=["run.completed"])
        assert hook.secret and manager.webhooks()[0].secret is None
        hook.change(events=["run.failed"])
        hook.disable()
        hook.enable()
        assert hook.rotate_secret() == hook.secret and hook.failed().items == () and hook.send_again() == 0
        hook.delete()
        assert manager.count(user_id="ann") == 2 and manager.runs(user_id="ann", labels={"k": "v"}).items
        assert manager.usage(by=["user", "model"]).rows and manager.execution(run.run_id, user_id="ann").is_done()
        assert manager.search("ann", "hello").items
        use_operators_verbs(manager)
        once = manager.run_once("hello", metadata={"a": 1})
        assert once.wait().text == "hello"
        manager.check_store()
        chat.clear(1)
        manager.clear("ann")
        chat.end()
        chat.delete()
        assert manager.forget("ann").sessions == 1


def use_operators_verbs(manager: Any) -> None:
    events: list[Any] = []
    with manager.subscribe(events.append, kinds=["run_failed", "custom"], labels={"x": "y"}) as subscription:
        manager.get("a/b", user_id="ann").add_event("mine", labels={"x": "y"})
        within(30.0)(lambda: events)
    assert subscription.cursor and events[0].name == "mine"
    assert manager.sweep().deleted == () and manager.hosts()[0].load.sessions
    with pytest.raises(ConfigError, match="no nodes"):
        manager.drain("a-node", timeout_s=0.0)


def use_memory(chat: Any) -> None:
    memory = chat.memory
    item_id = memory.save("Ann rows a boat.", type="facts", topic="sport", aliases=["rowing"])
    assert memory.wait(5) and memory.list(type="facts").items and memory.recall("boat", types=["facts"])
    assert memory.recall_apart("boat").extracted and memory.update(item_id, topic=None, status="active")
    for pin in (memory.pin, memory.unpin):
        with suppress(NoMemoryError):  # this memory may have no profiles
            pin(item_id)
    about = memory.find_about("rows a boat")
    assert about.mentions and memory.forget_about(about).mentions
    memory.delete(item_id)
    memory.use("on")
    memory.forget(0)
    memory.replace_notes("# Plan")
    assert memory.merge_notes("- a room") and "Plan" in memory.read_notes() and memory.clear_notes()
