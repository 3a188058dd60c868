"""`Quota`: what may be used in a period, as it is stored; its counters, and what commits add to them.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

from turnwise.errors import InvalidInputError, QuotaExceededError, QuotaNotFoundError, shown
from turnwise.memory.conversation.ledger import LedgerRow, nanos_of
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.quotas.tenants import check_tenant
from turnwise.memory.values.ids import check_names
from turnwise.memory.values.named_tuples import Reduced, by_name
from turnwise.memory.values.records import Record

QuotaPeriod = Literal["minute", "day", "month"]
"""How long a quota counts before it begins anew: to the end of the minute, the day or the month, in UTC."""

QuotaThen = Literal["refuse", "queue", "ask"]
"""What happens to a run when a quota is used up. `refuse`: it is refused, with QuotaExceededError. `queue`: it is
accepted, and begins in the next period. `ask`: it is accepted, and waits until somebody decides whether it may
begin."""

QuotaUnit = Literal["runs", "tokens", "cost"]
"""What a quota limits."""

_CALL_PREFIX = "quota-"

EACH = "*"
"""As the user, the agent or the tenant of a quota: each of them has a count of its own."""

MAX_QUOTAS = 100
"""How many quotas a store has at most: each run that begins is compared with all of them."""

MOST_COUNT = 2**53
"""The largest limit, in runs, tokens or billionths of a cost: every store counts so far exactly."""

_UNITS: Mapping[QuotaUnit, int] = {"runs": 1, "tokens": 1, "cost": 10**9}
"""Counters are whole numbers: of a cost, they count billionths, as the ledger does."""


@dataclass(frozen=True, kw_only=True)
class Quota(Record):
    """What may be used in each period: exactly one of `runs`, `tokens` and `cost`.

    Without a user, an agent and a tenant it limits all sessions of the store together. With several of them it limits
    the sessions that are of all of these. `"*"` stands for each: `Quota(user_id="*", runs=100, per="day")` gives each
    user 100 runs a day, `Quota(tenant="acme", user_id="*", runs=100)` each user of the tenant "acme".
    """

    user_id: str | None = None
    """Whose sessions it limits: a user's, or each user's on their own (`"*"`)."""
    agent: str | None = None
    """The sessions of which agent it limits: of one, or of each on its own (`"*"`). Sessions without one are not
    limited then."""
    tenant: str | None = None
    """The users of which tenant it limits: of one, together, or of each on its own (`"*"`). Users without one are not
    limited then."""
    runs: int | None = None
    """How many runs are accepted."""
    tokens: int | None = None
    """How many tokens of input and output are used, together."""
    cost: float | None = None
    """How much is spent, in the currency of `SessionConfig.prices`."""
    per: QuotaPeriod = "day"
    """The period: a minute, a day or a month, in UTC, by the store's clock."""

    then: QuotaThen = "refuse"
    """What happens to a run when it is used up."""

    @property
    def quota_id(self) -> str:
        """Names the quota, by what it limits: one with another limit for the same replaces it."""
        names = json.dumps([self.user_id, self.agent, self.tenant, self.unit, self.per]).encode()
        return hashlib.blake2b(names, digest_size=6).hexdigest()

    @property
    def unit(self) -> QuotaUnit:
        """What it limits."""
        return next(unit for unit in get_args(QuotaUnit) if getattr(self, unit) is not None)

    @property
    def limit(self) -> float:
        """How many runs or tokens, or which cost, it allows."""
        limit: float = getattr(self, self.unit)
        return limit

    @property
    def most(self) -> int:
        """The limit as counters count."""
        return round(self.limit * _UNITS[self.unit])

    @property
    def scope(self) -> str:
        """Whom it limits, as a text."""
        return scope_of(self.user_id, self.agent, self.tenant)

    def counter_of(self, user_id: str, agent: str | None, tenant: str | None = None) -> "CounterKey | None":
        """Return which counter sessions of this user, agent and tenant add to; None if it does not limit them."""
        names = (self.user_id, user_id), (self.agent, agent), (self.tenant, tenant)
        if any(limited is not None and (not own or limited not in (EACH, own)) for limited, own in names):
            return None
        own_user, own_agent, own_tenant = ((own or "") if limited else "" for limited, own in names)
        return CounterKey(own_user, own_agent, self.quota_id, own_tenant)

    def amount(self, usage: Usage, runs: int = 0) -> int:
        """Return how much of it this is, as counters count."""
        if self.unit == "runs":
            return runs
        if self.unit == "tokens":
            return max(0, usage.input_tokens + usage.output_tokens)
        return max(0, nanos_of(usage.cost))

    def exceeded(self, key: "CounterKey", used: int, ends: int, now: float) -> QuotaExceededError:
        """Return the error that says that this quota is used up.

        Args:
            used: how much is used, as counters count.
            ends: when the period ends.
        """
        scope, whole = scope_of(key.user_id or None, key.agent or None, key.tenant or None), used / _UNITS[self.unit]
        retry_after_s = max(0.0, ends - now)
        return QuotaExceededError(
            self.quota_id, scope, self.unit, whole, self.limit, self.per, float(ends), retry_after_s
        )

    _repr_html_ = record_html


