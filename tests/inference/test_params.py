"""Model parameters: checked, stored, sent in the format of each API, and refused if unsupported."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from test_tool_loop import Scripted, Stage, use

from engine_calls import HEALTHY, Recorder, engine_at, refusal, run, turn
from quirks import QuirkServer
from schedules import SESSION, DawdlingStore, explore
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import StepContext, check_taken
from turnwise.actors.inference.middleware import SystemPrompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.errors import EngineError, IdempotencyConflictError, InvalidInputError, RequestRefusedError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.model_params import PARAMS, ModelParams, check_params, merged
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.values.frozen_json import freeze
from turnwise.testing import LocalProvider

pytestmark = pytest.mark.virtual_time


SCHEMA = {"name": "city", "schema": {"type": "object"}, "strict": True}
KEYS = ("type", "function", "name", "json_schema", "schema", "strict", "team")
LOOK = {"type": "function", "function": {"name": "look"}}


@tool
def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


# What is sent

FORMS: dict[str, tuple[Any, Mapping[str, Any], Mapping[str, Any] | None]] = {
    "temperature": (0.2, {"temperature": 0.2}, {"temperature": 0.2}),
    "top_p": (0.9, {"top_p": 0.9}, {"top_p": 0.9}),
    "frequency_penalty": (-1, {"frequency_penalty": -1.0}, None),
    "presence_penalty": (1.5, {"presence_penalty": 1.5}, None),
    "max_output_tokens": (50, {"max_completion_tokens": 50}, {"max_output_tokens": 50}),
    "seed": (7, {"seed": 7}, None),
    "stop": ("END", {"stop": ["END"]}, None),
    "reasoning_effort": ("low", {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
    "verbosity": ("low", {"verbosity": "low"}, {"text": {"verbosity": "low"}}),
    "tool_choice": (LOOK, {"tool_choice": LOOK}, {"tool_choice": {"type": "function", "name": "look"}}),
    "parallel_tool_calls": (False, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    "response_format": (
        {"type": "json_schema", **SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
    ),
    "service_tier": ("flex", {"service_tier": "flex"}, {"service_tier": "flex"}),
    "metadata": ({"team": "blue"}, {"metadata": {"team": "blue"}}, {"metadata": {"team": "blue"}}),
    "prompt_cache_key": ("k", {"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
    "safety_identifier": ("u-1", {"safety_identifier": "u-1"}, {"safety_identifier": "u-1"}),
}
"""For each parameter: a value, its fields in the chat API, and those in the Responses API, or None."""


def requests(
    engine: OpenAIEngine, server: Any, params: Mapping[str, Any], model: str | None = None, *blocks: Block
) -> dict[str, Any]:
    """Return the request that the engine sends for a run with these parameters."""

    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        context.params, context.model = check_params("params", params), model
        await runner.run(turn("Hello", *blocks), context)

    _, context = run(engine, use, engine.registry.definitions())
    assert context.model == (model or engine.model), "whose prices apply"
    sent: dict[str, Any] = server.requests[-1] if isinstance(server, QuirkServer) else server.requests[-1].body
    return sent


def looking(server: QuirkServer, **settings: Any) -> OpenAIEngine:
    return engine_at(server, **{"tools": [look], **settings})


def test_every_parameter_has_its_forms() -> None:
    assert list(FORMS) == list(PARAMS) == list(ModelParams.__annotations__)


@pytest.mark.parametrize("api", HEALTHY)
@pytest.mark.parametrize("name", FORMS)
def test_a_parameter_is_sent_in_the_format_of_the_api(name: str, api: Any) -> None:
    value, *forms = FORMS[name]
    form = forms[list(HEALTHY).index(api)]
    with QuirkServer(HEALTHY[api]) as server:
        engine = looking(server, api=api)
        if form is None:
            with pytest.raises(InvalidInputError, match=rf"^params\['{name}'\]=.*: the Responses API has no such"):
                check_taken(engine, None, check_params("params", {name: value}))
            return
        check_taken(engine, None, check_params("params", {name: value}))
        without, sent = requests(engine, server, {}), requests(engine, server, {name: value})
    assert {field: sent[field] for field in sent if sent[field] != without.get(field)} == dict(form)


@pytest.mark.parametrize("api", HEALTHY)
def test_a_runs_parameters_replace_the_engines_settings(api: Any) -> None:
    extra = {"top_p": 0.1, "metadata": {"a": "b"}, "reasoning": {"summary": "auto", "effort": "high"}}
    with QuirkServer(HEALTHY[api]) as server:
        engine = looking(server, api=api, temperature=1.0, max_output_tokens=9, extra=extra)
        params = {"temperature": 0, "max_output_tokens": 5, "top_p": 0.5, "reasoning_effort": "low"}
        sent = requests(engine, server, params, "another")
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["metadata"]) == ("another", 0.0, 0.5, {"a": "b"})
    assert sent["max_completion_tokens" if api == "chat" else "max_output_tokens"] == 5
    assert sent["reasoning"]["effort" if api == "responses" else "summary"] == ("low" if api == "responses" else "auto")


def test_the_output_limit_is_sent_under_the_name_in_extra() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        sent = requests(looking(server, max_output_tokens=9, extra={"max_tokens": 8}), server, {"max_output_tokens": 5})
        assert (sent["max_tokens"], "max_completion_tokens" in sent) == (5, False)
        sent = requests(looking(server, provider="mistral"), server, {"max_output_tokens": 5, "seed": 3})
        assert (sent["max_tokens"], sent["random_seed"], "seed" in sent) == (5, 3, False)


def test_the_name_of_the_output_limit_is_learnt_per_model() -> None:
    refused = refusal("Unsupported parameter: 'max_completion_tokens' is not supported.")
    with QuirkServer(refused, HEALTHY["chat"]) as server:
        engine = looking(server)
        assert requests(engine, server, {"max_output_tokens": 5}, "older")["max_tokens"] == 5
        assert requests(engine, server, {"max_output_tokens": 5}, "older")["max_tokens"] == 5
        assert requests(engine, server, {"max_output_tokens": 5})["max_completion_tokens"] == 5
        assert len(server.requests) == 4


@pytest.mark.parametrize("api", HEALTHY)
def test_a_refused_parameter_is_not_blamed_on_the_conversation(api: Any) -> None:
    """Otherwise later requests would leave out its attachments."""
    with QuirkServer(refusal("'temperature' is not supported with this model.", param="temperature")) as server:
        with pytest.raises(EngineError, match=r"'another' at .* 'temperature' is not supported") as error:
            requests(looking(server, api=api), server, {"temperature": 0.5}, "another")
        assert not isinstance(error.value, RequestRefusedError)
        assert len(server.requests) == 1


@pytest.mark.parametrize("api", HEALTHY)
def test_a_forced_call_in_extra_applies_until_the_first_result(api: Any) -> None:
    """Otherwise each step would have to call a tool, up to the step limit."""
    with QuirkServer(HEALTHY[api]) as server:
        engine = looking(server, api=api, extra={"tool_choice": "required"})
        assert requests(engine, server, {})["tool_choice"] == "required"
        called = (ToolUse(call_id="1", name="look", input={"at": "a"}), ToolResult(call_id="1", text="saw a"))
        assert requests(engine, server, {}, None, *called)["tool_choice"] == "auto"


@pytest.mark.parametrize("api", HEALTHY)
def test_requests_without_tools_have_no_tool_choice(api: Any) -> None:
    with LocalProvider() as provider:
        settings = {"base_url": provider.base_url, "api": api, "max_retries": 0}
        plain = OpenAIEngine("local", **settings)
        choosy = OpenAIEngine("local", tools=[look], extra={"tool_choice": "required"}, **settings)
        for engine, params in ((plain, {"tool_choice": "none"}), (choosy.answering(SCHEMA["schema"]), {})):
            check_taken(engine, None, check_params("params", params))
            sent = requests(engine, provider, params)
            assert "tool_choice" not in sent


# What is refused

WRONG: dict[str, list[Any]] = {
    "temperature": [-0.1, "0.2", True, float("nan"), float("inf"), []],
    "top_p": [-0.1, 1.1, "1"],
    "frequency_penalty": [-2.1, 2.1, "1"],
    "presence_penalty": [-2.1, 2.1, None.__class__],
    "max_output_tokens": [0, -1, 1.5, "5", True, 2**31],
    "seed": [0.5, "7", True, 2**63],
    "stop": ["", [], [""], ["a", 1], ["a"] * 17, {"a": "b"}, 5],
    "reasoning_effort": ["much", "", 1],
    "verbosity": ["some", 1],
    "tool_choice": ["look", "", 1, {}, {"type": "function"}, {**LOOK, "x": 1}, {"type": "web_search"}, ["auto"]],
    "parallel_tool_calls": [1, "yes"],
    "response_format": [
        *("json_object", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_object", "schema": {}}),
        *({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, {"type": "json_schema", "name": "a"}),
    ],
    "service_tier": ["fastest", 1],
    "metadata": ["a", {"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}, {str(index): "" for index in range(17)}, ["a"]],
    "prompt_cache_key": ["", 1, "x" * 513],
    "safety_identifier": ["", 1],
}


@pytest.mark.parametrize("name", PARAMS)
def test_a_wrong_value_is_refused_with_the_parameters_name(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(InvalidInputError) as refused:
            check_params("params", {"temperature": 0.5, name: value})
        assert refused.value.field.startswith(f"params['{name}']"), value
        assert len(str(refused.value)) < 500
    assert check_params("params", {name: None}) == {name: None}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("max_tokens", "it is called max_output_tokens"),
        ("model", "pass it beside params: model="),
        ("n", "one answer is kept"),
        ("extra_body", r"OpenAIEngine\(extra="),
        ("heat", "there are temperature, top_p"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(name: str, remedy: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^params\['{name}'\]=1: .*{remedy}"):
        check_params("params", {name: 1})


def test_checked_parameters_have_one_form_and_checking_is_idempotent() -> None:
    params = {"stop": "END", "tool_choice": {"type": "function", "name": "look"}, "temperature": 1}
    once = check_params("params", {**params, "response_format": {"type": "json_schema", **SCHEMA}})
    assert once == {
        "stop": ("END",),
        "tool_choice": LOOK,
        "temperature": 1.0,
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    }
    assert check_params("params", once) == once == pickle.loads(pickle.dumps(once))
    assert hash(once) == hash(check_params("params", once))


LEAVES = (st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(["auto", "low"]))
ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(["auto", "low"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)),
    max_leaves=4,
)


@given(st.dictionaries(st.one_of(st.sampled_from(PARAMS), st.text(max_size=3)), ANYTHING, max_size=3))
def test_any_parameters_are_refused_by_name_or_can_be_stored_and_sent(passed: dict[str, Any]) -> None:
    try:
        checked, refused = check_params("params", passed), ""
    except InvalidInputError as error:
        checked, refused = freeze({}), error.field
    if refused:
        assert refused.startswith(("params", "a key of params"))
        return
    assert checked.keys() == passed.keys()
    stored = freeze(json.loads(json.dumps(checked)))
    assert check_params("params", stored) == checked
    for api in HEALTHY:
        engine = OpenAIEngine("local", api=api, tools=[look])  # type: ignore[arg-type]
        api_of_engine = engine._api((), "", "")  # noqa: SLF001 - the bodies of requests, without requests
        api_of_run = api_of_engine.of_run(
            api_of_engine.settings.of_run("local", merged({}, checked), is_later_step=False)
        )
        if not engine.not_taken(None, merged({}, checked)):
            assert json.loads(json.dumps(api_of_run.fields)) is not None


def test_later_parameters_replace_earlier_ones_and_none_removes_them() -> None:
    assert merged({"seed": 1, "top_p": 0.5}, {"seed": None, "temperature": 0.0}) == {"top_p": 0.5, "temperature": 0.0}


@pytest.mark.parametrize(
    ("settings", "params", "reason"),
    [
        ({"tools": ()}, {"tool_choice": "required"}, "the engine has no such tool; it has none"),
        ({}, {"tool_choice": {"type": "function", "name": "paint"}}, "no such tool; it has look"),
        ({"tools": ()}, {"parallel_tool_calls": True}, "the engine has no tools"),
        ({"provider": "llama.cpp"}, {"tool_choice": LOOK}, "provider 'llama.cpp' does not support it"),
        ({"provider": "deepseek"}, {"seed": 7}, "provider 'deepseek' does not support it: omit it; see https://"),
        ({"provider": "deepseek"}, {"response_format": {"type": "json_schema", **SCHEMA}}, "does not support schemas"),
        ({"base_url": "https://api.deepseek.com"}, {"metadata": {"a": "b"}}, "provider 'deepseek' does not support it"),
    ],
    ids=str,
)
def test_unsupported_parameters_are_refused(settings: dict[str, Any], params: dict[str, Any], reason: str) -> None:
    engine = OpenAIEngine("local", **{"tools": [look], **settings})
    with pytest.raises(InvalidInputError, match=rf"^params\['{next(iter(params))}'\]=.*{reason}"):
        check_taken(engine, None, check_params("params", params))
    check_taken(engine, "another", check_params("params", {"temperature": 0.5, "tool_choice": "none"}))


def test_a_tool_in_extra_may_be_chosen() -> None:
    engine = OpenAIEngine("local", api="responses", extra={"tools": [{"type": "web_search"}]})
    check_taken(engine, None, check_params("params", {"tool_choice": "required", "parallel_tool_calls": False}))


# On a session


class Steered(Scripted):
    """A scripted model that supports all parameters, and records those of each call."""

    def __init__(self, script: Sequence[Sequence[AnyBlock]], registry: ToolRegistry) -> None:
        super().__init__(script, registry)
        self.asked: list[tuple[str | None, Mapping[str, Any]]] = []
        self.waits: asyncio.Event | None = None

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        return {"seed": "it throws dice"} if "seed" in params else {}

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self.asked.append((context.model, dict(context.params)))
        if self.waits and len(self.asked) > 1:
            self.waits.set()
            await asyncio.sleep(3600)
        return await super().run(turn, context)


APPROVED = ApprovalDecision(verdict="approved")
TWO_STEPS: list[list[AnyBlock]] = [[use("1", "look", at="a")], [Text(text="done")]]


def steered(*settings: Any) -> Steered:
    return Steered(TWO_STEPS, ToolRegistry(look, *settings))


async def test_a_forced_choice_holds_for_the_first_step_other_parameters_for_all() -> None:
    engine = steered()
    stage = Stage(engine)
    await stage.start(model="large", params={"temperature": 0.5, "tool_choice": "required"})
    assert (await stage.outcome()).run.state == "completed"
    assert engine.asked == [
        ("large", {"temperature": 0.5, "tool_choice": "required"}),
        ("large", {"temperature": 0.5, "tool_choice": "auto"}),
    ]
    run = await stage.store.run("run")
    assert (run.model, run.params) == ("large", {"temperature": 0.5, "tool_choice": "required"})


@pytest.mark.parametrize("after", ["the first call", "the first result"])
async def test_a_resumed_run_has_the_same_parameters(after: str) -> None:
    engine = steered()
    stage = Stage(engine, on_lost="resume")
    engine.waits = asyncio.Event()
    params = {"temperature": 0.5, "tool_choice": "required", "metadata": {"team": "blue"}}
    if after == "the first call":
        engine.asked.append((None, {}))  # so that the first one waits
    await stage.start(model="large", params=params)
    await engine.waits.wait()
    engine.waits = None
    engine.asked.clear()
    await stage.new_core().transactor.activate()
    assert (await stage.outcome()).run.state == "completed"
    later = {**params, "tool_choice": "auto"}
    assert engine.asked == [
        ("large", params_of_call) for params_of_call in ([params, later] if after == "the first call" else [later])
    ]


def test_a_run_killed_anywhere_keeps_its_parameters() -> None:
    """Another process activates the session at random moments, up to three times in a run."""
    taken_over = Counter[int]()

    async def story(seed: int) -> None:
        dice = random.Random(seed)
        requests_seen: list[tuple[Mapping[str, Any], bool]] = []

        class Slow(Steered):
            async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
                requests_seen.append((context.params, bool(turn.output)))
                await asyncio.sleep(dice.random() * 0.02)
                return await super().run(turn, context)

        @tool(repeatable=True)
        async def look(at: str) -> str:
            """Look."""
            await asyncio.sleep(dice.random() * 0.02)
            return f"saw {at}"

        script: list[list[AnyBlock]] = [[use("1", "look", at="a")], [use("2", "look", at="b")], [Text(text="done")]]
        stage = Stage(Slow(script, ToolRegistry(look)), on_lost="resume")
        stage.store = DawdlingStore(dice)
        stage.new_core()
        params = {"top_p": 0.5, "tool_choice": "required"}
        await stage.start(params=params)
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(dice.random() * 0.03)
            await stage.new_core().transactor.activate()
        outcome = await stage.outcome()
        assert outcome.run.state == "completed" and outcome.run.params == params
        taken_over[outcome.run.resumes] += 1
        for checked, has_output in requests_seen:
            assert checked == {"top_p": 0.5, "tool_choice": "auto" if has_output else "required"}

    assert explore(30, story) and all(taken_over[times] for times in range(3))


async def test_a_run_that_waited_for_approval_keeps_its_parameters() -> None:
    @tool(approval=True)
    def paint(at: str) -> str:
        """Paint."""
        return "painted"

    engine = Steered([[use("1", "paint", at="a")], [Text(text="done")]], ToolRegistry(paint))
    stage = Stage(engine)
    await stage.start(params={"top_p": 0.5, "tool_choice": {"type": "function", "function": {"name": "paint"}}})
    await stage.until(stage.awaits)
    assert await stage.core.ownership.leave()
    core = stage.new_core()
    await core.approvals.decide("run", "1", APPROVED)
    assert (await stage.outcome()).run.state == "completed"
    assert engine.asked[1:] == [(None, {"top_p": 0.5, "tool_choice": "auto"})]


async def test_a_sessions_parameters_apply_to_its_runs_and_forks() -> None:
    engine = Steered([[Text(text="done")]], ToolRegistry())
    stage = Stage(engine)
    options: dict[str, Any] = {"model": "large", "params": check_params("params", {"temperature": 0.5, "top_p": 0.5})}
    await stage.store.create(SessionRecord(session_id=SESSION, **options))
    await stage.core.admission.start(["go"], run_id="run")
    await stage.outcome()
    await stage.core.admission.start(["go"], run_id="next", model="small", params={"temperature": 0.0, "top_p": None})
    await stage.core.reads.wait("next")
    fork = await stage.core.forking.fork(None, "fork")
    assert engine.asked == [("large", {"temperature": 0.5, "top_p": 0.5}), ("small", {"temperature": 0.0})]
    assert (fork.model, fork.params) == ("large", {"temperature": 0.5, "top_p": 0.5})


async def test_a_run_with_unsupported_parameters_is_refused_and_nothing_is_stored() -> None:
    for engine, options, reason in (
        (
            EchoEngine(),
            {"params": {"temperature": 0.5}},
            r"params\['temperature'\]=0.5: EchoEngine does not support param",
        ),
        (EchoEngine(), {"model": "large"}, "model='large': EchoEngine does not support parameters"),
        (steered(), {"params": {"top_p": 0.5, "seed": 7}}, r"params\['seed'\]=7: it throws dice"),
    ):
        stage = Stage(engine)
        await stage.create()
        with pytest.raises(InvalidInputError, match=reason):
            await stage.core.admission.start(["go"], run_id="run", **options)
        assert (
            await stage.store.runs(SessionKey(SESSION)) == []
            and (await stage.store.get(SessionKey(SESSION))).log_size == 0
        )
        await stage.core.admission.start(["go"], run_id="run")
        assert (await stage.outcome()).run.state == "completed"


async def test_a_repeated_key_with_other_parameters_is_a_conflict() -> None:
    stage = Stage(steered())
    await stage.create()
    first = await stage.core.admission.start(["go"], run_id="run", idempotency_key="k", params={"top_p": 0.5})
    assert await stage.core.admission.start(["go"], run_id="again", idempotency_key="k", params={"top_p": 0.5}) == first
    with pytest.raises(IdempotencyConflictError):
        await stage.core.admission.start(["go"], run_id="other", idempotency_key="k", params={"top_p": 0.6})


def test_parameters_are_sent_when_middleware_changes_the_request() -> None:
    async def story() -> None:
        with QuirkServer(HEALTHY["chat"]) as server:
            engine = looking(server, middleware=[SystemPrompt("Be brief.")])
            stage = Stage(engine)
            await stage.start(params={"temperature": 0.5, "tool_choice": "required"})
            assert (await stage.outcome()).run.state == "completed"
            (request,) = server.requests
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (request["temperature"], request["tool_choice"]) == (0.5, "required")

    asyncio.run(story())
