"""`SessionRecord`: a session as it is stored.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

from turnwise.errors import NotAllowedError, SessionNotFoundError
from turnwise.memory.conversation.branches import Branches
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.named_tuples import Reduced, by_name
from turnwise.memory.values.records import Record, replace

SessionStatus = Literal["active", "ended"]

MemberRole = Literal["reader", "member", "owner"]
"""What a member of a session may do. A reader reads and follows. A member also writes, and controls the own runs. An
owner may do all that the session's user may."""

ROLES: tuple[MemberRole, ...] = get_args(MemberRole)
"""All roles; each allows what those before it allow, and more."""

MAX_MEMBERS = 100
"""How many members a session has at most, besides its user."""


DEFAULT_USER = "default"
"""The user of sessions for which the caller names none."""


class SessionKey(NamedTuple):
    """Which session: an id, which is unique among the sessions of a user, and that user."""

    session_id: str
    user_id: str = DEFAULT_USER

    def __reduce__(self) -> Reduced:
        return by_name(self)

    @property
    def full_name(self) -> str:
        """The id and, unless it is the default one, the user: `chat of ann`. For people, where users' sessions mix."""
        return self.session_id if self.user_id == DEFAULT_USER else f"{self.session_id} of {self.user_id}"


def parent_id(turn: str) -> str:
    """Return the id of the session that a turn belongs to, of its name as `SessionRecord.parent` has it."""
    return turn.rpartition("#")[0]


@dataclass(frozen=True, kw_only=True)
class Inherited(Record):
    """What the session of an agent has from its caller.

    It is a record of its own, since Python keeps 29 fields of an object cheaply.
    """

    depth: int = 0
    """How many calls of agents are above it."""
    budget: FrozenDict = field(default_factory=FrozenDict)
    """What it may spend of its caller's budget, by the names of the limits of `Budget`; empty without a limit."""
    prefix_key: str = ""
    """The key of its caller's prefix, with which its requests begin too; empty if they begin otherwise. Its forks have
    the same key. See `RunContext.prefix_key`."""


@dataclass(frozen=True, kw_only=True)
class SessionRecord(Record):
    """A session's row: its owner, its settings, and the counters that its next commit starts from."""

    session_id: str
    user_id: str = DEFAULT_USER
    agent: str | None = None
    metadata: FrozenDict = field(default_factory=FrozenDict)
    title: str | None = None
    """Its name for people, as lists of conversations show it; None if it has none."""
    status: SessionStatus = "active"
    created_at: float = 0.0
    updated_at: float = 0.0
    parent: str | None = None
    """The turn it was forked from, as `session_id#index`."""
    called_by: str | None = None
    """The session whose tool has called it as an agent."""
    inherited: Inherited = field(default_factory=Inherited)
    """What it has from its caller."""
    namespace: str | None = None
    """The namespace on Ray of the process that made its last commit; None: it was made without Ray."""
    log: str = ""
    """The block log it appends to; the store names it at creation."""
    log_size: int = 0
    next_index: int = 0
    """The index of its next turn."""
    branches: Branches = ()
    """Which turns came in place of earlier ones, and which are shown; empty if none was ever replaced."""
    epoch: int = 0
    """Counts activations. Each commit names the epoch it was made in, so that commits of earlier owners are refused."""
    revision: int = 0
    """Each commit raises it by 1, each activation by a random number. So no two states of a session have the same
    revision, even if the store was restored to an earlier state in between."""
    seq: int = 0
    """The highest sequence number that any event may have. During a run it is ahead of the last stored event, since
    live events have numbers too; a later activation continues from here, so no number is used twice."""
    usage: Usage = field(default_factory=Usage)
    """The usage of all its runs, discarded ones included."""
    agents_usage: Usage = field(default_factory=Usage)
    """What agents have spent that its runs have called; see `RunRecord.agents_usage`."""
    memory: MemoryUse = "on"
    """The default of its runs: see `RunRecord.memory`."""
    saved: int = -1
    """The turns up to this index are saved in long-term memory, those excepted that are not to be saved."""
    ttl_s: float | None = None
    """Seconds after its last commit at which it expires and may be deleted; None: never. It has expired when
    `updated_at + ttl_s <= now`, in double precision."""
    model: str | None = None
    """The default model of its runs; None for the engine's own."""
    engine: str | None = None
    """The name of the engine of its next runs; None for the manager's first."""
    params: FrozenDict = field(default_factory=FrozenDict)
    """The default request parameters of its runs: see `ModelParams`."""
    marks: int = 0
    """How many marks its messages have."""
    members: FrozenDict = field(default_factory=FrozenDict)
    """The roles of those who share it with its user, by their ids: see `MemberRole`."""

    @property
    def key(self) -> SessionKey:
        """Which session it is."""
        return SessionKey(self.session_id, self.user_id)

    @property
    def depth(self) -> int:
        """How many calls of agents are above it."""
        return self.inherited.depth

    @property
    def budget(self) -> FrozenDict:
        """What it may spend of its caller's budget; see `Inherited`."""
        return self.inherited.budget

    def role_of(self, user_id: str | None) -> MemberRole | None:
        """Return the role of a user; None if the user is no member. Its own user, or None, is an owner."""
        if user_id in (None, self.user_id):
            return "owner"
        role: MemberRole | None = self.members.get(user_id)
        return role

    def check_role(self, user_id: str | None, needed: MemberRole, action: str) -> None:
        """Raise unless the role of a user allows an action.

        Args:
            needed: the lowest role that allows it.
            action: a verb with its object, for the error.

        Raises:
            SessionNotFoundError: the user is no member. To such a user the session does not exist.
            NotAllowedError: the user's role does not allow it.
        """
        role = self.role_of(user_id)
        if role is None:
            raise SessionNotFoundError(self.session_id)
        if ROLES.index(role) < ROLES.index(needed):
            whom = f"{needed}s" if needed == "owner" else f"{needed}s and owners"
            raise NotAllowedError(self.session_id, str(user_id), role, whom, action)

    def has_expired(self, now: float) -> bool:
        """Return whether it may be deleted at this time, in seconds since the epoch."""
        return self.ttl_s is not None and self.updated_at + self.ttl_s <= now

    def committed(self, **changes: Any) -> "SessionRecord":
        """Return the row after the next commit: with these changes, and with the revision raised by 1."""
        return replace(self, revision=self.revision + 1, **changes)

    _repr_html_ = record_html


FIXED = ("session_id", "user_id", "agent", "created_at", "parent", "called_by", "inherited", "log", "epoch")
"""The fields that commits do not change. Activations change the epoch."""

SESSION_CHANGES = tuple(field.name for field in fields(SessionRecord) if field.name not in FIXED)
"""The fields that commits change."""

MAX_TITLE_CHARS = 1000
"""The longest title of a session, in characters."""