QUOTA_FIELDS = {quota_field.name for quota_field in fields(Quota)}
"""The names of all fields of a quota."""


def call_id_of(quota_id: str) -> str:
    """Return the id of the call by which a run asks to exceed a quota."""
    return f"{_CALL_PREFIX}{quota_id}"


def asked_quotas(call_ids: Iterable[str]) -> set[str]:
    """Return the ids of the quotas that a run with these calls has asked to exceed."""
    return {call_id.removeprefix(_CALL_PREFIX) for call_id in call_ids if call_id.startswith(_CALL_PREFIX)}


def scope_of(user_id: str | None, agent: str | None, tenant: str | None = None) -> str:
    """Return whom a quota or a counter is about, as a text."""
    kinds = {"user": user_id, "tenant": tenant, "agent": agent}
    users, tenants, agents = (
        "" if name is None else f"each {kind}" if name == EACH else f"{kind} {name!r}" for kind, name in kinds.items()
    )
    return " with ".join(filter(None, (" of ".join(filter(None, (users, tenants))), agents))) or "all users"


class CounterKey(NamedTuple):
    """Names a counter. The user, the agent and the tenant are empty where a quota counts all of them together."""

    user_id: str
    agent: str
    quota_id: str
    tenant: str = ""

    def __reduce__(self) -> Reduced:
        return by_name(self)


@dataclass(frozen=True, kw_only=True)
class QuotaCounter:
    """What was used of a quota in a period."""

    key: CounterKey
    starts: int
    """When the period began, in seconds since the epoch."""
    ends: int
    """When it ends, and the next one begins."""
    used: int
    """In runs, tokens or billionths of a cost."""

    def is_of(self, starts: int, ends: int) -> bool:
        """Return whether what is used in this period is added to it.

        So it is, too, if the counter's period is the next one: a clock that was set back a little, or a write that
        has waited, loses no count. After a longer way back, the count begins anew.
        """
        return starts <= self.starts <= ends

    def used_at(self, per: QuotaPeriod, now: float) -> "QuotaCounter":
        """Return the counter as it is at a time: nothing is used if its period is over."""
        starts, ends = period_of(per, now)
        if self.is_of(starts, ends):
            return self
        return QuotaCounter(key=self.key, starts=starts, ends=ends, used=0)


@dataclass(frozen=True, kw_only=True)
class QuotaCount:
    """What a commit adds to one counter."""

    quota: Quota
    key: CounterKey
    amount: int
    """In runs, tokens or billionths of a cost; may be 0."""
    is_checked: bool = False
    """Whether the commit is refused if the quota is used up before."""

    @property
    def most(self) -> int | None:
        """Below which number the counter has to be; None if that does not matter."""
        return self.quota.most if self.is_checked else None

    def added(self, counter: QuotaCounter | None, now: float) -> QuotaCounter:
        """Return the counter after the commit.

        Args:
            counter: as it is before; None if nothing was ever counted.

        Raises:
            QuotaExceededError: the quota is used up, and the commit is refused.
        """
        starts, ends = period_of(self.quota.per, now)
        if counter is None or not counter.is_of(starts, ends):
            counter = QuotaCounter(key=self.key, starts=starts, ends=ends, used=0)
        if self.is_checked and counter.used >= self.quota.most:
            raise self.quota.exceeded(self.key, counter.used, counter.ends, now)
        return QuotaCounter(key=self.key, starts=counter.starts, ends=counter.ends, used=counter.used + self.amount)


class QuotaCounters(NamedTuple):
    """Counters of a store, and the time by its clock when they were read."""

    counters: Sequence[QuotaCounter]
    now: float

    def __reduce__(self) -> Reduced:
        return by_name(self)

    def of(self, quota: Quota, key: CounterKey) -> QuotaCounter:
        """Return a counter of a quota as it is now."""
        starts, ends = period_of(quota.per, self.now)
        unused = QuotaCounter(key=key, starts=starts, ends=ends, used=0)
        counter = next((counter for counter in self.counters if counter.key == key), unused)
        return counter.used_at(quota.per, self.now)


@dataclass(frozen=True, kw_only=True)
class QuotaUse(Record):
    """A quota, and what was used of it in the present period."""

    quota: Quota
    used: float | None
    """In runs, tokens or money; None for a quota of each user, agent or tenant, if none was named."""
    resets_at: float
    """When the next period begins, in seconds since the epoch."""

    @property
    def left(self) -> float | None:
        """How much is left; None if it is not known what was used."""
        return None if self.used is None else max(0, self.quota.limit - self.used)

    _repr_html_ = record_html


