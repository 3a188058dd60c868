"""`RunRecord`: a run as it is stored. A run produces one answer and ends exactly once.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from dataclasses import dataclass, field
from typing import Literal

from turnwise.memory.conversation.calls.tool_calls import Verdict, decode_calls, questions_of, usage_of_agents
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import Record

RunState = Literal["queued", "running", "awaiting_approval", "completed", "cancelled", "failed", "interrupted"]

OPEN_STATES = ("queued", "running", "awaiting_approval")

UNSETTLED = ("queued", "running")
"""The open states that need a process. A run that waits for a person's decision needs none."""

Until = Literal["ended", "settled"]
"""How long a wait lasts: until the run has ended, or until it has ended or waits for a decision about a call."""


def has_reached(state: RunState, until: Until, *, awaits_agents: bool) -> bool:
    """Return whether a wait for a run in this state is over; see `RunRecord.awaits_agents`."""
    return not awaits_agents and state not in (OPEN_STATES if until == "ended" else UNSETTLED)


IfBusy = Literal["reject", "enqueue", "interrupt", "rollback", "latest", "drop", "merge", "inject", "debounce"]
"""What happens to a new run while another one is active, or waits for silence: see `Session.run`."""

MERGED = "merged"
"""The code of a queued run whose prompts are part of another run."""

FROM_SESSION = "from_session"
"""The label that names the session that has sent a message. The run that the message begins has it; callers cannot."""

LABEL_IS_RESERVED = f"{FROM_SESSION!r} is reserved for messages between sessions: use another name for this label"

QUOTA = "quota"
"""The code of a queued run that waits for a quota, and of a run that a quota has ended."""

REPLACED = "replaced"
"""The code of a queued run in whose place another run has come."""

FinishClass = Literal["completed", "max_tokens", "tool_calls_pending", "interrupted", "error"]

CUT_SHORT = ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded")
"""The providers' stop reasons for an answer that reached the token limit."""


RUN_CHANGES: tuple[str, ...] = (
    *("state", "first_seq", "started_at", "ended_at", "resumes"),
    *("why", "code", "successor", "usage", "stop_reason", "calls"),
)
"""The fields of a run that may change after it was stored."""


