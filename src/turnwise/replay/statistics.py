"""`Summing`: sums up the records of a replay, and says how sure each difference is.

Turns of one conversation are not independent, so intervals come from a bootstrap over conversations: it draws
conversations with replacement, again and again, and looks how much the mean over their turns varies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from turnwise.replay.records import Answer, TurnReplay

DRAWS = 1000
"""How often conversations are drawn."""

MOST_DRAWN = 2000
"""From how many conversations, or buckets of them, is drawn at most."""

FEWEST_CONVERSATIONS = 10
"""From how many conversations on there are intervals: with fewer, a bootstrap claims to be surer than it is."""

MOST_UNPRICED = 20
"""How many models without a price a summary names."""

MOST_GROUPS = 50
"""How many groups a summary has at most; further values of a label count as `other`."""

UNLABELLED = "(none)"
"""The group of the turns that have no label."""

LONG_BLOCKS = (0, 10, 40)
"""The bounds of groups by length, in blocks that the request had before the prompt."""

Kind = Literal["amount", "rate", "grade"]


@dataclass(frozen=True)
class Metric:
    """What is measured of each answer. An answer without the value, or a pair without both, is left out."""

    name: str
    kind: Kind
    """`amount`: compared as a ratio and a difference. `rate`: 0 or 1 of each turn. `grade`: of the new answer only."""
    title: str
    has_record: bool = True
    """Whether records have it. Of others, the number itself is what is compared with the floor."""


def _first_token_s(answer: Answer) -> float | None:
    return answer.first_token_s


AMOUNTS: Mapping[str, tuple[str, Callable[[Answer], float | None]]] = {
    "cost": ("cost", lambda answer: answer.usage.cost),
    "input_tokens": ("tokens in", lambda answer: float(answer.usage.input_tokens)),
    "output_tokens": ("tokens out", lambda answer: float(answer.usage.output_tokens)),
    "seconds": ("seconds", lambda answer: answer.usage.seconds or None),
    "first_token_s": ("seconds to the first token", _first_token_s),
    "tool_calls": ("tool calls", lambda answer: float(len(answer.calls))),
    "length": ("characters of the answer", lambda answer: float(len(answer.text))),
}
RATES: Mapping[str, tuple[str, Callable[[Answer], float | None]]] = {
    "refusals": ("refusals", lambda answer: float(answer.is_refusal) if answer.came else None),
    "cut": ("cut answers", lambda answer: float(answer.is_cut) if answer.came or answer.is_cut else None),
    "errors": ("errors", lambda answer: float(answer.is_error)),
    "stopped": ("stopped at a tool call", lambda answer: float(answer.status == "stopped")),
}
CHANGES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "different": ("different answers", lambda change: float(not change["same"])),
    "different_text": ("different texts", lambda change: float(not change["text"])),
    "different_calls": ("different tool calls", lambda change: float(not change["calls"])),
    "dissimilarity": ("dissimilarity of texts", lambda change: 1.0 - change["similarity"]),
}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number, and the bounds between which it lies with a confidence of 95 %; None where it cannot be said.

    Of fewer than `FEWEST_CONVERSATIONS` conversations there are no bounds.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One measure over all turns, or over a group: recorded, replayed, and asked again of the recorded engine."""

    name: str
    title: str
    kind: Kind
    turns: int
    """How many turns have it, in the record and in the replay."""
    recorded: float | None
    """The mean of the recorded answers; None of what only a comparison has, or no record."""
    replayed: float | None
    """The mean of the new answers."""
    floor: float | None
    """The mean of the answers of the recorded engine; None without them."""
    change: Interval
    """By how much the mean of the new answers is above that of the recorded ones; of what no record has, such as a
    share of different answers, that mean itself."""
    ratio: Interval
    """The mean of the new answers divided by that of the recorded ones."""
    floor_change: Interval
    """As `change`, for the recorded engine: what comes by chance, and with time."""
    above_floor: Interval
    """By how much the mean of the new answers is above that of the recorded engine's."""
    floor_ratio: Interval
    """The mean of the new answers divided by that of the recorded engine's."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The measures of some of the turns."""

    name: str
    """What they have in common, such as `agent=support`; empty for all turns."""
    turns: int
    conversations: int
    metrics: Mapping[str, MetricSummary]


