"""Conversations as examples for training: what comes along, and what never does, on each store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise import AsyncSessionManager, EchoEngine, SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.dataset import AsyncExamples, Examples, Selection
from turnwise.dataset.pairs import EQUAL, NO_VERSIONS
from turnwise.dataset.reading import PAGE
from turnwise.errors import ConfigError, InvalidInputError, StillEncryptedError
from turnwise.memory.conversation.blocks import Image, System, Text
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.testing.scripted_engine import ScriptedEngine

FIXTURES = {"postgresql": "database", "redis": "redis_url"}
YES = {"training": "yes"}


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in FIXTURES:
        return str(request.getfixturevalue(FIXTURES[request.param]))
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/chats.db"


def manager_of(url: str, engine: Any = None, **settings: Any) -> SessionManager:
    return SessionManager(url, engine=engine or EchoEngine(), placement=InProcess(), **settings)


def read(manager: SessionManager, **settings: Any) -> list[Any]:
    return list(Examples(manager, Selection(**{"consent": YES, **settings})))


def texts(example: dict[str, Any]) -> list[str]:
    return [message["content"] for message in example["messages"]]


def test_a_conversation_is_an_example_of_messages(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        chat.append(System(text="Be kind."))
        for prompt in ("one", "two"):
            chat.run(prompt).wait()
        (example,) = read(manager)
        said = [("system", "Be kind."), ("user", "one"), ("assistant", "one"), ("user", "two"), ("assistant", "two")]
        assert example == {"messages": [{"role": role, "content": text} for role, text in said]}
        assert read(manager, format="trl") == [example]
        assert texts(read(manager, system=False)[0]) == ["one", "one", "two", "two"]
        assert texts(read(manager, system="Be brief.")[0])[:2] == ["Be brief.", "one"]
        assert [texts(example) for example in read(manager, max_turns=1)] == [
            ["Be kind.", "one", "one"],
            ["Be kind.", "two", "two"],
        ]


def test_only_sessions_that_consent_come_along(store_url: str) -> None:
    with manager_of(store_url) as manager:
        for name, metadata in (("yes", YES), ("no", {"training": "no"}), ("none", {})):
            manager.open(name, user_id="ann", metadata=metadata).run(name).wait()
        examples = Examples(manager, Selection(consent=YES))
        assert [texts(example) for example in examples] == [["yes", "yes"]]
        assert examples.left_out["conversations without consent"] == 2
        assert len(read(manager, consent=None)) == 3
        manager.get("yes", user_id="ann").update(metadata={"training": "no"})
        assert read(manager) == []
        with pytest.raises(InvalidInputError, match="None takes all along"):
            Selection(consent={})


def test_what_was_forgotten_removed_cleared_or_deleted_never_comes_along(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        for prompt in ("one", "two", "three", "four"):
            chat.run(prompt).wait()
        chat.memory.forget(turn_index=1)
        assert texts(read(manager)[0]) == ["one", "one", "three", "three", "four", "four"]
        chat.remove(next(message for message in chat.messages() if message.text == "three" and message.role == "user"))
        assert texts(read(manager)[0]) == ["one", "one", "four", "four"], "the answer repeats what was removed"
        chat.clear(keep_last=1)
        assert texts(read(manager)[0]) == ["four", "four"]
        gone = manager.open("gone", user_id="tom", metadata=YES)
        gone.run("of tom").wait()
        assert len(read(manager)) == 2
        manager.forget("tom")
        assert [texts(example) for example in read(manager)] == [["four", "four"]]
        chat.delete()
        assert read(manager) == []


def test_words_of_others_come_along_only_with_their_consent(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("trip", user_id="ann", metadata=YES)
        chat.run("of ann").wait()
        chat.add_member("tom")
        manager.get("trip", user_id="ann", as_user="tom").run("of tom").wait()
        chat.run("of ann again").wait()
        assert [texts(example) for example in read(manager)] == [["of ann", "of ann"]]
        (example,) = read(manager, authors=["tom"])
        assert texts(example)[2:] == ["of tom", "of tom", "of ann again", "of ann again"]
        assert "name" not in json.dumps(example), "the ids of members stay here"


def test_a_fork_has_what_it_inherited_only_as_long_as_it_is_there(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        for prompt in ("one", "two", "three"):
            chat.run(prompt).wait()
        fork = chat.fork(at=1)
        assert len(read(manager)) == 1, "what it has is in the example of the other one"
        fork.run("another three").wait()
        newest = read(manager)[0]
        assert texts(newest) == ["one", "one", "two", "two", "another three", "another three"]
        assert [message.get("weight") for message in newest["messages"]] == [None, 0, None, 0, None, None]
        chat.memory.forget(turn_index=0)
        assert texts(read(manager)[0]) == ["two", "two", "another three", "another three"]
        fork.memory.forget(turn_index=1)
        assert texts(read(manager)[0]) == ["another three", "another three"]
        other, cleared = chat.fork(), chat.fork()
        other.run("four").wait()
        second = other.fork()
        second.run("five").wait()
        assert texts(read(manager)[0])[::2] == ["two", "three", "four", "five"]
        for prompt in ("four", "five"):
            cleared.run(prompt).wait()
        cleared.clear(keep_last=1)
        assert ["five", "five"] in [texts(example) for example in read(manager)]
        chat.delete()
        prompts = [texts(example)[::2] for example in read(manager)]
        assert prompts == [["four", "five"], ["five"], ["four"], ["another three"]]


def test_sessions_are_chosen_by_user_agent_and_time(store_url: str) -> None:
    with manager_of(store_url) as manager:
        for name, agent in (("first", None), ("second", "helper")):
            manager.open(name, user_id=name, agent=agent, metadata=YES).run(name).wait()
        (second, first) = manager.list()
        assert [texts(example)[0] for example in read(manager, user_id="first")] == ["first"]
        assert [texts(example)[0] for example in read(manager, agent="helper")] == ["second"]
        assert [texts(example)[0] for example in read(manager, since=second.updated_at)] == ["second"]
        assert [texts(example)[0] for example in read(manager, until=second.updated_at)] == ["first"]
        assert read(manager, since=first.updated_at, until=first.updated_at) == []
        assert [len(texts(example)) for example in read(manager, agents=True)] == [2, 2]
        manager.open("gone", metadata=YES, ttl_s=0.000_001).run("expired").wait()
        examples = Examples(manager, Selection(consent=YES))
        assert len(list(examples)) == 2 and examples.left_out["conversations that have expired"] == 1


def test_only_whole_answers_of_the_shown_conversation_come_along(store_url: str) -> None:
    with manager_of(store_url, EchoEngine(token_delay_s=60)) as manager:
        slow = manager.open("chat", user_id="ann", metadata=YES).run("Stop this one.")
        slow.cancel()
    with manager_of(store_url) as manager:
        chat = manager.get("chat", user_id="ann")
        chat.run("first").wait()
        chat.rerun("second").wait()
        chat.append("without an answer")
        assert [texts(example) for example in read(manager)] == [["second", "second"]]


def test_each_text_is_redacted_and_a_refused_one_drops_its_example(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        chat.import_messages(
            [
                {"role": "system", "content": "secret rules"},
                {"role": "user", "content": "my secret"},
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "pay", "arguments": '{"to": ["secret"]}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "a secret result"},
                {"role": "assistant", "content": "The secret is paid."},
            ],
            "openai_chat",
        )
        for kind in ("chat", "tools"):
            (example,) = read(manager, kind=kind, redact=lambda text: text.replace("secret", "***"))
            assert "secret" not in json.dumps(example) and "***" in json.dumps(example)
        examples = Examples(manager, Selection(consent=YES, redact=lambda text: None if "secret" in text else text))
        assert list(examples) == [] and examples.left_out["examples that the redaction left out"] == 1
        with pytest.raises(InvalidInputError, match="must return a text"):
            read(manager, redact=lambda _: 1)


def test_numbers_in_arguments_are_redacted_as_texts(tmp_path: Path) -> None:
    call = {"name": "ring", "arguments": '{"phone": 41791234567, "times": [2], "loud": true}'}
    messages = [
        {"role": "user", "content": "Ring me."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": "Done."},
    ]
    with manager_of(f"sqlite:///{tmp_path}/chats.db") as manager:
        manager.import_messages("chat", messages, "openai_chat", user_id="ann", metadata=YES)
        (example,) = read(manager, kind="tools", redact=lambda text: text.replace("41791234567", "[phone]"))
    arguments = json.loads(example["messages"][1]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"phone": "[phone]", "times": [2], "loud": True}


def test_conversations_without_pairs_are_counted_by_reason(tmp_path: Path) -> None:
    with manager_of(f"sqlite:///{tmp_path}/chats.db", ScriptedEngine(["one", "two", "three"])) as manager:
        manager.open("single", user_id="ann", metadata=YES).run("hello").wait()
        chat = manager.open("equal", user_id="ann", metadata=YES)
        chat.run("hello").wait()
        chat.rerun().wait()
        examples = Examples(manager, Selection(consent=YES, kind="preference", replaced_is_worse=False))
        assert list(examples) == []
    assert examples.left_out[NO_VERSIONS] == 1
    assert examples.left_out[EQUAL] == 1


CALLED = [
    {"role": "user", "content": "Pay."},
    {
        "role": "assistant",
        "content": "At once.",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "pay", "arguments": '{"euros": 5}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "paid"},
    {"role": "assistant", "content": "It is paid."},
]


def test_tool_traces_have_calls_results_and_declarations(store_url: str) -> None:
    with manager_of(store_url) as manager:
        manager.import_messages("chat", CALLED, "openai_chat", user_id="ann", metadata=YES)
        manager.open("other", user_id="ann", metadata=YES).run("hello").wait()
        assert texts(read(manager)[-1]) == ["Pay.", "It is paid."]
        (example,) = read(manager, kind="tools")
        call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": '{"euros": 5}'}}
        assert example["messages"][1]["tool_calls"] == [call]
        assert example["messages"][2] == {"role": "tool", "tool_call_id": "c", "content": "paid"}
        assert example["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {"euros": {}}}
        declared = {"type": "function", "function": {"name": "pay", "description": "Pay.", "parameters": {}}}
        (example,) = read(manager, kind="tools", format="trl", tools=[declared], tool_results=False)
        assert example["tools"] == [declared]
        calls = [{"type": "function", "function": {"name": "pay", "arguments": {"euros": 5}}}]
        assert example["messages"][1] == {"role": "assistant", "content": "At once.", "tool_calls": calls}
        assert example["messages"][2] == {"role": "tool", "name": "pay", "content": "[left out]"}


def test_a_conversation_ends_where_a_picture_is(store_url: str) -> None:
    with manager_of(store_url) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        chat.run("one").wait()
        chat.run("What is this?", Image.from_bytes(b"png", "image/png")).wait()
        chat.run("three").wait()
        assert texts(read(manager)[0]) == ["one", "one"]


async def test_what_a_middleware_has_replaced_does_not_come_along(tmp_path: Path) -> None:
    """It hides words of the newest prompt, and later of the whole history."""
    from turnwise.engines import FunctionEngine, Middleware
    from turnwise.memory.conversation.blocks import User

    class Hiding(Middleware):
        """Stores prompts without secrets."""

        async def run(self, turn: Any, context: Any, runner: Any) -> Any:
            blocks = [
                block.model_copy(update={"text": block.text.replace("secret", "***")})
                if isinstance(block, User | Text)
                else block
                for block in turn.blocks
            ]
            return await runner.run(turn.showing(blocks, store=True), context)

    def answer(turn: Any) -> str:
        return str(turn.blocks[-1].text)

    plain, hiding = FunctionEngine(answer), FunctionEngine(answer, middleware=[Hiding()])
    async with AsyncSessionManager(
        f"sqlite:///{tmp_path}/a.db", engine={"plain": plain, "hiding": hiding}, placement=InProcess()
    ) as manager:
        chat = await manager.open("chat", metadata=YES)
        await (await chat.run("secret one")).wait()
        await chat.use("hiding")
        await (await chat.run("secret two")).wait()
        examples = [example async for example in AsyncExamples(manager, Selection(consent=YES))]
        assert "secret" not in json.dumps(examples), examples
        assert texts(examples[0]) == ["*** one", "*** one", "*** two", "*** two"]


def test_pairs_come_from_marks_and_from_versions(store_url: str) -> None:
    answers = ["hello", "bad", "good", "newest", "edited"]
    with manager_of(store_url, ScriptedEngine(answers)) as manager:
        chat = manager.open("chat", user_id="ann", metadata=YES)
        chat.run("Hi.").wait()
        chat.run("How?").wait()
        chat.rerun().wait()
        chat.rerun().wait()
        chat.rerun("How now?").wait()
        pairs = read(manager, kind="preference")
        assert pairs == [], "the shown version has another prompt"
        chat.choose(3)
        pairs = read(manager, kind="preference", format="trl")
        assert [pair["rejected"][0]["content"] for pair in pairs] == ["bad", "good"]
        assert {pair["chosen"][0]["content"] for pair in pairs} == {"newest"}
        assert [message["content"] for message in pairs[0]["prompt"]] == ["Hi.", "hello", "How?"]
        assert read(manager, kind="preference", replaced_is_worse=False) == []
        mark_answer(chat, 1, "down", by="Rita")
        mark_answer(chat, 2, "up", by="Tom")
        pairs = read(manager, kind="preference")
        assert [(pair["preferred_output"], pair["non_preferred_output"]) for pair in pairs] == [
            ([{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": worse}])
            for worse in ("bad", "newest")
        ]
        assert [message["content"] for message in pairs[0]["input"]["messages"]] == ["Hi.", "hello", "How?"]
        pairs = read(manager, kind="preference", marked_by=["Rita"], replaced_is_worse=False)
        assert [pair["non_preferred_output"][0]["content"] for pair in pairs] == ["bad"]
        chat.memory.forget(turn_index=2)
        assert "good" not in json.dumps(read(manager, kind="preference"))


def mark_answer(chat: Any, index: int, value: str, *, by: str) -> None:
    shown = chat.latest().index
    chat.choose(index)
    message = next(m for m in chat.messages() if m.turn_index == index and m.role == "assistant")
    chat.mark(message, "thumb", value, by=by)
    chat.choose(shown)


def test_encrypted_stores_need_their_keys_and_users_without_one_do_not_come_along(store_url: str) -> None:
    keys = {"ann": bytes(32), "tom": bytes(range(32))}
    encryption = Encryption(keys.get, cache_s=0)
    with manager_of(store_url, encryption=encryption) as manager:
        for user_id in keys:
            manager.open("chat", user_id=user_id, metadata=YES).run(f"of {user_id}").wait()
        assert len(read(manager)) == 2
        del keys["tom"]
        examples = Examples(manager, Selection(consent=None))
        assert [texts(example) for example in examples] == [["of ann", "of ann"]]
        assert examples.left_out["conversations whose user has no key"] == 1
        if not store_url.startswith("memory"):
            with manager_of(store_url, read_only=True) as other, pytest.raises(StillEncryptedError):
                read(other)


@pytest.mark.by_turns
async def test_both_families_write_the_same_files(tmp_path: Path) -> None:
    from pyarrow import parquet

    url = f"sqlite:///{tmp_path}/chats.db"
    with manager_of(url) as manager:
        manager.import_messages("chat", CALLED, "openai_chat", user_id="ann", metadata=YES)
        for number in range(PAGE + 1):
            manager.import_messages(f"chat-{number}", CALLED[:1] + CALLED[3:], "openai_chat", metadata=YES)
        assert Examples(manager, Selection(consent=YES)).write(tmp_path / "a.jsonl") == PAGE + 2
        for kind in ("chat", "tools", "preference"):
            for form in ("openai", "trl"):
                examples = Examples(manager, Selection(consent=YES, kind=kind, format=form))
                assert examples.write(tmp_path / f"{kind}.parquet") == len(list(examples))
                parquet.read_table(tmp_path / f"{kind}.parquet").to_pylist()
        rows = parquet.read_table(tmp_path / "tools.parquet").to_pylist()
        assert json.loads(rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"euros": 5}
        assert json.loads(rows[0]["tools"])[0]["function"]["name"] == "pay"
        with pytest.raises(InvalidInputError, match=r"must end with \.jsonl or \.parquet"):
            Examples(manager, Selection(consent=YES)).write(tmp_path / "a.csv")
        with pytest.raises(ZeroDivisionError):
            Examples(manager, Selection(consent=YES, redact=lambda _: str(1 / 0))).write(tmp_path / "a.jsonl")
        with pytest.raises(ConfigError, match="in the memory of this process"):
            Examples(manager_of("memory://here"), Selection(consent=YES)).to_ray()
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as async_manager:
        assert await AsyncExamples(async_manager, Selection(consent=YES)).write(tmp_path / "b.jsonl") == PAGE + 2
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert not (tmp_path / "a.jsonl.part").exists() and not (tmp_path / "a.csv.part").exists()


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with manager_of("memory://none") as manager, pytest.raises(ConfigError, match=r"pip install 'turnwise.dataset.'"):
        Examples(manager, Selection(consent=YES)).write(tmp_path / "a.parquet")


async def test_what_a_fork_inherits_and_is_forgotten_while_it_is_read_does_not_come_along(tmp_path: Path) -> None:
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/a.db", engine=EchoEngine(), placement=InProcess()) as manager:
        chat = await manager.open("chat", metadata=YES)
        for prompt in ("one", "two"):
            await (await chat.run(prompt)).wait()
        fork = await chat.fork()
        for prompt in ("three", "four", "five"):
            await (await fork.run(prompt)).wait()
        read: list[list[str]] = []
        async for example in AsyncExamples(manager, Selection(consent=YES, max_turns=3)):
            read.append(texts(example)[::2])
            await chat.memory.forget(turn_index=0)
        assert read == [["one", "two", "three"], ["four", "five"], ["two"]]


async def test_what_is_deleted_while_it_is_read_does_not_come_along(tmp_path: Path) -> None:
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/a.db", engine=EchoEngine(), placement=InProcess()) as manager:
        chat = await manager.open("chat", metadata=YES)
        for prompt in ("one", "two", "three"):
            await (await chat.run(prompt)).wait()
        examples = AsyncExamples(manager, Selection(consent=YES, max_turns=1))
        read: list[list[str]] = []
        async for example in examples:
            read.append(texts(example))
            await chat.memory.forget(turn_index=1)
        assert read == [["one", "one"], ["three", "three"]]