@dataclass(frozen=True)
class RunOrigin(Record):
    """Who has started a run, and by which request. A request that repeats the key must be equal in all of it."""

    key: str | None = None
    """The idempotency key that the caller chose."""
    fingerprint: str = ""
    """A digest of the prompts and of the options of the model call; empty without a key."""
    author: str | None = None
    """The member who has started it; None for the session's user."""
    joins: bool = False
    """Whether its prompts may join the active run while it is queued: see `run(if_busy="inject")`."""


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """A run as it is stored."""

    run_id: str
    session_id: str
    user_id: str = DEFAULT_USER
    """The session's user."""
    turn_index: int
    state: RunState
    first_seq: int
    """The sequence number of its first event."""
    created_at: float
    started_at: float | None = None
    """When it began. Of a run that is queued by `run(if_busy="debounce")`, when it is to begin."""
    ended_at: float | None = None
    why: str | None = None
    """Why the run ended, if it did not complete. Of a run that has not ended, why its process gave it up."""
    code: str | None = None
    """A machine-readable word for `why`; None for other reasons. `step_limit`, `budget`, `timeout`; `window`: the
    newest turn does not fit; `compaction`: the overflow strategy could not make room; `refused`: the provider refused,
    or would refuse, the conversation's content; `away`: the provider cannot be reached, or allows no more
    requests now; `output_invalid`, `output_refused`, `output_cut`: there is no answer of
    the requested type; `merged`: the run `successor` has its prompts; `replaced`: the run `successor`
    has come in its place."""
    successor: str | None = None
    """The run that has its prompts, or that has come in its place, while it was queued: see `code`."""
    labels: FrozenDict = field(default_factory=FrozenDict)
    timeout_s: float | None = None
    origin: RunOrigin = field(default_factory=RunOrigin)
    usage: Usage | None = None
    """Usage up to the run's last commit. `agents_usage` has that of its agents."""
    stop_reason: str | None = None
    """Why the model stopped, in the provider's words."""
    calls: FrozenDict = field(default_factory=FrozenDict)
    """States of its tool calls, without their results, by call id: see `memory/conversation/tool_calls`."""
    resumes: int = 0
    """How often it was resumed after its process was lost."""
    engine: str | None = None
    """The name of its engine; None for the manager's first."""
    parent: str | None = None
    """The run, of any session of the user, on whose behalf this run was started."""
    memory: MemoryUse = "on"
    """Whether it recalls from long-term memory, and whether its turn is saved there."""
    model: str | None = None
    """The model's name; None for the engine's own."""
    params: FrozenDict = field(default_factory=FrozenDict)
    """Its request parameters, those of its session included: see `ModelParams`."""
    output: FrozenDict | None = None
    """The type of its answer: a JSON `schema`, and how many `retries` the model has to fit it. None for text.
    Of a run that asks no model, the answer itself: the text that it `says`."""
    instructions: str | None = None
    """The system prompt of this run alone, which its requests have after the engine's or the conversation's."""
    tools: FrozenDict = field(default_factory=FrozenDict)
    """The tools of this run alone, whose results its caller provides, by name: `description` and `parameters`."""
    overflow: FrozenDict | None = None
    """The overflow strategy of this run alone: its name, as `strategy`, and its settings. None for the session's."""
    trace: FrozenDict = field(default_factory=FrozenDict)
    """The W3C trace context of the run's first span, and the id of that span's `parent`; empty without telemetry."""

    @property
    def session_key(self) -> SessionKey:
        """Its session."""
        return SessionKey(self.session_id, self.user_id)

    @property
    def says(self) -> str | None:
        """The text that is its answer, if it asks no model: see `Session.say`."""
        says: str | None = self.output.get("says") if self.output else None
        return says

    @property
    def waits_for_quota(self) -> bool:
        """Whether it is queued since a quota is used up: until `started_at`, when the quota begins anew."""
        return self.state == "queued" and self.code == QUOTA

    @property
    def idempotency_key(self) -> str | None:
        """The key by which a repeated request finds it."""
        return self.origin.key

    @property
    def author(self) -> str | None:
        """The member who has started it; None for the session's user."""
        return self.origin.author

    @property
    def joins(self) -> bool:
        """Whether its prompts may join the active run while it is queued: see `run(if_busy="inject")`."""
        return self.origin.joins

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in OPEN_STATES

    @property
    def has_run(self) -> bool:
        """Whether it has ended and had begun, so that the ledger counts it."""
        return not self.is_open and self.started_at is not None

    @property
    def awaits_agents(self) -> bool:
        """Whether it is suspended and waits for agents only, none of which asks, so that nobody has to decide."""
        if self.state != "awaiting_approval":
            return False
        waiting = [call for call in self.calls.values() if call.get("wants") and not call.get("verdict")]
        return bool(waiting) and all(
            call["wants"] == "agent" and None not in (call["agent"].get("asks") or {}).values() for call in waiting
        )

    @property
    def questions(self) -> dict[str, Verdict | None]:
        """The verdicts of the calls about which somebody decides, those of its agents included: see `questions_of`."""
        return questions_of(decode_calls(self.calls))

    @property
    def agents_usage(self) -> Usage:
        """What the agents that it has called have spent, those that have ended: see `usage_of_agents`."""
        return usage_of_agents(decode_calls(self.calls).values())

    @property
    def leads_to(self) -> str | None:
        """The run that has its prompts and gives its answer, if it was merged; else None."""
        return self.successor if self.code == MERGED else None

    @property
    def finish(self) -> FinishClass | None:
        """The outcome in one of five classes; None while the run is queued or running."""
        if self.state in UNSETTLED:
            return None
        if self.state == "awaiting_approval":
            return "tool_calls_pending"
        if self.state == "failed":
            return "error"
        if self.state != "completed":
            return "interrupted"
        return "max_tokens" if self.stop_reason in CUT_SHORT else "completed"

    _repr_html_ = record_html