@dataclass(frozen=True, kw_only=True)
class GraderErrors:
    """How often a grader has failed."""

    failed: int
    """In how many turns."""
    why: str
    """The first error."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a replay has found: all turns together, and groups of them."""

    all: Group
    groups: tuple[Group, ...] = ()
    inexact: int = 0
    """How many turns had a request that may differ from the recorded one."""
    has_floor: bool = False
    unpriced: tuple[str, ...] = ()
    """Models of new answers that have no price, so that their cost is unknown; empty names of those without one."""
    unpriced_records: int = 0
    """How many recorded answers have an unknown cost."""
    grader_errors: Mapping[str, GraderErrors] = field(default_factory=dict)
    """The graders that have failed, and `refusal`, by name."""

    @property
    def turns(self) -> int:
        """How many turns were replayed."""
        return self.all.turns

    @property
    def conversations(self) -> int:
        """How many conversations they are of."""
        return self.all.conversations


class Summing:
    """Adds up records. It holds at most `MOST_DRAWN` rows of sums for each group, whatever the number of turns.

    Each row has one conversation; if a group has more of them, each has some, which are put together at random by their
    ids, and gives the same intervals.

    Args:
        graders: the names of grades.
        seed: of the bootstrap.
    """

    def __init__(self, graders: Sequence[str] = (), *, seed: int = 0) -> None:
        amounts = [Metric(name, "amount", title, name != "first_token_s") for name, (title, _) in AMOUNTS.items()]
        rates = [Metric(name, "rate", title) for name, (title, _) in RATES.items()]
        changes = [Metric(name, "rate", title, has_record=False) for name, (title, _) in CHANGES.items()]
        grades = [Metric(name, "grade", name, has_record=False) for name in graders]
        self._metrics = [*amounts, *rates, *changes, *grades]
        self.graders = tuple(graders)
        self._seed = seed
        self._groups: dict[str, _Rows] = {}
        self._turns: dict[str, int] = {}
        self._inexact = 0
        self._has_floor = False
        self._unpriced: set[str] = set()
        self._unpriced_records = 0
        self._errors: dict[str, GraderErrors] = {}

    def add(self, replay: TurnReplay) -> None:
        """Add the record of a turn."""
        values = self._values(replay)
        self._inexact += bool(replay.inexact)
        self._has_floor = self._has_floor or replay.floor is not None
        self._unpriced_records += "cost" in replay.recorded.unknown
        answers = filter(None, (replay.answer, replay.floor))
        self._add_unpriced(answer.model or "" for answer in answers if "cost" in answer.unknown)
        self._add_errors({name: GraderErrors(failed=1, why=why) for name, why in replay.grader_errors.items()})
        for name in ("", *self._group_names(replay)):
            self._groups.setdefault(name, _Rows()).add(replay.conversation, values)
            self._turns[name] = self._turns.get(name, 0) + 1

    def _add_unpriced(self, models: Iterable[str]) -> None:
        self._unpriced = set(sorted({*self._unpriced, *models})[:MOST_UNPRICED])

    def _add_errors(self, errors: Mapping[str, GraderErrors]) -> None:
        for name, more in errors.items():
            known = self._errors.get(name)
            self._errors[name] = GraderErrors(failed=known.failed + more.failed, why=known.why) if known else more

    def _values(self, replay: TurnReplay) -> np.ndarray[Any, Any]:
        """Return `_WIDTH` numbers of each measure, one after another.

        They are, for each pair of recorded and new, of recorded and floor, and of floor and new, its count and sums.
        What no record has counts as 0 there, and a pair without both counts as none.
        """
        names = self.graders
        was = _measures_of_record(replay.recorded, len(names))
        now = _measures(replay.answer, replay.change, replay.grades, names)
        values = np.zeros((len(was), _WIDTH))
        values[:, :3] = [
            _NONE if one is None or other is None else (1.0, one, other) for one, other in zip(was, now, strict=True)
        ]
        if replay.floor is not None:
            floor = _measures(replay.floor, replay.floor_change, replay.floor_grades, names)
            values[:, 3:] = [_with_floor(*numbers) for numbers in zip(was, now, floor, strict=True)]
        return values.ravel()

    def encode(self) -> dict[str, Any]:
        """Return what was added as JSON, if it is of few conversations; `decode` reads it."""
        groups = {
            name: [
                self._turns[name],
                rows.conversations,
                [[place, values.tolist()] for place, values in rows.sums.items()],
            ]
            for name, rows in self._groups.items()
        }
        return {
            "inexact": self._inexact,
            "has_floor": self._has_floor,
            "unpriced": sorted(self._unpriced),
            "unpriced_records": self._unpriced_records,
            "errors": {name: [errors.failed, errors.why] for name, errors in self._errors.items()},
            "groups": groups,
        }

    @classmethod
    def decode(cls, value: Mapping[str, Any], graders: Sequence[str]) -> Summing:
        """Return sums from what `encode` returned, with the same graders."""
        summing = cls(graders)
        summing._inexact, summing._has_floor = value["inexact"], value["has_floor"]
        summing._unpriced, summing._unpriced_records = set(value["unpriced"]), value["unpriced_records"]
        summing._errors = {name: GraderErrors(failed=count, why=why) for name, (count, why) in value["errors"].items()}
        for name, (turns, conversations, rows) in value["groups"].items():
            summing._turns[name] = turns
            summing._groups[name] = _Rows.of(rows, conversations)
        return summing

    def merge(self, other: Summing) -> None:
        """Add what another one has added, of other conversations and with the same graders."""
        self._inexact += other._inexact
        self._has_floor = self._has_floor or other._has_floor
        self._add_unpriced(other._unpriced)
        self._unpriced_records += other._unpriced_records
        self._add_errors(other._errors)
        for name, rows in other._groups.items():
            known = self._known(name)
            self._groups.setdefault(known, _Rows()).merge(rows)
            self._turns[known] = self._turns.get(known, 0) + other._turns[name]

    def _group_names(self, replay: TurnReplay) -> list[str]:
        names = [f"agent={replay.agent}"] if replay.agent else []
        names += [f"engine={replay.engine}"] if replay.engine else []
        names += [f"{label}={value}" for label, value in replay.labels.items()] or [UNLABELLED]
        bound = max(bound for bound in LONG_BLOCKS if replay.window_blocks >= bound)
        names.append(f"length>={bound}")
        return list(dict.fromkeys(map(self._known, names)))

    def _known(self, name: str) -> str:
        return name if not name or name in self._groups or len(self._groups) <= MOST_GROUPS else "other"

    def summary(self) -> Summary:
        """Return the summary of what was added."""
        if not self._groups:
            return Summary(all=Group(name="", turns=0, conversations=0, metrics={}))
        parts = [name for name in sorted(self._groups) if self._turns[name] < self._turns[""]]
        return Summary(
            all=self._group(""),
            groups=tuple(map(self._group, parts)),
            inexact=self._inexact,
            has_floor=self._has_floor,
            unpriced=tuple(sorted(self._unpriced)),
            unpriced_records=self._unpriced_records,
            grader_errors=dict(sorted(self._errors.items())),
        )

    def _group(self, name: str) -> Group:
        rows = self._groups[name]
        sums = np.array([rows.sums[place] for place in sorted(rows.sums, key=str)])  # in whichever order they came
        drawn = _drawn(sums, self._seed, rows.conversations)
        metrics = {
            metric.name: _summary(metric, sums.sum(axis=0)[place : place + _WIDTH], drawn[:, place : place + _WIDTH])
            for metric, place in zip(self._metrics, range(0, sums.shape[1], _WIDTH), strict=True)
        }
        return Group(name=name, turns=self._turns[name], conversations=rows.conversations, metrics=metrics)


