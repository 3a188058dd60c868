"""The command `replay`: stored turns are answered anew by another engine, and compared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import AsJson, History, OfAgent, OfUser, Store, find_session, imported, reading, run
from turnwise.cli.output import Cell, Column, note, print_json, print_table, progress, write
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.replay.run import Replay
    from turnwise.replay.selecting import Selection
    from turnwise.replay.statistics import Interval, MetricSummary, Summary

_PATH = "module:object"

NOT_PASSED, UNDECIDED = 3, 4
"""The exit codes of a condition that is true, and of one that depends on something unknown."""


def replay(
    store: Store,
    *,
    engine: Annotated[
        str | None, typer.Option(metavar=_PATH, help="The engine that answers: an object of a module in PYTHONPATH.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="In place of --engine: a model behind OpenAI's API.")] = None,
    shadow: Annotated[
        Path | None,
        typer.Option(help="In place of --engine: a folder in which a Shadow has recorded answers, which are compared."),
    ] = None,
    floor: Annotated[
        str | None, typer.Option(metavar=_PATH, help="The recorded engine, to ask it again: what differs by chance.")
    ] = None,
    overflow: Annotated[
        str | None, typer.Option(metavar=_PATH, help="An overflow strategy that makes the windows anew.")
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(metavar=_PATH, help="A memory that is searched anew; may be given several times."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar=_PATH, help="A SessionConfig with prices and the model's window.")
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar=_PATH, help="Prices of models, in place of those of --config."),
    ] = None,
    grader: Annotated[
        list[str] | None, typer.Option(metavar=_PATH, help="Grades answers; may be given several times.")
    ] = None,
    refusal: Annotated[
        str | None, typer.Option(metavar=_PATH, help="Says whether an answer is a refusal: a function, or a grader.")
    ] = None,
    embedding: Annotated[
        str | None, typer.Option(metavar=_PATH, help="Makes vectors of texts, for the similarity of answers.")
    ] = None,
    normalise: Annotated[
        str | None, typer.Option(metavar=_PATH, help="Changes texts before they are compared: a function.")
    ] = None,
    session: Annotated[
        list[str] | None, typer.Option(metavar="SESSION", help="Only this session; may be given several times.")
    ] = None,
    user: OfUser = None,
    agent: OfAgent = None,
    of_engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only turns whose runs had the engine of this name.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only turns whose runs had this label.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only turns of this day or later, in UTC: 2026-11-29.")] = None,
    until: Annotated[str | None, typer.Option(help="Only turns of this day or before.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="How the recorded turns ended; may be given several times. By default completed and failed."),
    ] = None,
    versions: Annotated[
        Literal["shown", "all"], typer.Option(help="Of turns that were answered anew: which versions.")
    ] = "shown",
    sample: Annotated[int | None, typer.Option(min=1, help="How many turns, chosen at random; all if omitted.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses the sample, and draws the intervals.")] = 0,
    forward: Annotated[
        bool, typer.Option("--forward", help="Later turns continue the answers of the replay, not the recorded ones.")
    ] = False,
    otherwise: Annotated[
        str,
        typer.Option(
            "--tools",
            metavar=f"stop|read|error|{_PATH}",
            help="What becomes of a tool call that the record does not answer: the turn stops; tools that only read are"
            " called; the model gets an error; or a function returns the result. An object may be RecordedTools.",
        ),
    ] = "stop",
    at_once: Annotated[int, typer.Option(min=1, help="How many conversations are replayed at the same time.")] = 8,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="How long an answer may take, in seconds.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for report.html and turns.jsonl.")] = None,
    keep: Annotated[
        int,
        typer.Option(min=0, help="How many of the turns that differ most are held in memory, and so in the report."),
    ] = 10_000,
    parquet: Annotated[bool, typer.Option("--parquet", help="With --out: write turns.parquet, too.")] = False,
    fail_if: Annotated[
        str | None,
        typer.Option(
            help="When to exit with 3: 'cost > 1.1x or refusals > +1%'. The code is 4 if this depends on something"
            " unknown, or if nothing was compared."
        ),
    ] = None,
    at_scale: Annotated[
        bool,
        typer.Option("--at-scale", help="With --out: go on after a kill, and write the records as parts, in a folder."),
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="As --at-scale, on Ray Data.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: how many processes; one per processor.")
    ] = None,
    requests_per_minute: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="At scale: how many model calls are begun in a minute.")
    ] = None,
    tokens_per_minute: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="At scale: how many tokens are used in a minute.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="MONEY", help="At scale: after which cost no more turns are asked.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="At scale: after how many tokens no more turns are asked.")
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="At scale: how often a turn is asked again whose provider is away."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="At scale: delete the records that --out has, and begin.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Ask no engine: count the turns whose requests are the recorded ones."),
    ] = False,
    history: History = None,
    as_json: AsJson = False,
) -> None:
    """Answer stored turns anew by another engine, and compare. Nothing is written to the store, and no tool acts."""
    from turnwise.replay.conditions import notes
    from turnwise.replay.selecting import Selection

    select = Selection(
        user_id=user,
        agent=agent,
        engine=of_engine,
        sessions=tuple(session or ()),
        labels=_labels(label or ()),
        since=_start_of(since, "--since"),
        until=_start_of(until, "--until", days=1),
        sample=sample,
        seed=seed,
        versions=versions,
        **({"statuses": tuple(status)} if status else {}),
    )
    if check:
        counts = run(_check(store, history, select))
        if as_json:
            print_json(counts)
        else:
            print_table([Column("turns", right=True), Column("request")], [[str(n), why] for why, n in counts.items()])
        return
    options: dict[str, Any] = {
        "select": select,
        "engine": _engine(engine, model, shadow),
        "floor": floor and imported("--floor", floor),
        "overflow": overflow and imported("--overflow", overflow),
        "config": config and imported("--config", config),
        "prices": prices and imported("--prices", prices),
        "graders": [imported("--grader", path) for path in grader or ()],
        "memory": [imported("--memory", path) for path in memory] if memory else None,
        "refusal": refusal and imported("--refusal", refusal),
        "embedding": embedding and imported("--embedding", embedding),
        "normalise": normalise and imported("--normalise", normalise),
        "tools": _tools(otherwise),
        "keep": keep,
        "forward": forward,
        "at_once": at_once,
        "timeout_s": timeout_s,
        "seed": seed,
        "out": out,
        "parquet": parquet,
        "fail_if": fail_if,
    }
    limits = {
        "workers": workers,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "budget": _budget(max_tokens, max_cost),
        "anew": anew,
        "retries": retries,
    }
    if at_scale or ray or any(limits.values()):
        options["at_scale"] = {"on_ray": ray, **{name: value for name, value in limits.items() if value is not None}}
    result = run(_replay(store, history, options))
    if as_json:
        rest = {"left": result.left, "stopped": result.stopped, "unreadable": result.unreadable}
        verdict = {"failed": result.failed, "undecided": result.undecided}
        print_json({"summary": result.summary, "files": result.files, **verdict, **rest})
    else:
        _print(result)
    for sentence in notes(result.summary):
        note(sentence)
    for line in result.failed:
        note(f"{'not decided' if line in result.undecided else 'failed'}: {line}")
    if result.failed:
        raise typer.Exit(UNDECIDED if result.failed == result.undecided else NOT_PASSED)


async def _replay(store: str, history: str | None, options: Mapping[str, Any]) -> Replay:
    from turnwise.replay.run import replay as replay_turns

    async with reading(store, history) as manager:
        await _find_sessions(manager, options["select"])
        with progress("replay", options["select"].sample) as show:
            if "at_scale" not in options:
                return await replay_turns(manager, progress=show, **options)
            from turnwise.replay.scale.settings import AtScale, Progress

            def tell(done: Progress) -> None:
                show(
                    done.turns,
                    f" of {done.expected_turns:,} turns, {done.failed:,} failed, cost {done.spent.cost:,.2f}",
                )

            scale = AtScale(**options["at_scale"], progress=tell)
            return await replay_turns(manager, **{**options, "at_scale": scale})


def _budget(tokens: int | None, cost: float | None) -> Any:
    if tokens is None and cost is None:
        return None
    from turnwise.actors.session.engines.budget import Budget

    return Budget(tokens=tokens, cost=cost)


async def _check(store: str, history: str | None, select: Selection) -> Mapping[str, int]:
    from turnwise.replay.run import check_requests

    async with reading(store, history) as manager:
        await _find_sessions(manager, select)
        return await check_requests(manager, select=select)


async def _find_sessions(manager: AsyncSessionManager, select: Selection) -> None:
    """Raise an error that names the user or the nearest id of a session that does not exist."""
    for session_id in select.sessions:
        await find_session(manager, session_id, select.user_id)


def _tools(otherwise: str) -> Any:
    from turnwise.replay.tools import RecordedTools

    policy: Any = imported("--tools", otherwise) if ":" in otherwise else otherwise
    return policy if isinstance(policy, RecordedTools) else RecordedTools(otherwise=policy)


def _engine(path: str | None, model: str | None, shadow: Path | None) -> Any:
    if sum(map(bool, (path, model, shadow))) > 1:
        raise typer.BadParameter("give one of --engine, --model and --shadow", param_hint="--engine")
    if path:
        return imported("--engine", path)
    if shadow:
        from turnwise.replay.shadowed import ShadowRecords

        return ShadowRecords(shadow)
    if model is None:
        raise typer.BadParameter("give this, --model or --shadow", param_hint="--engine")
    from turnwise.actors.inference.openai.engine import OpenAIEngine

    return OpenAIEngine(model)


def _labels(texts: list[str] | tuple[()]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, is_label, value = text.partition("=")
        if not is_label or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--label")
        labels[name] = value
    return labels


def _start_of(day: str | None, option: str, *, days: int = 0) -> float | None:
    """Return when a day begins, or the one after so many days, in seconds since the epoch."""
    if day is None:
        return None
    try:
        start = datetime.combine(date.fromisoformat(day), time(), UTC)
    except ValueError:
        raise ConfigError(option, day, "is no day: write 2026-11-29") from None
    return start.timestamp() + days * 86_400


def _print(result: Replay) -> None:
    summary = result.summary
    columns = [Column(""), *(Column(name, right=True) for name in ("recorded", "asked again", "new", "change"))]
    rows = [_row(metric, summary) for metric in summary.all.metrics.values() if _is_shown(metric, summary)]
    print_table([*columns, Column("95 % interval")], rows)
    write(f"{_counted(summary.turns, 'turn')} of {_counted(summary.conversations, 'conversation')}")
    if summary.inexact:
        write(f"The requests of {summary.inexact} turns may differ from the recorded ones.")
    if result.left:
        why = result.stopped or "the provider was away"
        left = "1 conversation has" if result.left == 1 else f"{result.left} conversations have"
        write(f"{left} turns that were not asked: {why}. The same command goes on.")
    for unreadable in result.unreadable:
        write(f"session {unreadable.session_id!r} of {unreadable.user_id!r} cannot be read: {unreadable.why}")
    for kind, path in result.files.items():
        write(f"{kind}: {path}")


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _is_shown(metric: MetricSummary, summary: Summary) -> bool:
    if metric.kind == "grade" or (metric.name == "cost" and (summary.unpriced or summary.unpriced_records)):
        return bool(summary.turns)
    return bool(metric.turns) and any((metric.recorded, metric.replayed, metric.floor))


def _row(metric: MetricSummary, summary: Summary) -> list[Cell]:
    is_ratio = metric.kind == "amount" and metric.ratio.value is not None
    change = metric.ratio if is_ratio else metric.change
    has_change = metric.recorded is not None

    def shown(value: float | None, *, is_change: bool = False) -> str:
        if value is None:
            return ""
        if is_change and is_ratio:
            return f"{value:.2f}x"
        sign = "+" if is_change and has_change else ""
        return f"{value:{sign}.1%}" if metric.kind == "rate" else f"{value:{sign}.4g}"

    def bounds(interval: Interval) -> str:
        if interval.low is None:
            return ""
        return f"{shown(interval.low, is_change=True)} to {shown(interval.high, is_change=True)}"

    return [
        metric.title,
        shown(metric.recorded),
        shown(metric.floor) if summary.has_floor else "",
        shown(metric.replayed) if metric.turns else "unknown",
        shown(change.value, is_change=True) if has_change else "",
        bounds(change),
    ]
