"""Conditions of a replay fail where they must: errors, unknown costs, failing graders, and nothing to compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer import testing

from replays import answer, turn
from turnwise import EchoEngine, InProcess, OpenAIEngine, Price, SessionConfig, SessionManager
from turnwise.cli import app
from turnwise.errors import InvalidInputError
from turnwise.replay import Answer, Condition, FunctionGrader, Selection, TurnReplay, replay
from turnwise.replay.comparing import Comparing
from turnwise.replay.conditions import Verdict, notes
from turnwise.replay.statistics import Summing
from turnwise.testing import LocalProvider


def summed(turns: list[TurnReplay], graders: tuple[str, ...] = ()) -> Summing:
    summing = Summing(graders)
    for each in turns:
        summing.add(each)
    return summing


def verdict(
    condition: str, pairs: list[tuple[Answer, Answer]], graders: tuple[str, ...] = (), **fields: Any
) -> Verdict:
    turns = [turn(was, now, session=str(number), **fields) for number, (was, now) in enumerate(pairs)]
    return Condition.parse(condition, graders).check(summed(turns, graders).summary())


PAID = answer("Yes.", cost=1.0)
FAILED = answer(status="failed", cost=0.0)
UNPRICED = answer("Yes.", unknown=("cost",), model="new")


@pytest.fixture
def manager(tmp_path: Path) -> Any:
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess()) as manager:
        for name in ("one", "two"):
            manager.open(name).run("Hello.").wait()
        yield manager


def test_a_provider_that_is_away_passes_no_condition() -> None:
    found = verdict("cost > 1.1x or refusals > +1%", [(PAID, FAILED)] * 12)
    assert found.met[0].startswith("errors > +1%: it is +100.0%, 95 % interval +100.0% to +100.0%, of 12 turns")
    assert "default" in found.met[0]
    assert len(found.unknown) == 2


def test_amounts_are_those_of_pairs_that_are_both_complete() -> None:
    stopped = answer("", cost=0.1, status="stopped")
    summary = summed([turn(PAID, PAID), turn(PAID, FAILED), turn(PAID, stopped), turn(FAILED, PAID)]).summary()
    for name in ("cost", "output_tokens", "length", "tool_calls"):
        assert summary.all.metrics[name].turns == 1
    assert summary.all.metrics["cost"].ratio.value == 1.0
    assert (summary.all.metrics["errors"].turns, summary.all.metrics["refusals"].turns) == (4, 1)


def test_amounts_above_the_floor_are_those_of_pairs_that_are_both_complete() -> None:
    dear = answer("Yes.", cost=3.0)
    turns = [turn(PAID, dear, floor=PAID), turn(PAID, FAILED, floor=PAID), turn(UNPRICED, dear, floor=PAID)]
    cost = summed(turns).summary().all.metrics["cost"]
    assert (cost.above_floor.value, cost.floor_ratio.value) == (2.0, 3.0)


def test_a_condition_on_errors_replaces_the_default() -> None:
    pairs = [(PAID, FAILED), *[(PAID, PAID)] * 19]
    assert verdict("cost > 1.1x", pairs).met
    assert verdict("cost > 1.1x or errors > 10%", pairs) == Verdict()


def test_a_cost_without_a_price_is_unknown_and_named() -> None:
    found = verdict("cost > 1.1x", [(PAID, UNPRICED)] * 3)
    assert not found.met
    assert "'new'" in found.unknown[0] and "--prices" in found.unknown[0] and "--config" in found.unknown[0]
    recorded = verdict("cost > 1.1x", [(UNPRICED, PAID)] * 3)
    assert "3 recorded answers had no price" in recorded.unknown[0]
    assert verdict("cost > 1.1x or different > 20%", [(PAID, answer("No.", unknown=("cost",)))]).met
    assert verdict("cost > 1.1x and different > 20%", [(PAID, UNPRICED)]) == Verdict()


def test_prices_make_the_cost_of_new_answers_known(tmp_path: Path) -> None:
    with LocalProvider(reply="Yes.") as provider:
        now, new = (OpenAIEngine(name, base_url=provider.base_url) for name in ("now", "new"))
        config = SessionConfig(prices={"now": Price(input=1, output=1)})
        url = f"sqlite:///{tmp_path}/chats.db"
        with SessionManager(url, engine=now, config=config, placement=InProcess()) as manager:
            manager.open("one").run("Hello.").wait()
            found = replay(manager, engine=new, fail_if="cost > 1.1x", out=tmp_path / "out")
            assert found.summary.unpriced == ("new",) and "'new'" in found.undecided[0]
            row = json.loads((tmp_path / "out/turns.jsonl").read_text())
            assert (row["answer"]["unknown"], "unknown" in row["recorded"]) == (["cost"], False)
            for output, is_met in ((3, True), (1, False)):
                prices = {"new": Price(input=output, output=output)}
                found = replay(manager, engine=new, fail_if="cost > 1.1x", prices=prices)
                assert (bool(found.failed), found.undecided) == (is_met, ())
            free = replay(manager, engine=new, prices={"new": Price(input=0, output=0)})
            assert free.summary.all.metrics["cost"].ratio.value == 0.0, "a price of 0 is known"


def test_nothing_compared_passes_no_condition() -> None:
    assert "nothing was compared" in verdict("cost > 1.1x", []).unknown[0]
    assert "Nothing was compared" in notes(Summing().summary())[0]


def test_a_grader_that_always_fails_is_named(manager: SessionManager) -> None:
    def fail(replay: TurnReplay, answer: Answer) -> float:
        raise ValueError("no rubric")

    grader = FunctionGrader("is kind", fail)
    found = replay(manager, engine=EchoEngine(), graders=[grader], fail_if="'is kind' < 0.5")
    assert found.undecided == found.failed
    assert "'is kind' failed in 2 of 2 turns: ValueError: no rubric" in found.undecided[0]
    assert any("'is kind' failed in 2 of 2 turns" in note for note in notes(found.summary))


def test_names_with_spaces_are_quoted_and_may_have_words_of_conditions() -> None:
    name = "kind or fair and short"
    for quote in ("'", '"'):
        text = f"{quote}{name}{quote} < 0.5 and different > 10% or errors > 50%"
        found = verdict(text, [(PAID, answer("No."))], (name,), grades={name: 0.0})
        assert found.met[0] == f"{quote}{name}{quote} < 0.5: it is 0, of 1 turn"
    with pytest.raises(InvalidInputError, match="a measure has this name"):
        Comparing(graders=[FunctionGrader("cost", lambda _, __: 1.0)])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("refusals > 1.1", "write 1.1%"),
        ("refusals > 100%", "never true"),
        ("errors < 0%", "never true"),
        ("errors > +100%", "never true"),
        ("cost < 0", "never true"),
        ("different.low > 2", "never true"),
        ("different > +5%", "no record has 'different'"),
        ("kind > +0.1", "no record has 'kind'"),
        ("kind > 1.1x", "no record has 'kind'"),
        ("first_token_s > +1", "no record has"),
        ("cost > 1.1x above floor", r"\+10% above floor"),
        ("is kind > 1", "need quotes"),
    ],
)
def test_conditions_that_can_never_be_true_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Condition.parse(text, ("kind", "is kind"))


def test_a_condition_compares_with_the_floor(manager: SessionManager) -> None:
    now, floor = answer("No.", cost=1.3), answer("Yes.", cost=1.25)
    pairs = [(PAID, now)] * 12
    assert verdict("different > +5% above floor", pairs, floor=answer("No.")) == Verdict()
    found = verdict("different.low > +5% above floor or cost > +10% above floor", pairs, floor=floor, floor_change=None)
    assert found == Verdict(unknown=found.unknown), "no answer of the floor was compared"
    found = verdict("different > +5% above floor or cost > +10% above floor", pairs, floor=floor)
    assert [line.partition(":")[0] for line in found.met] == ["different > +5% above floor"]
    assert "it is +100.0%, 95 % interval" in found.met[0]
    assert verdict("cost > +3% above floor", pairs, floor=floor).met
    with pytest.raises(InvalidInputError, match="--floor"):
        replay(manager, engine=EchoEngine(), fail_if="different > +5% above floor")


def test_fewer_than_ten_conversations_have_no_interval() -> None:
    turns = [turn(PAID, PAID, session=str(number)) for number in range(10)]
    few, enough = summed(turns[:9]).summary(), summed(turns).summary()
    assert few.all.metrics["different"].change.low is None
    assert enough.all.metrics["different"].change.low == 0.0
    assert any("Fewer than 10" in note for note in notes(few)) and notes(enough) == []
    found = Condition.parse("cost.low > 1.1x").check(few)
    assert "9 conversations have no interval" in found.unknown[0]


def test_sums_of_parts_name_models_without_prices_and_failing_graders() -> None:
    parts = [
        summed([turn(UNPRICED, UNPRICED, session=name, grader_errors={"kind": f"ValueError: {name}"})])
        for name in ("a", "b")
    ]
    whole = Summing()
    for part in parts:
        whole.merge(Summing.decode(part.encode(), ()))
    summary = whole.summary()
    assert (summary.unpriced, summary.unpriced_records) == (("new",), 2)
    assert (summary.grader_errors["kind"].failed, summary.grader_errors["kind"].why) == (2, "ValueError: a")


def test_ratios_to_a_recorded_nothing() -> None:
    free = answer("Yes.", cost=0.0)
    assert verdict("cost > 1.1x", [(free, free)]) == Verdict()
    assert verdict("cost > +10%", [(free, PAID)]).met


def test_turns_are_selected_and_grouped_by_the_recorded_engine(tmp_path: Path) -> None:
    engines = {"now": EchoEngine(), "new": EchoEngine()}
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=engines, placement=InProcess()) as manager:
        for name in engines:
            manager.open(name, engine=name).run("Hello.").wait()
        found = replay(manager, engine=EchoEngine())
        assert {group.name for group in found.summary.groups} == {"engine=new", "engine=now"}
        one = replay(manager, engine=EchoEngine(), select=Selection(engine="new"))
        assert [turn.session_id for turn in one.turns] == ["new"]
    runs = testing.CliRunner().invoke(app, ["runs", url]).stdout.splitlines()
    assert runs[0].split("\t")[5] == "engine"
    assert [line.split("\t")[5] for line in runs[1:]] == ["new", "now"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--session", "one"], 1, "--user ann"),
        (["--engine", "candidate"], 1, "write module:object"),
        (["--fail-if", "cost > 1.1x"], 4, "not decided: cost > 1.1x: unknown, since new answers have no price"),
        (["--fail-if", "output_tokens > 0.5x"], 3, "failed: output_tokens > 0.5x: it is 1x, of 1 turn"),
        (["--fail-if", "output_tokens > 2x"], 0, "no intervals"),
        (["--fail-if", "output_tokens > 2x", "--of-engine", "none"], 4, "Nothing was compared"),
    ],
)
def test_the_command_says_why_it_does_not_pass(
    words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echoes.py").write_text("from turnwise import EchoEngine\necho = EchoEngine()\n")
    monkeypatch.syspath_prepend(tmp_path)
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open("one", user_id="ann").run("Hello.").wait()
    engine = [] if "--engine" in words else ["--engine", "echoes:echo"]
    done = testing.CliRunner().invoke(app, ["replay", url, *engine, *words])
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    if code == 0:
        assert "1 turn of 1 conversation" in done.stdout
        cost = next(line for line in done.stdout.splitlines() if line.startswith("cost"))
        assert "unknown" in cost
