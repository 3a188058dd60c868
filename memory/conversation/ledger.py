"""The ledger: what was spent, by user, agent, session, day, engine, model and tool, apart from the sessions.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.named_tuples import Reduced, by_name
from turnwise.memory.values.records import Record, replace

SpentOn = Literal["run", "summary", "title", "extraction", "recall", "shadow"]
"""What a model or a tool was called for: a run's answer, a summary of the conversation, its title, facts that a memory
extracts, the choice of the facts that a recall returns, or an answer of a candidate beside a run: see `Shadow`."""

LedgerField = Literal["day", "user", "agent", "session", "kind", "model", "tool", "tenant", "engine"]
"""By what the ledger can be split: `LedgerRow` has each."""


class LedgerKey(NamedTuple):
    """By what stored rows differ: the fields of `LedgerRow` with these names. None of them is None."""

    day: str
    user_id: str
    agent: str
    session_id: str
    kind: str
    model: str
    tool: str
    tenant: str
    engine: str

    def __reduce__(self) -> Reduced:
        return by_name(self)


COLUMNS: Mapping[LedgerField, str] = dict(zip(get_args(LedgerField), LedgerKey._fields, strict=True))
"""The fields of `LedgerKey` under the names by which callers ask for them."""

COST_DIGITS = 9
"""The decimals of a cost. The ledger counts billionths, so that sums are exact."""

_MICROS, _NANOS = 10**6, 10**COST_DIGITS


class Purpose(NamedTuple):
    """What a part of the usage was spent on."""

    kind: SpentOn = "run"
    model: str | None = None
    """The model's name; None if it is not known yet, and then the run's own."""
    tool: str = ""
    """The tool that was called; empty for calls of models."""
    engine: str = ""
    """The name of the run's engine; empty if the manager's only engine has none, and for what no run has spent."""

    def __reduce__(self) -> Reduced:
        return by_name(self)


@dataclass(frozen=True)
class Spent:
    """Usage by what it was spent on. `+` adds, and `-` takes away what was added before."""

    parts: Mapping[Purpose, Usage] = field(default_factory=dict)

    @classmethod
    def on(
        cls, usage: Usage, *, kind: SpentOn = "run", model: str | None = None, tool: str = "", engine: str = ""
    ) -> "Spent":
        """Return usage that was spent on one thing."""
        return cls({Purpose(kind, model, tool, engine): usage})

    @property
    def total(self) -> Usage:
        """The whole usage."""
        first, *others = self.parts.values() or (Usage(),)
        return sum(others, first)

    @property
    def charged(self) -> Usage:
        """What counts as the session's usage, and so in its budget: all but answers of candidates beside its runs."""
        return sum((usage for purpose, usage in self.parts.items() if purpose.kind != "shadow"), Usage())

    def with_model(self, model: str) -> "Spent":
        """Return the same usage, with this model where it was not known."""
        if all(purpose.model is not None for purpose in self.parts):
            return self
        parts: dict[Purpose, Usage] = {}
        for purpose, usage in self.parts.items():
            known = purpose if purpose.model is not None else purpose._replace(model="" if purpose.tool else model)
            parts[known] = parts[known] + usage if known in parts else usage
        return Spent(parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __add__(self, other: "Spent") -> "Spent":
        if not self.parts or not other.parts:
            return self if self.parts else other
        parts = dict(self.parts)
        for purpose, usage in other.parts.items():
            parts[purpose] = parts[purpose] + usage if purpose in parts else usage
        return Spent(parts)

    def __sub__(self, other: "Spent") -> "Spent":
        parts = dict(self.parts)
        for purpose, usage in other.parts.items():
            rest = parts.get(purpose, _NOTHING) - usage
            parts[purpose] = replace(rest, seconds=round(rest.seconds, 6), cost=round(rest.cost, COST_DIGITS))
            if parts[purpose] == _NOTHING:
                del parts[purpose]
        return Spent(parts)


_NOTHING = Usage()


@dataclass(frozen=True, kw_only=True)
class LedgerRow(Record):
    """What was spent on one thing: a row of the ledger, or the sum of several.

    In a sum, what the rows were not split by is None. An empty text says that there is none: a session without an
    agent, a model that no engine has named, a session that was deleted, a user who was forgotten or has no tenant.
    """

    day: str | None = None
    """The day in UTC on which it was recorded, as `2026-11-29`."""
    user_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    kind: str | None = None
    """See `SpentOn`."""
    model: str | None = None
    tool: str | None = None
    tenant: str | None = None
    """The tenant that the user had when it was spent."""
    engine: str | None = None
    """The name of the engine of the run that has spent it, also of its summaries and of its candidate: see `Shadow`.
    Of a `Split`, it is the engine that was chosen. Sessions that
    name none are counted under the first name. Empty if the manager's only engine has no name, and for what no run has
    spent, such as titles."""
    runs: int = 0
    """How many runs have ended, of those that had begun."""
    usage: Usage = field(default_factory=Usage)

    @property
    def reported_tokens(self) -> int:
        """The tokens, of input and output together, that providers have reported; turnwise counted the rest."""
        return self.usage.input_tokens + self.usage.output_tokens - self.usage.counted_tokens


def rows_of(spent: Spent, ended: Iterable[Purpose], now: float) -> list[LedgerRow]:
    """Return the rows that a commit adds to the ledger, without the session, which the commit names.

    Args:
        ended: what each run that ends is counted under.
        now: the time by the store's clock.
    """
    runs = Counter(ended)
    if not runs and not spent:
        return []
    day = day_of(now)
    return [
        LedgerRow(
            day=day,
            kind=purpose.kind,
            model=_indexed(purpose.model or ""),
            tool=_indexed(purpose.tool),
            engine=_indexed(purpose.engine),
            runs=runs[purpose],
            usage=spent.parts.get(purpose, _NOTHING),
        )
        for purpose in dict.fromkeys([*spent.parts, *runs])
    ]


def _indexed(name: str) -> str:
    """Return the name of a model or a tool as each database can index it together with a user and a session."""
    return name.encode(errors="replace").replace(b"\0", b"?")[:_NAME_BYTES].decode(errors="ignore")


_NAME_BYTES = 80


def day_of(time_s: float) -> str:
    """Return the day in UTC of a time in seconds since the epoch, as `2026-11-29`."""
    return datetime.fromtimestamp(time_s, UTC).date().isoformat()


# How stores count: in whole numbers, which add up exactly.

NUMBERS = ("runs", *(name.name for name in fields(Usage) if name.name not in ("seconds", "cost")), "micros", "nanos")
"""The names of a row's numbers: `micros` are its millionths of a second, `nanos` the billionths of its cost."""


def numbers_of(row: LedgerRow) -> tuple[int, ...]:
    """Return a row's numbers, in the order of `NUMBERS`."""
    values = vars(row.usage) | {"runs": row.runs, "micros": row.usage.seconds, "nanos": row.usage.cost}
    return tuple(_whole(values[name] * _UNITS.get(name, 1)) for name in NUMBERS)


def nanos_of(cost: float) -> int:
    """Return a cost in billionths, as a row has it."""
    return _whole(cost * _NANOS)


def _whole(number: float) -> int:
    """Return a number as stores add it up. Usage comes from engines, so nothing that they report may stop a commit."""
    if type(number) is int and 0 <= number <= _LARGEST:
        return number
    return max(-_LARGEST, min(_LARGEST, round(number))) if math.isfinite(number) else 0


_UNITS = {"micros": _MICROS, "nanos": _NANOS}

_LARGEST = 2**53


def row_of(key: Mapping[str, str], numbers: Sequence[int]) -> LedgerRow:
    """Return the row with these key fields, by their names in `LedgerRow`, and with these numbers."""
    runs, *whole, micros, nanos = map(int, numbers)
    values: dict[str, Any] = dict(zip(NUMBERS[1:-2], whole, strict=True))
    return LedgerRow(runs=runs, usage=Usage(**values, seconds=micros / _MICROS, cost=nanos / _NANOS), **key)


def key_in(session: SessionRecord, row: LedgerRow) -> LedgerKey:
    """Return the key of a row that a commit of a session adds."""
    return LedgerKey(
        row.day or "",
        session.user_id,
        session.agent or "",
        session.session_id,
        row.kind or "",
        row.model or "",
        row.tool or "",
        row.tenant or "",
        row.engine or "",
    )


class LedgerQuery(NamedTuple):
    """Which rows of a ledger to add up, and by what to split the sum."""

    user_id: str | None = None
    agent: str | None = None
    since: str | None = None
    """The first day."""
    until: str | None = None
    """The last day, which counts too."""
    by: tuple[LedgerField, ...] = ()
    tenant: str | None = None

    def __reduce__(self) -> Reduced:
        return by_name(self)

    def matches(self, key: LedgerKey) -> bool:
        """Return whether a row is added up."""
        names = (self.user_id, key.user_id), (self.agent, key.agent), (self.tenant, key.tenant)
        is_owner = all(wanted in (None, own) for wanted, own in names)
        return is_owner and (self.since or "") <= key.day and (self.until is None or key.day <= self.until)

    def sums(self, rows: Iterable[tuple[LedgerKey, Sequence[int]]]) -> list[LedgerRow]:
        """Return the sums of the rows that match, in the order of what they are split by.

        Without `by`, this is one row, also if nothing was spent.
        """
        split = attrgetter(*(COLUMNS[name] for name in self.by)) if self.by else None
        sums: dict[tuple[str, ...], list[int]] = {} if self.by else {(): [*ZEROS]}
        for key, numbers in rows:
            if self.matches(key):
                values = split(key) if split else ()
                group = values if isinstance(values, tuple) else (values,)
                sums[group] = [one + other for one, other in zip(sums.get(group, ZEROS), numbers, strict=True)]
        return [self.row(group, numbers) for group, numbers in sorted(sums.items())]

    def row(self, group: Sequence[str], numbers: Sequence[int]) -> LedgerRow:
        """Return the sum of the rows that have these values of what the ledger is split by."""
        return row_of({COLUMNS[name]: value for name, value in zip(self.by, group, strict=True)}, numbers)


ZEROS = (0,) * len(NUMBERS)
"""The numbers of a row without any usage."""


@dataclass(frozen=True, kw_only=True)
class UsageReport(Record):
    """What was spent: sums of the ledger, by what they were asked for. Iterating gives the rows."""

    by: tuple[LedgerField, ...] = ()
    """What the rows are split by."""
    since: str | None = None
    """The first day, in UTC, as `2026-11-29`; None for no limit."""
    until: str | None = None
    """The last day, which counts too; None for no limit."""
    rows: tuple[LedgerRow, ...] = ()
    """The sums, in the order of what they are split by; one without `by`."""

    def __iter__(self) -> Iterator[LedgerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> Usage:
        """The usage of all rows, added up exactly."""
        sums = [sum(numbers) for numbers in zip(ZEROS, *map(numbers_of, self.rows), strict=True)]
        return row_of({}, sums).usage

    @property
    def runs(self) -> int:
        """How many runs have ended, of those that had begun."""
        return sum(row.runs for row in self.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values of `table`: what the rows are split by, then the numbers."""
        return (*self.by, *SHOWN)

    def table(self) -> list[tuple[str | int | float, ...]]:
        """Return the values of each row, in the order of `columns`."""
        return [(*(getattr(row, COLUMNS[name]) or "" for name in self.by), *shown_numbers(row)) for row in self.rows]

    def csv(self) -> str:
        """Return the rows as CSV, with a line of names first.

        A name that a spreadsheet would take as a formula has `'` before it.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_plain(value) for value in values] for values in self.table())
        return text.getvalue()


SHOWN = (
    *("runs", "calls", "tool_calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
    *("reported_tokens", "counted_tokens", "seconds", "cost"),
)
"""The numbers of a row, as tables have them."""


def shown_numbers(row: LedgerRow) -> list[int | float]:
    """Return a row's numbers in the order of `SHOWN`."""
    values = vars(row.usage) | {"runs": row.runs, "reported_tokens": row.reported_tokens}
    return [values[name] for name in SHOWN]


def _plain(value: str | float) -> str | int:
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
