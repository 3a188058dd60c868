"""The requests of a replay are those that the model was given then, to the byte."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from turnwise import (
    EchoEngine,
    ExtractiveMemory,
    InProcess,
    LexicalMemory,
    MemoryConfig,
    OpenAIEngine,
    Session,
    SessionConfig,
    SessionManager,
    Trim,
    WorkingMemory,
    external_tool,
    tool,
)
from turnwise.blocks import Document, Image, System
from turnwise.replay import Replay, replay
from turnwise.testing import LocalProvider, tool_script

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="  # one pixel

Talk = Callable[[SessionManager], object]


class City(BaseModel):
    name: str
    people: int


def bodies(provider: LocalProvider) -> list[str]:
    """Return the requests, in an order of their own; the provider's random ids of calls are counted instead."""
    return sorted(_counted(json.dumps(request.body)) for request in provider.requests)


def _counted(body: str) -> str:
    names = dict.fromkeys(re.findall(r"call_[0-9a-f]{32}", body))
    for number, name in enumerate(names):
        body = body.replace(name, f"call_{number}")
    return body


def replayed(url: str, talk: Talk, *, reply: Any = None, engine: Any = None, **settings: Any) -> tuple[Replay, Any]:
    """Talk, then replay all turns with the same engine: return the result and the requests of both."""
    with LocalProvider(reply=reply() if reply else None) as provider:
        make = engine or (lambda base_url: OpenAIEngine("local", base_url=base_url))
        with SessionManager(url, engine=make(provider.base_url), placement=InProcess(), **settings) as manager:
            talk(manager)
            recorded = bodies(provider)
            provider.requests.clear()
            if reply:
                provider.reply = reply()
            result = replay(manager, engine=make(provider.base_url), at_once=1)
            again = bodies(provider)
    assert recorded
    return result, (recorded, again)


def check_same(url: str, talk: Talk, **settings: Any) -> Replay:
    result, (recorded, again) = replayed(url, talk, **settings)
    assert again == recorded
    assert all(not turn.inexact for turn in result.turns)
    assert all(turn.change["same"] for turn in result.turns)
    return result