class _Rows:
    """The sums of one group: a row for each conversation, or for some of them that are put together."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str] | int, np.ndarray[Any, Any]] = {}
        self.conversations = 0
        self._is_folded = False
        self._last: tuple[str, str] | None = None

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, Sequence[float]]], conversations: int) -> _Rows:
        """Return sums of so many conversations, from their rows as JSON has them."""
        sums = cls()
        sums.conversations = conversations
        for place, values in rows:
            sums.sums[place if isinstance(place, int) else (place[0], place[1])] = np.array(values)
            sums._is_folded = sums._is_folded or isinstance(place, int)
        return sums

    def add(self, conversation: tuple[str, str], values: np.ndarray[Any, Any]) -> None:
        """Add a turn. The turns of a conversation come one after another."""
        if conversation != self._last and (self._is_folded or conversation not in self.sums):
            self.conversations += 1
        self._last = conversation
        self._add(conversation, values)

    def merge(self, other: _Rows) -> None:
        """Add the rows of other conversations."""
        self.conversations += other.conversations
        for place, values in other.sums.items():
            self._add(place, values)

    def _add(self, place: tuple[str, str] | int, values: np.ndarray[Any, Any]) -> None:
        if isinstance(place, int) and not self._is_folded:
            self._fold()
        place = _bucket(place) if self._is_folded else place
        row = self.sums.get(place)
        if row is None:
            self.sums[place] = values.copy()
        else:
            row += values
        if len(self.sums) > MOST_DRAWN:
            self._fold()

    def _fold(self) -> None:
        rows, self.sums, self._is_folded = self.sums, {}, True
        for place, values in rows.items():
            bucket = _bucket(place)
            row = self.sums.get(bucket)
            if row is None:
                self.sums[bucket] = values
            else:
                row += values


def _bucket(place: tuple[str, str] | int) -> int:
    return place if isinstance(place, int) else zlib.crc32("\0".join(place).encode()) % MOST_DRAWN


_WIDTH = 9
"""How many numbers `Summing._values` returns for each measure."""


_NONE = (0.0, 0.0, 0.0)

_OF_ANSWERS = {name: read for measures in (AMOUNTS, RATES) for name, (_, read) in measures.items()}

_OF_CHANGES = [read for _, read in CHANGES.values()]


def _measures_of_record(answer: Answer, graders: int) -> list[float | None]:
    """Return all measures of a recorded answer, in their order; None where one is missing."""
    measures = [0.0 if _OF_ANSWERS[name] is _first_token_s else one for name, one in _of_answer(answer)]
    return [*measures, *[0.0] * (len(_OF_CHANGES) + graders)]


def _measures(
    answer: Answer, change: Mapping[str, Any] | None, grades: Mapping[str, float], graders: Sequence[str]
) -> list[float | None]:
    """Return all measures of a new answer, in their order; None where one is missing."""
    changes = [None if change is None else read(change) for read in _OF_CHANGES]
    measures = [one for _, one in _of_answer(answer)]
    return [*measures, *changes, *[grades.get(name) for name in graders]]


def _of_answer(answer: Answer) -> list[tuple[str, float | None]]:
    """Return the measures of an answer alone, by name. Amounts are those of complete answers only."""
    is_complete, unknown = answer.is_complete, answer.unknown
    return [
        (name, None if name in unknown or (name in AMOUNTS and not is_complete) else read(answer))
        for name, read in _OF_ANSWERS.items()
    ]


def _with_floor(was: float | None, now: float | None, floor: float | None) -> tuple[float, ...]:
    """Return the numbers of a measure that need the answer of the recorded engine: see `Summing._values`."""
    if floor is None:
        return (*_NONE, *_NONE)
    chance = _NONE if was is None else (1.0, was, floor)
    return (*chance, *_NONE) if now is None else (*chance, 1.0, floor, now)


def _drawn(sums: np.ndarray[Any, Any], seed: int, conversations: int) -> np.ndarray[Any, Any]:
    """Return the sums over rows that are drawn with replacement, for each of `DRAWS` draws; none of too few."""
    rng = np.random.default_rng(seed)
    if conversations < FEWEST_CONVERSATIONS:
        return np.empty((0, sums.shape[1]))
    weights = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=DRAWS)
    return np.asarray(weights @ sums)


def _summary(metric: Metric, sums: np.ndarray[Any, Any], drawn: np.ndarray[Any, Any]) -> MetricSummary:
    has_record = metric.has_record
    recorded = _mean(sums[1], sums[0]) if has_record else None
    ratio = Interval(value=None)
    if has_record:
        ratio = _interval(lambda row: _divided(row[..., 2], row[..., 1]), sums, drawn)
    return MetricSummary(
        name=metric.name,
        title=metric.title,
        kind=metric.kind,
        turns=int(sums[0]),
        recorded=recorded,
        replayed=_mean(sums[2], sums[0]),
        floor=_mean(sums[5], sums[3]),
        change=_interval(lambda row: _divided(row[..., 2] - row[..., 1], row[..., 0]), sums, drawn),
        ratio=ratio,
        floor_change=_interval(lambda row: _divided(row[..., 5] - row[..., 4], row[..., 3]), sums, drawn),
        above_floor=_interval(lambda row: _divided(row[..., 8] - row[..., 7], row[..., 6]), sums, drawn),
        floor_ratio=_interval(lambda row: _divided(row[..., 8], row[..., 7]), sums, drawn),
    )


def _mean(total: float, count: float) -> float | None:
    return float(total / count) if count else None


def _divided(total: Any, count: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count == 0, np.nan, total / count)


def _interval(
    statistic: Callable[[np.ndarray[Any, Any]], Any], sums: np.ndarray[Any, Any], drawn: np.ndarray[Any, Any]
) -> Interval:
    value = float(statistic(sums))
    if np.isnan(value):
        return Interval(value=None)
    draws = np.asarray(statistic(drawn), dtype=float)
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return Interval(value=value)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Interval(value=value, low=float(low), high=float(high))


def most_different(replays: Iterable[TurnReplay], count: int) -> list[TurnReplay]:
    """Return the turns whose answers differ most from the recorded ones, those first that differ more."""
    return sorted(replays, key=difference, reverse=True)[:count]


def difference(replay: TurnReplay) -> tuple[float, float]:
    """Return how much an answer differs: by kind, such as an error or another tool call, then by the text."""
    now, was = replay.answer, replay.recorded
    kinds = [
        now.is_error and not was.is_error,
        now.status == "stopped",
        now.is_refusal and not was.is_refusal,
        now.is_cut and not was.is_cut,
        not replay.change["calls"],
        not replay.change["text"],
    ]
    weight = max((len(kinds) - place for place, is_so in enumerate(kinds) if is_so), default=0)
    return float(weight), 1.0 - replay.change["similarity"]
