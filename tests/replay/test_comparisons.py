"""How answers are compared, graded and summed up, and when a replay has failed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from replays import answer, turn
from turnwise import EchoEngine, OpenAIEngine
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.values.records import replace
from turnwise.replay import Answer, Call, Condition, FunctionGrader, ModelGrader, TurnReplay
from turnwise.replay.comparing import Comparing, different_fields, is_refusal, normalised
from turnwise.replay.statistics import DRAWS, Summing, difference
from turnwise.testing import LocalProvider


def change(was: Answer, now: Answer, **options: Any) -> dict[str, Any]:
    return asyncio.run(Comparing(**options.pop("comparing", {})).change(was, now, **options))


def test_spaces_case_quotes_and_the_last_punctuation_make_no_difference() -> None:
    assert normalised(" It\u2019s  \u201cFine\u201d!\n") == normalised('it\'s "fine".') == 'it\'s "fine"'
    assert change(answer("Yes."), answer("yes"))["same"]
    assert not change(answer("Yes."), answer("No."))["same"]


def test_tool_calls_are_compared_as_a_sequence_with_their_arguments() -> None:
    one, other = Call(name="add", arguments={"a": 1}), Call(name="add", arguments={"a": 2})
    assert change(answer(calls=(one, other)), answer(calls=(one, other)))["calls"]
    assert not change(answer(calls=(one, other)), answer(calls=(other, one)))["calls"]
    assert not change(answer(calls=(one,)), answer(calls=(one, one)))["same"]


def test_structured_answers_are_compared_by_their_fields() -> None:
    was, now = '{"a": 1, "b": {"c": [1, 2]}, "d": true}', '{"b": {"c": [1, 3]}, "a": 1, "e": 1, "d": 1}'
    assert different_fields(was, now) == ["$.b.c[1]", "$.d", "$.e"]
    assert different_fields(was, "no JSON") == ["$"]
    assert change(answer('{"a": 1}'), answer('{ "a": 1 }'), is_json=True) == {
        "same": True,
        "text": True,
        "calls": True,
        "similarity": 1.0,
        "fields": [],
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_an_embedding_says_how_similar_texts_are(is_async: bool) -> None:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0], [1.0, 1.0]]

    async def embed_later(texts: Sequence[str]) -> list[list[float]]:
        return embed(texts)

    similarity = change(answer("a"), answer("b"), comparing={"embedding": embed_later if is_async else embed})
    assert similarity["similarity"] == round(2**-0.5, 4)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot assist with this request.", True),
        ("Sorry, I am unable to provide that information.", True),
        ("I\u2019m sorry, but I can\u2019t give you instructions for that.", True),
        ("Unfortunately, I won't be able to assist you.", True),
        ("As an AI language model, I cannot engage in this.", True),
        ("I must respectfully decline.", True),
        ("I can't wait to help you!", False),
        ("Sorry, I can't find this order: which number has it?", False),
        ("I can't give you a better price than 30 euros, which includes mail.", False),
        ("We need to refuel first.", False),
        ("Sorry for the delay: your order has shipped.", False),
        ("You cannot help that.", False),
    ],
)
def test_refusals_are_known_by_how_an_answer_begins(text: str, is_one: bool) -> None:
    assert is_refusal(answer(text)) is is_one


def test_refusals_are_known_by_codes_and_stop_reasons() -> None:
    assert is_refusal(answer(status="failed", code="refused"))
    assert is_refusal(answer("Well", stop_reason="content_filter"))
    assert not answer(status="failed", code="refused", is_refusal=True).is_error


def test_a_function_or_a_grader_says_what_a_refusal_is() -> None:
    def by_function(answer: Answer) -> bool | None:
        if answer.text == "?":
            raise ValueError
        return "leider" in answer.text if answer.text else None

    async def by_grader(_: TurnReplay, answer: Answer) -> float | None:
        return by_function(answer)

    for refusal in (by_function, FunctionGrader("refusal", by_grader)):
        comparing = Comparing(refusal=refusal)
        refusing = turn(answer("Das geht leider nicht."), answer("I cannot help with that.", is_refusal=True))
        refusing = asyncio.run(comparing.graded(replace(refusing, floor=answer("", is_refusal=True))))
        assert (refusing.recorded.is_refusal, refusing.answer.is_refusal) == (True, False)
        assert refusing.floor and refusing.floor.is_refusal, "if it does not say, codes and words do"
        unsure = asyncio.run(comparing.graded(turn(answer("?"), answer("?", is_refusal=True))))
        assert (unsure.recorded.is_refusal, unsure.answer.is_refusal) == (False, True), "so they do if it fails"
    with pytest.raises(InvalidInputError, match="refusal"):
        Comparing(refusal="sorry")  # type: ignore[arg-type]


def test_a_ratio_is_one_of_sums_and_its_interval_holds_it() -> None:
    summing = Summing()
    for number in range(50):
        summing.add(turn(answer(cost=1.0 + number % 3), answer(cost=2.0 + 2 * (number % 3)), session=str(number)))
    cost = summing.summary().all.metrics["cost"]
    assert cost.ratio.value == pytest.approx(2.0)
    assert cost.ratio.low == pytest.approx(2.0)
    assert cost.change.value == pytest.approx(1.98)
    assert cost.change.low is not None
    assert cost.change.high is not None
    assert cost.change.low < 1.98 < cost.change.high


def test_turns_of_one_conversation_count_as_one_draw() -> None:
    """So 400 turns of 10 conversations are less sure than 400 turns of 400 conversations."""
    widths = []
    for conversations in (10, 400):
        summing, random = Summing(), np.random.default_rng(1)
        cost_of = random.normal(2, 1, conversations)
        for number in range(400):
            summing.add(
                turn(
                    answer(cost=1.0), answer(cost=cost_of[number % conversations]), session=str(number % conversations)
                )
            )
        change_of_cost = summing.summary().all.metrics["cost"].change
        assert change_of_cost.low is not None
        assert change_of_cost.high is not None
        widths.append(change_of_cost.high - change_of_cost.low)
    assert widths[0] > 3 * widths[1]


@pytest.mark.by_turns
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held, usual = 0, turn(answer(cost=1.0), answer())
    for seed in range(200):
        summing, random = Summing(seed=seed), np.random.default_rng(seed)
        for number, cost in enumerate(random.normal(3, 1, 60)):
            summing.add(replace(usual, session_id=str(number), answer=answer(cost=cost)))
        interval = summing.summary().all.metrics["cost"].change
        held += interval.low is not None and interval.high is not None and interval.low <= 2 <= interval.high
    assert 178 <= held <= 198  # of 200; 190 are expected


def test_one_conversation_has_no_interval_and_equal_seeds_give_equal_ones() -> None:
    summing = Summing()
    summing.add(turn(answer("a"), answer("b")))
    assert summing.summary().all.metrics["different"].change.low is None
    again = [Summing(seed=4), Summing(seed=4)]
    for each in again:
        for number in range(12):
            each.add(turn(answer(cost=1), answer(cost=number), session=str(number)))
    assert again[0].summary() == again[1].summary()
    assert DRAWS >= 1000


def test_more_conversations_than_are_drawn_give_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    summing, usual = Summing(), turn(answer(cost=1.0), answer())
    for number, cost in enumerate(random.normal(3, 1, 2000)):
        summing.add(replace(usual, session_id=str(number), answer=answer(cost=cost)))
    exact = summing.summary().all.metrics["cost"].change
    monkeypatch.setattr("turnwise.replay.statistics.MOST_DRAWN", 400)
    near = summing.summary().all.metrics["cost"].change
    assert near.value == exact.value
    assert near.low == pytest.approx(exact.low, abs=0.02)
    assert near.high == pytest.approx(exact.high, abs=0.02)


def test_what_only_some_answers_have_is_compared_where_both_have_it() -> None:
    summing = Summing(["helpful"])
    summing.add(turn(answer("a"), answer("a", first_token_s=0.5), grades={"helpful": 1.0}, session="one"))
    summing.add(turn(answer("a"), answer("a"), session="two"))
    metrics = summing.summary().all.metrics
    assert (metrics["helpful"].turns, metrics["helpful"].replayed, metrics["helpful"].recorded) == (1, 1.0, None)
    assert (metrics["first_token_s"].turns, metrics["first_token_s"].replayed) == (1, 0.5)


def test_groups_are_by_label_agent_and_length() -> None:
    summing = Summing()
    summing.add(turn(answer("a"), answer("b"), agent="sales", labels={"channel": "mail"}, session="one"))
    summing.add(turn(answer("a"), answer("a"), agent="help", window_blocks=12, session="two"))
    summary = summing.summary()
    found = {group.name: group.metrics["different"].replayed for group in summary.groups}
    assert found == {
        "(none)": 0.0,
        "agent=help": 0.0,
        "agent=sales": 1.0,
        "channel=mail": 1.0,
        "length>=0": 1.0,
        "length>=10": 0.0,
    }
    assert summary.all.metrics["different"].replayed == 0.5


def test_differences_against_the_floor_have_their_own_interval() -> None:
    summing = Summing()
    for number in range(20):
        summing.add(turn(answer("a"), answer("b"), floor=answer("b" if number % 2 else "a"), session=str(number)))
    different = summing.summary().all.metrics["different"]
    assert (different.replayed, different.floor) == (1.0, 0.5)
    assert different.above_floor.value == 0.5
    assert different.above_floor.low is not None
    assert 0.2 < different.above_floor.low < 0.5


def test_errors_differ_more_than_other_calls_and_these_more_than_other_texts() -> None:
    was = answer("a")
    call = answer("a", calls=(Call(name="add", arguments={}),))
    turns = [turn(was, now) for now in (answer("a"), answer("b"), call, answer(status="failed"))]
    assert sorted(turns, key=difference) == turns


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("cost > 1.1x", True),
        ("cost > 1.3x", False),
        ("cost > +10%", True),
        ("cost > +0.1", True),
        ("cost > +0.5", False),
        ("cost < 2", True),
        ("refusals > +1%", True),
        ("refusals > +60%", False),
        ("refusals >= 50%", True),
        ("different > 20%", True),
        ("errors > 0%", False),
        ("cost > 2x or different > 20%", True),
        ("cost > 2x and different > 20%", False),
        ("cost > 2x and different > 20% or refusals > +1%", True),
        ("cost.low > 1.1x", True),
        ("kind < 0", True),
        ("first_token_s > 100", False),
    ],
)
def test_a_condition_compares_with_the_record(text: str, is_met: bool) -> None:
    summing = Summing(["kind"])
    for number in range(20):
        now = answer("b", cost=1.2, is_refusal=number % 2 == 0)
        summing.add(turn(answer("a", cost=1.0), now, session=str(number), grades={"kind": -1.0}))
    assert bool(Condition.parse(text, ("kind",)).check(summing.summary()).met) is is_met


@pytest.mark.parametrize(
    "text",
    ["", "cost", "cost > ", "cost >> 1", "beauty > 1", "different > 2x", "cost > +2x", "cost.low > 3", "cost > 1 or"],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="fail_if"):
        Condition.parse(text)


def test_a_model_grades_in_both_orders_and_must_not_depend_on_them() -> None:
    replay = turn(answer("the worse"), answer("the better"))

    def prefer_better(messages: list[dict[str, Any]]) -> str:
        question = str(messages[-1]["content"])
        is_first = question.index("the better") < question.index("the worse")
        return f'{{"why": "better", "better": "{"first" if is_first else "second"}"}}'

    grades = {}
    for name, reply in {
        "fair": prefer_better,
        "first": lambda _: '{"why": "", "better": "first"}',
        "neither": lambda _: '{"why": "", "better": "neither"}',
    }.items():
        with LocalProvider(reply=reply) as provider:
            grader = ModelGrader(name, OpenAIEngine("local", base_url=provider.base_url), "Which is better?")
            grades[name] = asyncio.run(grader.grade(replay, replay.answer))
            assert len(provider.requests) >= 2
            assert "Which is better?" in str(provider.requests[0].body["messages"][0])
            worse = asyncio.run(grader.grade(replace(replay, recorded=replay.answer), replay.recorded))
            assert name != "fair" or worse == -1.0
    assert grades == {"fair": 1.0, "first": 0.0, "neither": 0.0}


def test_a_model_without_a_verdict_leaves_the_turn_without_the_grade() -> None:
    with LocalProvider(reply=lambda _: "no JSON") as provider:
        grader = ModelGrader("broken", OpenAIEngine("local", base_url=provider.base_url), "Which is better?")
        graded = asyncio.run(Comparing(graders=[grader]).graded(turn(answer("a"), answer("b"))))
    assert graded.grades == {}
    assert "no verdict: 'no JSON'" in graded.grader_errors["broken"]


def test_an_engine_without_typed_answers_cannot_grade() -> None:
    with pytest.raises(ConfigError, match="Structured"):
        ModelGrader("kind", EchoEngine(), "Which is kinder?")