def test_a_chat_is_asked_again_as_it_was(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open("chat", user_id="ann", params={"temperature": 0.2})
        chat.append(System(text="Be brief."))
        for prompt in ("Hello.", "And now?", "Goodbye."):
            chat.run(prompt).wait()

    result = check_same(url, talk)
    assert result.summary.turns == 3
    assert [turn.recorded.params for turn in result.turns] == [{"temperature": 0.2}] * 3


def test_instructions_model_and_parameters_of_a_run_are_those_of_its_replay(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open()
        chat.run(
            "One.", instructions="Speak French.", model="other", params={"seed": 7, "max_output_tokens": 50}
        ).wait()
        chat.run("Two.").wait()

    check_same(url, talk)


def test_steps_with_tools_are_asked_again_as_they_were_and_no_tool_is_called(url: str) -> None:
    calls: list[str] = []

    @tool
    def weather(city: str) -> str:
        """Say what the weather is."""
        calls.append(city)
        return f"sunny in {city}"

    @tool(approval=True)
    def pay(euros: int) -> str:
        """Pay."""
        calls.append(str(euros))
        return "paid"

    def talk(manager: SessionManager) -> None:
        chat = manager.open()
        run = chat.run("Go.")
        run.wait(until="settled")
        (call,) = run.pending()
        run.approve(call.call_id)
        run.wait()

    def script() -> Any:
        return tool_script(
            [[("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})], [("pay", {"euros": 7})], "Done."]
        )

    result = check_same(
        url, talk, reply=script, engine=lambda base: OpenAIEngine("local", base_url=base, tools=[weather, pay])
    )
    assert sorted(calls) == ["7", "Paris", "Rome"]
    (turn,) = [turn for turn in result.turns if turn.turn_index == 0]
    assert [call.name for call in turn.answer.calls] == ["weather", "weather", "pay"]
    assert turn.answer.calls == turn.recorded.calls
    assert turn.answer.text == "Done."


def test_tools_of_a_run_are_declared_again_and_answered_from_the_record(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        run = manager.open().run("Where am I?", tools=[external_tool("place", "Say where.", {"type": "object"})])
        run.wait(until="settled")
        (call,) = run.pending()
        run.provide(call.call_id, "in Rome")
        run.wait()

    check_same(url, talk, reply=lambda: tool_script([[("place", {})], "You are in Rome."]))


def test_recalled_memories_and_notes_are_in_the_requests_if_they_were_kept(url: str, tmp_path: Path) -> None:
    def talk(manager: SessionManager) -> None:
        first = manager.open(user_id="ann")
        first.run("My parental leave begins on 2 March.").wait()
        first.memory.wait()
        second = manager.open(user_id="ann")
        second.run("When does my parental leave begin?").wait()
        assert "2 March" in second.turn(0).metadata["turnwise.recalled"]
        second.run("Thanks.").wait()

    check_same(
        url,
        talk,
        memory=[LexicalMemory(tmp_path / "memory.db")],
        working_memory=WorkingMemory(tmp_path / "notes.db"),
        config=SessionConfig(memory=MemoryConfig(keep_recalled=True)),
    )


def test_a_profile_before_the_conversation_is_there_again(url: str, tmp_path: Path) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open(user_id="ann")
        chat.memory.save("The user's name is Ann.", id="name")
        chat.memory.pin("name")
        chat.run("Hello.").wait()
        chat.run("Who am I?").wait()
        assert "Ann" in chat.turn(1).metadata["turnwise.front"]

    memory = ExtractiveMemory(EchoEngine(), tmp_path / "facts.db")
    config = SessionConfig(memory=MemoryConfig(keep_recalled=True, save="none"))
    check_same(url, talk, memory=[memory], config=config)


def test_a_replay_says_so_where_recalled_memories_were_not_kept(url: str, tmp_path: Path) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open(user_id="ann")
        chat.run("My leave begins on 2 March.").wait()
        chat.run("Without memory.", memory=False).wait()

    result, _ = replayed(url, talk, memory=[LexicalMemory(tmp_path / "memory.db")])
    by_index = {turn.turn_index: turn.inexact for turn in result.turns}
    assert "keep_recalled" in by_index[0][0]
    assert not by_index[1]
    assert result.summary.inexact == 1


def test_a_compacted_window_is_the_one_that_the_model_was_given(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open()
        for number in range(8):
            chat.run(f"Prompt {number}: {'words ' * 40}").wait()

    check_same(url, talk, overflow=Trim(), config=SessionConfig(max_context_tokens=400))


def test_a_typed_answer_is_asked_for_by_the_same_schema_with_its_retries(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        manager.open().run("A city?", output=City).wait()

    def script() -> Any:
        answers = iter(['{"name": "Rome"}', '{"name": "Rome", "people": 3}'])
        return lambda _: next(answers)

    result = check_same(url, talk, reply=script)
    assert result.turns[0].change["fields"] == []


@pytest.mark.by_turns
def test_pictures_and_files_have_their_bytes_again(url: str, tmp_path: Path) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open(user_id="ann")
        file = chat.files.put("note.txt", b"A long note. " * 10_000, media_type="text/plain")
        chat.run(
            "What is this?", Image(media_type="image/png", data=PIXEL), Document(file=file.file_id, name="")
        ).wait()
        chat.run("And that?").wait()

    check_same(url, talk, files=str(tmp_path / "files"))


def test_prompts_of_members_have_their_names_again(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat: Session = manager.open("plan", user_id="ann")
        chat.add_member("bob")
        chat.run("I say Monday.").wait()
        manager.get("plan", user_id="ann", as_user="bob").run("And I say Tuesday.").wait()
        chat.run("So?").wait()

    check_same(url, talk)


def test_a_branch_and_a_fork_are_asked_again_as_they_were(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open("chat")
        chat.run("One.").wait()
        fork = chat.fork(session_id="fork")
        fork.run("Two, in the fork.").wait()

    result = check_same(url, talk)
    assert {(turn.session_id, turn.prompt) for turn in result.turns} >= {("fork", "Two, in the fork.")}


def test_a_strategy_of_ones_own_makes_the_windows_anew(url: str) -> None:
    def talk(manager: SessionManager) -> None:
        chat = manager.open()
        for number in range(8):
            chat.run(f"Prompt {number}: {'words ' * 40}").wait()

    with LocalProvider() as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)
        with SessionManager(url, engine=engine, placement=InProcess(), overflow=None) as manager:
            talk(manager)
            provider.requests.clear()
            config = SessionConfig(max_context_tokens=400)
            result = replay(manager, engine=engine, overflow=Trim(), config=config, at_once=1)
            sizes = [len(request.body["messages"]) for request in provider.requests]
        assert result.summary.turns == 8
        provider.requests.clear()
        with SessionManager(
            "memory://other", engine=engine, placement=InProcess(), overflow=Trim(), config=config
        ) as other:
            talk(other)
        assert sizes == [len(request.body["messages"]) for request in provider.requests]
        assert max(sizes) < 15
