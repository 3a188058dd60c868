"""Which turns are replayed, what is answered in place of tools, and that nothing is changed."""

import asyncio
import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from turnwise import (
    AsyncSessionManager,
    EchoEngine,
    InProcess,
    SessionManager,
    SessionNotFoundError,
    Usage,
    tool,
)
from turnwise.actors.client.services.stored_conversations import StoredConversations, conversations_of
from turnwise.blocks import Text, ToolUse, User
from turnwise.engines import FunctionEngine, Shadow
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.replay import (
    Answer,
    FunctionGrader,
    RecordedTools,
    Replay,
    Selection,
    TurnReplay,
    Variant,
    Work,
    check_requests,
    recorded_turns,
    replay,
    replay_turns,
)
from turnwise.testing import ScriptedEngine
from turnwise.testing.scripted_engine import RecordingEngine


@pytest.fixture
def manager(url: str) -> Iterator[SessionManager]:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        yield manager


def talk(manager: SessionManager, name: str, *prompts: str, user: str = "ann", **options: Any) -> None:
    chat = manager.open(name, user_id=user)
    for prompt in prompts:
        chat.run(prompt, **options).wait()


def prompts(result: Replay) -> list[str]:
    return sorted(turn.prompt for turn in result.turns)


def one_point(turn: TurnReplay, answer: Answer) -> float:
    return 1.0


def shout(turn: Turn) -> str:
    return " ".join(block.text for block in turn.asked if isinstance(block, User)).upper() + "!"


def texts_given(engine: RecordingEngine) -> list[list[str]]:
    return [[block.text for block in turn.blocks if isinstance(block, User | Text)] for turn in engine.calls]