def use_of(
    quota: Quota, counters: QuotaCounters, user_id: str | None, agent: str | None, tenant: str | None = None
) -> QuotaUse:
    """Return what was used of a quota, by this user, agent and tenant where it counts each on their own."""
    ends = period_of(quota.per, counters.now)[1]
    named = [(quota.user_id, user_id), (quota.agent, agent), (quota.tenant, tenant)]
    names = [own if limited == EACH else limited for limited, own in named]
    if any(limited and name is None for (limited, _), name in zip(named, names, strict=True)):
        return QuotaUse(quota=quota, used=None, resets_at=float(ends))
    user, own_agent, own_tenant = (name or "" for name in names)
    counter = counters.of(quota, CounterKey(user, own_agent, quota.quota_id, own_tenant))
    used = counter.used / _UNITS[quota.unit]
    return QuotaUse(quota=quota, used=used if quota.unit == "cost" else int(used), resets_at=float(counter.ends))


def counts_of(
    quotas: Iterable[Quota],
    user_id: str,
    agent: str | None,
    *,
    tenant: str | None = None,
    admits: int,
    spent: Sequence[LedgerRow],
    exceeds: Collection[str] = (),
) -> list[QuotaCount]:
    """Return what a commit of a session of this user, agent and tenant adds to counters.

    Args:
        admits: how many runs it accepts. With any, it is checked that no quota is used up.
        exceeds: the ids of the quotas that may be used up.
        spent: what it adds to the ledger.
    """
    usage, counts = sum((row.usage for row in spent), Usage()), list[QuotaCount]()
    for quota in quotas:
        if key := quota.counter_of(user_id, agent, tenant):
            amount = quota.amount(usage, admits)
            if amount or admits:
                is_checked = bool(admits) and quota.quota_id not in exceeds
                counts.append(QuotaCount(quota=quota, key=key, amount=amount, is_checked=is_checked))
    return counts


def check_quota(quota: Quota) -> Quota:
    """Return a quota that each store can keep.

    Raises:
        InvalidInputError: a field cannot be used; names it.
        NameRefusedError: see `check_names`.
    """
    limits = [unit for unit in get_args(QuotaUnit) if getattr(quota, unit) is not None]
    if len(limits) != 1:
        raise InvalidInputError("quota", shown(quota), "pass exactly one of runs, tokens and cost")
    unit, limit = limits[0], getattr(quota, limits[0])
    kinds = (int, float) if unit == "cost" else (int,)
    is_number = isinstance(limit, kinds) and not isinstance(limit, bool) and math.isfinite(limit)
    if not is_number or not 1 <= round(limit * _UNITS[unit]) <= MOST_COUNT:
        number = "a number above 0" if unit == "cost" else "a whole number from 1"
        raise InvalidInputError(
            f"quota.{unit}", shown(limit), f"pass {number}, of at most {MOST_COUNT // _UNITS[unit]:_}"
        )
    if quota.per not in get_args(QuotaPeriod):
        raise InvalidInputError("quota.per", shown(quota.per), f"pass one of {', '.join(get_args(QuotaPeriod))}")
    if quota.then not in get_args(QuotaThen):
        raise InvalidInputError("quota.then", shown(quota.then), f"pass one of {', '.join(get_args(QuotaThen))}")
    for field, name in (("user_id", quota.user_id), ("agent", quota.agent)):
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidInputError(f"quota.{field}", shown(name), "pass an id, '*' for each, or None for all together")
        check_names(field, name)
    if quota.tenant not in (None, EACH):
        check_tenant(quota.tenant)
    return quota


def with_quota(quotas: Mapping[str, Quota], quota: Quota) -> dict[str, Quota]:
    """Return the quotas of a store, by id, after one was added or replaced.

    Raises:
        InvalidInputError: it cannot be used (see `check_quota`), or there are as many as there may be.
    """
    quota_id = check_quota(quota).quota_id
    if quota_id not in quotas and len(quotas) >= MAX_QUOTAS:
        raise too_many_quotas(quota)
    return {**quotas, quota_id: quota}


def too_many_quotas(quota: Quota) -> InvalidInputError:
    """Return the error of a quota that is one too many."""
    return InvalidInputError("quota", shown(quota), f"the store has {MAX_QUOTAS} quotas, the most: remove one first")


def without_quota(quotas: Mapping[str, Quota], quota_id: str) -> dict[str, Quota]:
    """Return the quotas of a store, by id, after one was removed.

    Raises:
        QuotaNotFoundError: there is none with this id.
    """
    if quota_id not in quotas:
        raise QuotaNotFoundError(quota_id)
    return {name: quota for name, quota in quotas.items() if name != quota_id}


def period_of(per: QuotaPeriod, now: float) -> tuple[int, int]:
    """Return when the period at a time begins and ends, in seconds since the epoch."""
    if per != "month":
        length = 60 if per == "minute" else 86_400
        starts = math.floor(now) // length * length
        return starts, starts + length
    day = datetime.fromtimestamp(now, UTC)
    first = datetime(day.year, day.month, 1, tzinfo=UTC)
    following = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp()), int(following.timestamp())