def test_each_turn_is_answered_by_the_new_engine_with_the_recorded_conversation(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two")
    engine = RecordingEngine(["new"], repeat=True)
    result = replay(manager, engine=engine)
    assert texts_given(engine) == [["one"], ["one", "one", "two"]]
    assert {(turn.recorded.text, turn.answer.text) for turn in result.turns} == {("one", "new"), ("two", "new")}
    assert result.summary.all.metrics["different"].replayed == 1.0
    assert result.summary.conversations == 1


def test_the_asynchronous_family_replays_too(url: str) -> None:
    async def work() -> Replay:
        async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
            chat = await manager.open()
            await (await chat.run("one")).wait()
            return await replay(manager, engine=EchoEngine())

    assert asyncio.run(work()).turns[0].change["same"]


def test_forward_goes_on_with_its_own_answers_from_the_first_selected_turn(manager: SessionManager) -> None:
    talk(manager, "chat", "one", labels={})
    talk(manager, "chat", "two", labels={"from": "here"})
    talk(manager, "chat", "three")
    engine = RecordingEngine(["new"], repeat=True)
    result = replay(manager, engine=engine, forward=True, select=Selection(labels={"from": "here"}))
    assert texts_given(engine) == [["one", "one", "two"], ["one", "one", "two", "new", "three"]]
    assert prompts(result) == ["three", "two"]


def test_only_the_user_that_is_selected_comes_along(manager: SessionManager) -> None:
    talk(manager, "chat", "of ann")
    talk(manager, "chat", "of bob", user="bob")
    assert prompts(replay(manager, engine=EchoEngine(), select=Selection(user_id="bob"))) == ["of bob"]
    one = Selection(user_id="ann", sessions=["chat"])
    assert prompts(replay(manager, engine=EchoEngine(), select=one)) == ["of ann"]
    with pytest.raises(SessionNotFoundError):
        replay(manager, engine=EchoEngine(), select=Selection(user_id="carl", sessions=["chat"]))


def test_what_was_deleted_forgotten_or_removed_never_comes_along(manager: SessionManager) -> None:
    talk(manager, "gone", "a deleted secret")
    manager.get("gone", user_id="ann").delete()
    talk(manager, "chat", "a forgotten secret", "harmless", "a removed secret", "last")
    chat = manager.get("chat", user_id="ann")
    chat.memory.forget(0)
    chat.remove(chat.turn(2))
    for forward in (False, True):
        engine = RecordingEngine(["new"], repeat=True)
        result = replay(manager, engine=engine, forward=forward)
        assert "secret" not in json.dumps(texts_given(engine))
        assert "secret" not in str(result.turns)
        assert "last" in prompts(result)
        (last,) = [turn for turn in result.turns if turn.prompt == "last"]
        assert last.inexact


def test_of_versions_the_shown_one_is_replayed_unless_all_are_asked_for(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two")
    chat = manager.get("chat", user_id="ann")
    chat.rerun("other two").wait()
    assert prompts(replay(manager, engine=EchoEngine())) == ["one", "other two"]
    every = replay(manager, engine=EchoEngine(), select=Selection(versions="all"))
    assert prompts(every) == ["one", "other two", "two"]


def test_turns_that_were_cleared_never_come_along(manager: SessionManager) -> None:
    talk(manager, "chat", "a cleared secret", "stays", "last")
    manager.get("chat", user_id="ann").clear(keep_last=2)
    engine = RecordingEngine(["new"], repeat=True)
    result = replay(manager, engine=engine)
    assert prompts(result) == ["last", "stays"]
    assert "secret" not in json.dumps(texts_given(engine))
    assert all(turn.inexact for turn in result.turns)


def test_requests_are_counted_that_would_be_the_recorded_ones(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two", "three")
    assert check_requests(manager) == {"exact": 3}
    manager.get("chat", user_id="ann").memory.forget(1)
    counts = check_requests(manager, select=Selection(user_id="ann"))
    assert counts == {"exact": 1, "it lacks what was removed or forgotten since": 1}


def test_texts_that_a_session_said_and_copies_of_a_fork_are_not_replayed(manager: SessionManager) -> None:
    chat = manager.open("chat", user_id="ann")
    chat.say("Welcome.")
    chat.run("one").wait()
    chat.fork(session_id="fork")
    assert [turn.session_id for turn in replay(manager, engine=EchoEngine()).turns] == ["chat"]


def test_a_sample_has_its_size_and_the_same_seed_chooses_the_same(manager: SessionManager) -> None:
    for number in range(6):
        talk(manager, f"chat-{number}", "one", "two", "three", labels={"even": str(number % 2)})
    select = Selection(sample=7, seed=3, labels={"even": "0"})
    first, again = (replay(manager, engine=EchoEngine(), select=select) for _ in range(2))
    assert first.summary.turns == 7
    assert {(turn.session_id, turn.turn_index) for turn in first.turns} == {
        (turn.session_id, turn.turn_index) for turn in again.turns
    }
    assert all(turn.labels == {"even": "0"} for turn in first.turns)
    assert replay(manager, engine=EchoEngine(), select=Selection(sample=100)).summary.turns == 18


def test_nothing_is_written_to_the_store(manager: SessionManager) -> None:
    @tool
    def add(number: int) -> str:
        """Add."""
        raise AssertionError("a replay called a tool")

    talk(manager, "chat", "one", "two")

    def dump() -> Any:
        async def read(stored: StoredConversations) -> Any:
            key = SessionKey("chat", "ann")
            store = stored.store
            turns = await store.turns(key)
            blocks = [await store.blocks(turn.spans) for turn in turns]
            return await store.get(key), turns, blocks, await store.runs(key), await store.events(key)

        return conversations_of(manager, read)

    before, usage = dump(), manager.usage()
    result = replay(manager, engine=ScriptedEngine([[("add", {"number": 1})]], tools=[add], repeat=True), forward=True)
    assert {turn.answer.status for turn in result.turns} == {"stopped"}
    assert dump() == before
    assert manager.usage() == usage


def test_errors_of_an_engine_are_records_and_not_the_end(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two", "three")

    def fail_at_two(turn: Turn) -> str:
        if "TWO" in shout(turn):
            raise ConnectionError("the line broke")
        return "fine"

    result = replay(manager, engine=FunctionEngine(fail_at_two))
    assert {turn.prompt: turn.answer.status for turn in result.turns} == {
        "one": "completed",
        "two": "failed",
        "three": "completed",
    }
    assert result.turns[0].prompt == "two"
    assert "the line broke" in str(result.turns[0].answer.why)

    class Broken:
        def build(self, session: object) -> Any:
            raise OSError("no key")

    result = replay(manager, engine=Broken())
    assert [turn.answer.status for turn in result.turns] == ["failed"] * 3
    assert result.summary.all.metrics["errors"].replayed == 1.0


def test_a_run_that_a_session_would_refuse_is_a_failed_answer(manager: SessionManager) -> None:
    with SessionManager("memory://taken", engine=ScriptedEngine(["hi"], repeat=True), placement=InProcess()) as other:
        other.open().run("one", params={"temperature": 0.5}).wait()
        result = replay(other, engine=EchoEngine())
    assert "does not support parameters" in str(result.turns[0].answer.why)


class TestTools:
    """Calls that the record answers, and those that it does not."""

    called: ClassVar[list[Mapping[str, Any]]] = []

    @pytest.fixture
    def paid(self, url: str) -> Iterator[SessionManager]:
        self.called.clear()

        @tool
        def price(item: str) -> str:
            """Say a price."""
            return f"{item}: 7 euros"

        engine = ScriptedEngine([[("price", {"item": "tea"})], "7 euros."], tools=[price])
        with SessionManager(url, engine=engine, placement=InProcess()) as manager:
            manager.open("shop").run("What is tea?").wait()
            yield manager

    def engine(self, *arguments: str, **options: Any) -> FunctionEngine:
        @tool(**options)
        def price(item: str) -> str:
            """Say a price."""
            self.called.append({"item": item})
            return "now 9 euros"

        def answer(turn: Turn) -> Any:
            done = sum(isinstance(block, ToolUse) for block in turn.output)
            if done < len(arguments):
                return ToolUse(call_id=f"c{done}", name="price", input={"item": arguments[done]})
            return turn.blocks[-1].text  # type: ignore[union-attr]

        return FunctionEngine(answer, tools=[price])

    def test_equal_calls_get_the_recorded_results_also_if_they_are_repeated(self, paid: SessionManager) -> None:
        (turn,) = replay(paid, engine=self.engine("tea", "tea")).turns
        assert turn.answer.text == "tea: 7 euros"
        assert not turn.change["calls"]
        assert self.called == []

    def test_a_function_may_say_which_recorded_call_answers(self, paid: SessionManager) -> None:
        tools = RecordedTools(match=lambda call, recorded: call.name == recorded.name)
        (turn,) = replay(paid, engine=self.engine("Tea, please"), tools=tools).turns
        assert turn.answer.text == "tea: 7 euros"

    def test_another_call_stops_the_turn_and_keeps_what_was_said(self, paid: SessionManager) -> None:
        (turn,) = replay(paid, engine=self.engine("tea", "milk", reads=True)).turns
        assert (turn.answer.status, turn.answer.text) == ("stopped", "")
        assert [call.arguments for call in turn.answer.calls] == [{"item": "tea"}, {"item": "milk"}]
        assert self.called == []

    def test_a_tool_that_reads_is_called_if_that_is_wanted_and_no_other(self, paid: SessionManager) -> None:
        tools = RecordedTools(otherwise="read")
        (turn,) = replay(paid, engine=self.engine("milk", reads=True), tools=tools).turns
        assert (turn.answer.text, self.called) == ("now 9 euros", [{"item": "milk"}])
        (turn,) = replay(paid, engine=self.engine("milk"), tools=tools).turns
        assert turn.answer.status == "stopped"
        assert len(self.called) == 1

    def test_the_model_is_told_that_a_tool_is_not_available(self, paid: SessionManager) -> None:
        (turn,) = replay(paid, engine=self.engine("milk"), tools=RecordedTools(otherwise="error")).turns
        assert "not available" in turn.answer.text

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_function_simulates_the_tool(self, paid: SessionManager, is_async: bool) -> None:
        def simulate(use: ToolUse, recorded: object) -> str:
            return f"simulated {use.input['item']}"

        async def simulate_later(use: ToolUse, recorded: object) -> str:
            return simulate(use, recorded)

        tools = RecordedTools(otherwise=simulate_later if is_async else simulate)
        (turn,) = replay(paid, engine=self.engine("milk"), tools=tools).turns
        assert turn.answer.text == "simulated milk"
        assert self.called == []


def test_the_recorded_engine_asked_again_is_the_floor(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two")
    talk(manager, "other", "three")
    result = replay(manager, engine=FunctionEngine(lambda turn: f"other {shout(turn)}"), floor=EchoEngine())
    different = result.summary.all.metrics["different"]
    assert (different.replayed, different.floor) == (1.0, 0.0)
    assert result.summary.all.metrics["output_tokens"].floor_change.value == 0.0
    assert result.turns[0].floor is not None
    assert result.summary.has_floor


def test_usage_costs_and_the_first_token_are_recorded(manager: SessionManager) -> None:
    talk(manager, "chat", "one")

    def answer(turn: Turn) -> Iterator[str | Usage]:
        yield "Hello "
        yield "there."
        yield Usage(input_tokens=10, output_tokens=4)

    (turn,) = replay(manager, engine=FunctionEngine(answer)).turns
    assert turn.answer.text == "Hello there."
    assert (turn.answer.usage.input_tokens, turn.answer.usage.output_tokens) == (10, 4)
    assert turn.answer.first_token_s is not None
    assert 0 < turn.answer.first_token_s <= turn.answer.usage.seconds


def test_graders_grade_the_new_answer_and_the_floor(manager: SessionManager) -> None:
    talk(manager, "chat", "one")
    length = FunctionGrader("size", lambda turn, answer: len(answer.text))

    def broken(turn: object, answer: object) -> float:
        raise ValueError

    graders = [length, FunctionGrader("broken", broken)]
    result = replay(manager, engine=FunctionEngine(shout), floor=EchoEngine(), graders=graders)
    assert (result.turns[0].grades, result.turns[0].floor_grades) == ({"size": 4.0}, {"size": 3.0})
    assert result.summary.all.metrics["size"].turns == 1
    assert result.turns[0].grader_errors == {"broken": "ValueError"}


def test_a_cancelled_replay_stops_its_engines(url: str) -> None:
    stopped: list[str] = []

    async def hang(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(turn.session_id)
        return ""

    async def work() -> None:
        async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
            for name in ("one", "two"):
                await (await (await manager.open(name)).run("Hello.")).wait()
            started = asyncio.Event()

            async def note(turn: Turn) -> str:
                started.set()
                return await hang(turn)

            task = asyncio.create_task(replay(manager, engine=FunctionEngine(note)))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert stopped
            assert (await (await manager.get("one")).messages())[-1].text == "Hello."

    asyncio.run(work())


def test_the_unit_of_work_is_a_function_of_turns_that_pickle(manager: SessionManager) -> None:
    talk(manager, "chat", "one", "two")

    async def read(stored: StoredConversations) -> list[Any]:
        pages = recorded_turns(stored.store, SessionKey("chat", "ann"), Selection())
        return [turn async for page in pages for turn in page]

    turns = conversations_of(manager, read)
    work = Work(variant=Variant(engine=EchoEngine()))
    replays = asyncio.run(replay_turns(pickle.loads(pickle.dumps(turns)), pickle.loads(pickle.dumps(work))))
    assert [turn.answer.text for turn in pickle.loads(pickle.dumps(replays))] == ["one", "two"]


def test_a_conversation_of_many_pages_is_read_page_by_page(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.replay.recorded.TURNS_PAGE", 2)
    talk(manager, "chat", *map(str, range(7)))
    manager.get("chat", user_id="ann").memory.forget(5)
    for forward in (False, True):
        engine = RecordingEngine(["new"], repeat=True)
        result = replay(manager, engine=engine, forward=forward)
        assert prompts(result) == ["0", "1", "2", "3", "4", "6"]
        assert "5" not in json.dumps(texts_given(engine))
        assert len(texts_given(engine)[-1]) == 11


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "gpt"},
        {"engine": EchoEngine(), "floor": 3},
        {"engine": EchoEngine(), "at_once": 0},
        {"engine": EchoEngine(), "tools": "mine"},
        {"engine": EchoEngine(), "parquet": True},
        {"engine": EchoEngine(), "fail_if": "beauty > 3"},
        {"engine": EchoEngine(), "overflow": "trim"},
        {"engine": EchoEngine(), "graders": [FunctionGrader("a", one_point), FunctionGrader("a", one_point)]},
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_anything_is_asked(wrong: dict[str, Any]) -> None:
    with (
        SessionManager("memory://wrong", engine=EchoEngine(), placement=InProcess()) as manager,
        pytest.raises((InvalidInputError, ConfigError)),
    ):
        replay(manager, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample": 0},
        {"sessions": "chat"},
        {"statuses": ["running"]},
        {"statuses": []},
        {"versions": "old"},
        {"since": 3.0, "until": 2.0},
    ],
)
def test_a_selection_that_cannot_be_met_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Selection(**wrong)


def test_tools_that_cannot_be_answered_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="otherwise"):
        RecordedTools(otherwise="guess")  # type: ignore[arg-type]


def test_an_engine_that_calls_its_tools_by_itself_is_refused(manager: SessionManager) -> None:
    class Framework(EchoEngine):
        calls_its_tools = True

    engines: list[Any] = [
        Framework(),
        {"echo": EchoEngine(), "framework": Framework()},
        Shadow(Framework(), EchoEngine(), sink=print),
        {"echo": EchoEngine(), "beside": Shadow(Framework(), EchoEngine(), sink=print)},
    ]
    for engine in engines:
        with pytest.raises(InvalidInputError, match="could change something"):
            replay(manager, engine=engine)
        with pytest.raises(InvalidInputError, match=r"floor.*could change something"):
            replay(manager, engine=EchoEngine(), floor=engine)
