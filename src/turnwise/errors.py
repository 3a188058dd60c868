"""Every error that leaves turnwise.

TurnwiseError
├── InvalidInputError          what you passed cannot be used; nothing changed
│   ├── MissingArgumentError   a required argument was left out
│   ├── InvalidIdError
│   ├── InvalidPromptError
│   ├── EmptyTurnError
│   ├── TooManyError           an argument has more parts than one call may bring
│   ├── TooManyVersionsError   turns were replaced, and chosen again, too often
│   ├── StoreURLError
│   ├── ConfigError
│   ├── InvalidMemoryError
│   ├── WorkingMemoryError
│   ├── NameRefusedError       (also a StoreError) no store keeps such an id or key
│   ├── ArchiveError           a line of an archive cannot be imported
│   ├── FileRefusedError       a file is too large, or has a name or a type that cannot be stored
│   ├── TranscriptError
│   └── ReplayChangedError     a replay was begun with other settings, so it cannot go on with these
├── NotFoundError              no such thing, or no longer
│   ├── SessionNotFoundError
│   ├── TurnNotFoundError
│   ├── RunNotFoundError
│   ├── DeliveryNotFoundError  no such delivery, or it was carried out
│   ├── WebhookNotFoundError   no such webhook, or it was deleted
│   ├── QuotaNotFoundError     no such quota, or it was removed
│   ├── CallNotFoundError
│   ├── FileNotStoredError     no such file, or it was deleted
│   ├── ThreadNotFoundError    no such thread of LangGraph's
│   ├── CheckpointNotFoundError
│   └── NoMemoryError          the session has no memory of this kind
├── TooManySchedulesError      a service lets its user have no more schedules
├── TooManyWebhooksError       a service lets its user have no more webhooks
├── OperatorsOnlyError         a service does it for operators only
├── NotAllowedError            the user's role in the session does not allow it
├── SearchUnavailableError     the store keeps no index of what was said
├── FilesUnavailableError      there is no place for files
├── SessionExistsError
├── ThreadExistsError          a thread of LangGraph's has this id
├── CheckpointInUseError       another checkpoint is rebuilt from it; nothing was deleted
├── SessionOwnerError          the session belongs to another agent
├── SessionChangedError        the session changed since it was read
│   ├── TurnsChangedError      another turn is the newest
│   └── TurnReplacedError      another version of the turn is shown
├── SessionBusyError           another run is active
│   ├── QueueFullError
│   └── SessionInUseError      what was asked for has to wait for the run's end
├── OverloadedError            a limit of the placement is reached: try again later
│   └── EngineLimitError       open runs have as many different engines as a process holds
├── ReplayInUseError           another replay into this folder runs
├── QuotaExceededError         a quota is used up; says when the next period begins
├── SessionEndedError          you closed it
├── NoActiveRunError
├── CallDecidedError           the tool call was decided differently
├── IdempotencyConflictError
├── TurnIdTakenError           the session has, or had, another turn with this id
├── RunEndedError              the run ended without an answer; .turn is what was kept
│   ├── RunCancelledError
│   │   └── RunReplacedError   a newer prompt came in the place of one that waited
│   ├── RunFailedError
│   │   ├── RunLimitError      the run reached a limit: steps, budget, time
│   │   ├── OutputInvalidError   the answer is not of the requested type
│   │   ├── OutputRefusedError   the model refused to answer
│   │   └── OutputCutError     the answer was cut off at its maximum length
│   └── RunInterruptedError
├── EngineError                raised in the engine; a caller of wait() gets a RunFailedError that says why
│   ├── InvalidRequestError    the provider would refuse the conversation
│   │   └── UnsupportedBlockError
│   ├── RequestRefusedError    the provider refused the conversation's content
│   ├── ContextOverflowError   the provider refused the conversation as too long
│   ├── LimitError
│   ├── OutputError            the model gave no answer of the requested type
│   ├── GuardrailError         a guardrail of another framework's agent stopped the run
│   ├── ToolAbortError
│   ├── ReplayStoppedError     a replayed turn made a call that nothing answers
│   └── ProviderAwayError      the provider cannot be reached, or refuses for now
├── ToolError                  what a tool raises to tell the model something
├── ToolServerError            a server of tools (MCP) cannot be reached or understood
├── WindowOverflowError        the next request does not fit into the model's window
│   └── TurnOverflowError      the newest turn does not fit, not even without a summary
├── StrategyError              an overflow strategy broke a law; nothing was changed
├── SummaryRefusedError        the model's answer cannot be used as a summary; nothing was changed
├── LongTermMemoryError        a long-term memory failed
│   ├── ExtractionError        the memory's model returned unusable output
│   ├── NotForgottenError      memories failed, so a part of what was to be forgotten is left
│   ├── ReadOnlyMemoryError    the memory is read-only
│   └── MemoryOverheardError   others would see what the memory has
├── CompactionError            a window was not compacted; nothing was lost
├── WaitTimeoutError           (also a TimeoutError) the wait timed out, the run continues
├── FrameworkError             another framework's installed release is not one that its adapter fits
├── ReadOnlyStoreError         the manager is read-only
├── SessionLostError           the session's process cannot be reached
├── ServiceError               a service that is used over HTTP answered with something that has no error of its own
│   ├── UnauthorizedError      it does not accept the token
│   └── ServiceAwayError       it cannot be reached, or its answer was lost
├── UnknownVerbError           the session's process has another version of turnwise
├── WireVersionError           two processes have versions that do not understand each other
└── StoreError                 the store cannot be read or written
    ├── StoreClosedError
    │   └── ManagerClosedError   its sessions and their runs continue
    ├── SchemaVersionError     its tables are of a version that this turnwise may not use
    ├── SchemaMissingError     its tables were never made, and this program may not make them
    ├── CorruptRecordError
    ├── EncryptionError        a stored record and the user's key do not match
    │   ├── KeyMissingError
    │   ├── WrongKeyError
    │   ├── NotEncryptedError
    │   └── StillEncryptedError
    ├── DuplicateKeyError
    ├── FileExpiredError       a file took so long to arrive that it counts as left behind
    ├── DeliveryChangedError   a delivery was carried out, changed or cancelled meanwhile
    ├── WebhookChangedError    a webhook was changed or deleted meanwhile
    ├── HistoryConflictError
    ├── SessionFencedError     a later activation owns the session
    ├── CheckpointFencedError  another run has written to the thread since this one read it
    └── SessionRevertedError   the store is in an earlier state: acknowledged turns are missing

The arguments are positional and become attributes with the same names, so an error survives pickling. The message has
them and says what to do.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from turnwise.memory.conversation.runs import RunState
    from turnwise.memory.conversation.turns import Turn


_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = 60

_SHOWN = 120
"""How many characters of a value an error shows at most."""


def shown(value: object) -> str:
    """Return a value's shortened `repr` for an error message; only its class name if `repr` raises."""
    try:
        text = _REPR.repr(value)
    except Exception:  # noqa: BLE001 - a caller's __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class TurnwiseError(Exception):
    """Base class of all errors of turnwise. `str()` is the message: what happened, to which ids, what to do."""

    message: ClassVar[str] = "{why}"
    fields: ClassVar[tuple[str, ...]] = ("why",)

    def __init__(self, *values: object) -> None:
        if len(values) != len(self.fields):
            raise TypeError(f"{type(self).__name__} takes {self.fields}, got {len(values)} values")
        super().__init__(*values)
        for name, value in zip(self.fields, values, strict=True):
            setattr(self, name, value)

    def __init_subclass__(cls) -> None:
        """Make the class's own annotations, in order, its fields; without any it has those of its base.

        They replace those of the base, so a class that adds a field annotates all of them.
        """
        hints = inspect.get_annotations(cls)
        if names := tuple(name for name, hint in hints.items() if "ClassVar" not in str(hint)):
            cls.fields = names

    def __reduce__(self) -> tuple[Any, ...]:
        # By its fields: `WaitTimeoutError` is an OSError, too, whose `args` do not keep all arguments.
        return _error_of, (type(self), {name: getattr(self, name) for name in self.fields}), vars(self)

    def __str__(self) -> str:
        return self.message.format(**{name: getattr(self, name) for name in self.fields})


def _error_of(cls: type[TurnwiseError], fields: dict[str, object]) -> TurnwiseError:
    return cls(*(fields.get(name) for name in cls.fields))  # an earlier version may not have one of them


def word_of(cls: type[TurnwiseError]) -> str:
    """Return an error's name as a word for programs: that of `SessionBusyError` is `session_busy`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()


class InvalidInputError(TurnwiseError):
    """An argument cannot be used; nothing was changed. `value` is its shortened `repr` (see `shown`)."""

    message = "{field}={value}: {why}"
    field: str
    value: object
    why: str


class MissingArgumentError(InvalidInputError, TypeError):
    """A required argument was left out; nothing was made."""

    message = "{of}: missing a required argument, {argument!r}: {hint}"
    of: str
    argument: str
    hint: str


class InvalidIdError(InvalidInputError):
    """An id is empty, too long, or holds control characters."""

    message = (
        "{kind} {id!r} cannot be used: {why}; use 1 to 256 characters without control characters, "
        "of at most 768 bytes in UTF-8"
    )
    kind: str
    id: str
    why: str


class InvalidPromptError(InvalidInputError):
    """A prompt cannot be stored: it is too large, not text, or of a kind that callers may not add."""

    message = "session {session_id!r} refuses the prompt: {why}"
    session_id: str
    why: str


class EmptyTurnError(InvalidInputError):
    """A prompt is blank; or a run has no prompts and no instructions: none were passed, and none were appended."""

    message = (
        "session {session_id!r} has nothing to run, or a blank prompt: pass prompts that are not blank, or instructions"
    )
    session_id: str


class TooManyVersionsError(InvalidInputError):
    """A session has as many branches as it may have, each by a turn that was replaced or chosen; nothing changed."""

    message = (
        "turns of session {session_id!r} were replaced, and chosen again, {most} times, which is the most: "
        "go on in a fork, or clear the older turns"
    )
    session_id: str
    most: int


class TooManyError(InvalidInputError):
    """An argument has more parts than one call may bring; none of them was looked at, and nothing was changed.

    `limit` names the bound; the page about reliability lists all bounds.
    """

    message = "{field}: {count} are more than {limit}={most} allows: send fewer at once"
    field: str
    count: int
    limit: str
    most: int


class StoreURLError(InvalidInputError):
    """A store URL names no store."""

    message = (
        "store URL {url!r}: {why}; use memory://, sqlite:///path/to/file.db, postgresql://user@host/name "
        "or redis://host:6379/0"
    )
    url: str
    why: str


class ConfigError(InvalidInputError):
    """A setting is out of its range."""

    message = "{setting}={value!r}: {why}"
    setting: str
    value: object
    why: str


class InvalidMemoryError(InvalidInputError):
    """A memory item cannot be saved: it is blank, not text, or of an unknown type."""

    message = "memory {id!r} cannot be saved: {why}; nothing was written"
    id: str
    why: str


class WorkingMemoryError(InvalidInputError):
    """A change would make the working memory invalid or too large; nothing was changed."""

    message = "the change to the working memory of {owner} is invalid: {why}; nothing was changed"
    owner: str
    why: str


class ArchiveError(InvalidInputError):
    """An archive of a session cannot be imported; nothing of it is stored."""

    message = "line {line} of the archive: {why}; nothing was imported"
    line: int
    """From 1."""
    why: str


class TranscriptError(InvalidInputError):
    """Blocks do not form a valid transcript; `why` names the tool call."""

    message = "{why}"
    why: str


class ReplayChangedError(InvalidInputError):
    """A replay cannot go on in a folder where it was begun with other settings; nothing was asked."""

    message = (
        "the replay in {folder!r} was begun with other settings; these differ: {names}. Use the same ones to go on "
        "with it, another folder as out=, or AtScale(anew=True), which deletes its records"
    )
    folder: str
    names: str


class ReplayInUseError(TurnwiseError):
    """Processes of another replay write into the folder; nothing was asked."""

    message = "another replay writes into {folder!r}: wait for its end, or use another folder as out="
    folder: str


class FileRefusedError(InvalidInputError):
    """A file cannot be stored: it is too large, there are too many, or its name or its type cannot be used."""

    message = "file {name} cannot be stored: {why}; nothing was stored"
    name: str
    """As `shown` shortens it."""
    why: str


class NotFoundError(TurnwiseError):
    """A session, turn, run, call or memory does not exist, or no longer exists."""


class SessionNotFoundError(NotFoundError):
    """The user has no session with this id, or it was deleted."""

    message = "no session {session_id!r}: open() creates one"
    session_id: str


class TurnNotFoundError(NotFoundError):
    """The session has no turn with this index or id."""

    message = (
        "session {session_id!r} has no turn {index!r}: turns() lists those it has (a discarded turn leaves a gap, and "
        "turns from before a fork are those of the session that was forked)"
    )
    session_id: str
    index: int | str | None


class RunNotFoundError(NotFoundError):
    """No run has this id."""

    message = "no run {run_id!r} in {where}: runs() lists those there are"
    run_id: str
    where: str


class DeliveryNotFoundError(NotFoundError):
    """The session has no delivery with this key: it was carried out or cancelled, or never added."""

    message = "session {session_id!r} has no delivery {key!r}: it was carried out or cancelled, or never added"
    session_id: str
    key: str


class WebhookNotFoundError(NotFoundError):
    """The store has no webhook with this id: it was deleted, or never added."""

    message = "the store has no webhook {webhook_id!r}: it was deleted, or never added; manager.webhooks() lists them"
    webhook_id: str


class TooManySchedulesError(TurnwiseError):
    """A user has as many schedules as a service lets a user have; nothing was stored."""

    message = (
        "session {session_id!r} gets no further schedule: all sessions of its user together have as many as "
        "{limit}={value} allows; cancel one, or raise this setting of the service"
    )
    session_id: str
    limit: str
    value: int


class TooManyWebhooksError(TurnwiseError):
    """A user has as many webhooks as a service lets a user have; nothing was stored."""

    message = (
        "user {user_id!r} gets no further webhook: there are as many as {limit}={value} allows; "
        "delete one, or raise this setting of the service"
    )
    user_id: str
    limit: str
    value: int


class OperatorsOnlyError(TurnwiseError):
    """A service does this for operators only, and its user is none; nothing was changed."""

    message = "only operators of the service may {action}, and user {user_id!r} is none: {remedy}, or ask an operator"
    user_id: str
    action: str
    remedy: str


class FileNotStoredError(NotFoundError):
    """The session, or the user, has no file with this id: it was deleted, or never put."""

    message = "{owner} has no file {file_id!r}: it was deleted, or never put; files.list() has those there are"
    file_id: str
    owner: str


class FilesUnavailableError(TurnwiseError):
    """There is no place for files, or the store keeps no records of them."""

    message = "store {store} keeps no files: {why}"
    store: str
    why: str


class NotAllowedError(TurnwiseError):
    """A member of a session asked for what the member's role does not allow; nothing was changed."""

    message = (
        "user {user_id!r} is a {role} of session {session_id!r}, and only {needed} may {action}: "
        "ask its user, or an owner, to do it"
    )
    session_id: str
    user_id: str
    role: str
    """The user's role: `reader`, `member` or `owner`."""
    needed: str
    """Who may do it."""
    action: str


class SearchUnavailableError(TurnwiseError):
    """The store cannot search what was said: it is in Redis, it is encrypted, or it is a store of another package."""

    message = (
        "store {store} cannot search what was said: keep sessions in SQLite or PostgreSQL, without encryption, "
        "since an index has the words readable"
    )
    store: str


class SessionExistsError(TurnwiseError):
    """The user has a session with this id already."""

    message = "session {session_id!r} exists already: open() attaches to it, or choose another id"
    session_id: str


class SessionOwnerError(TurnwiseError):
    """The session belongs to another agent."""

    message = "session {session_id!r} belongs to another agent than {agent!r}: choose another session id"
    session_id: str
    agent: str
    """The agent that the caller named."""


class SessionChangedError(TurnwiseError):
    """A session changed after it was read: during an export, or before a change that was to be made to that state."""

    message = "session {session_id!r} changed since it was read: read, or export, it again when it has no active run"
    session_id: str


class TurnsChangedError(SessionChangedError):
    """Turns were added or cleared since the caller read the history that its messages continue; nothing was stored."""

    message = (
        "the newest turn of session {session_id!r} is {newest} and not {after}, which was read (-1 is none): "
        "read the history again, and save what follows turn {newest}"
    )
    session_id: str
    after: int
    """The index of the turn that the messages follow."""
    newest: int
    """The index of the newest turn."""


class TurnReplacedError(SessionChangedError):
    """The turn is not part of the conversation as it is shown, since a turn was replaced; nothing was stored."""

    message = (
        "session {session_id!r} shows turn {shown_index} in place of turn {index}, or of a turn before it: "
        "read the turns again, or choose turn {index} first"
    )
    session_id: str
    index: int
    """The index of the turn that was named."""
    shown_index: int
    """The index of the first turn that is shown instead."""


class SessionBusyError(TurnwiseError):
    """Another run of the session is active."""

    message = (
        "session {session_id!r} is busy with run {run_id!r}: wait for it, cancel it, "
        "or pass if_busy='enqueue' or another value than 'reject'"
    )
    session_id: str
    run_id: str


class SessionInUseError(SessionBusyError):
    """A run of the session is active or queued, and what was asked for would change what the run works on."""

    message = "session {session_id!r} is busy with run {run_id!r}: wait for it, or cancel it, and repeat the call"
    session_id: str
    run_id: str


class QueueFullError(SessionBusyError):
    """A run is active, and the queue behind it is full."""

    message = (
        "the queue of session {session_id!r} is full, with {max_queued} runs behind run {run_id!r}: "
        "wait for some to end, or raise SessionConfig(max_queued=...)"
    )
    session_id: str
    run_id: str
    max_queued: int


class OverloadedError(TurnwiseError):
    """A placement's limit is reached; nothing was done."""

    message = (
        "session {session_id!r} cannot be served now: the limit {limit}={value} is reached; "
        "try again later, or raise the limit in the placement"
    )
    session_id: str
    limit: str
    value: int


class EngineLimitError(OverloadedError):
    """The open runs of a process use as many different engines as a process may hold; nothing was done."""

    message = (
        "session {session_id!r} cannot be served now: open runs of its process have {value} different {limit}, "
        "the maximum; let one of the runs end, or use fewer engines at once: "
        "engines with equal settings, or with the same engine_name, count as one"
    )


class QuotaExceededError(TurnwiseError):
    """A quota is used up, so no run may begin until its next period begins; nothing was stored."""

    message = (
        "quota {quota_id!r}: {scope} has used {used:.12g} of {limit:.12g} {unit} per {per}: try again in "
        "{retry_after_s:.1f} s, from {resets_at:.0f} (seconds since the epoch) on, or have an operator raise the quota"
    )
    quota_id: str
    scope: str
    """Whom it limits."""
    unit: str
    """`runs`, `tokens` or `cost`."""
    used: float
    limit: float
    per: str
    """`minute`, `day` or `month`."""
    resets_at: float
    """When the next period begins, in seconds since the epoch."""
    retry_after_s: float
    """How many seconds that is from now on, by the store's clock."""


class SessionEndedError(TurnwiseError):
    """The session has ended: it can be read, forked and deleted, but not continued."""

    message = "session {session_id!r} has ended: fork() it, or open another session"
    session_id: str


class NoActiveRunError(TurnwiseError):
    """The session has no active run to cancel."""

    message = "session {session_id!r} has no active run to cancel"
    session_id: str


class QuotaNotFoundError(NotFoundError):
    """The store has no quota with this id: it was removed, or never set."""

    message = "the store has no quota {quota_id!r}: it was removed, or never set; manager.quotas() lists them"
    quota_id: str


class CallNotFoundError(NotFoundError):
    """The run has no tool call with this id that waits, or has waited, for a decision."""

    message = (
        "no call {call_id!r} of run {run_id!r}, session {session_id!r}, needs a decision: pending() lists those that do"
    )
    session_id: str
    run_id: str
    call_id: str


class NoMemoryError(NotFoundError):
    """A session has no memory of this kind: `long-term memory` or `working memory`."""

    message = "session {session_id!r} has no {kind}: pass one to its manager"
    session_id: str
    kind: str


class ThreadNotFoundError(NotFoundError):
    """The store has no thread with this id."""

    message = "there is no thread {thread_id!r}: was it deleted, or is it in another store?"
    thread_id: str


class CheckpointNotFoundError(NotFoundError):
    """The checkpoint that is to be continued, or written to, does not exist; nothing was stored."""

    message = (
        "thread {thread_id!r} has no checkpoint {checkpoint_id!r} in namespace {checkpoint_ns!r}, so nothing was "
        "stored: it was deleted, or never there; leave checkpoint_id out of the config to continue the latest"
    )
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str


class ThreadExistsError(TurnwiseError):
    """A thread with this id exists; nothing was copied."""

    message = "thread {thread_id!r} exists, and nothing was copied: copy to another id, or delete it first"
    thread_id: str


class CheckpointInUseError(TurnwiseError):
    """A later checkpoint is rebuilt from one of the run, so the checkpoints of its namespace were not deleted."""

    message = (
        "thread {thread_id!r}: checkpoint {needed_by!r} is rebuilt from {checkpoint_id!r} of run {run_id!r}, so "
        "nothing of this namespace was deleted: delete the later runs too, or the thread"
    )
    thread_id: str
    checkpoint_id: str
    run_id: str
    needed_by: str


class CallDecidedError(TurnwiseError):
    """The tool call was decided differently before, or its run has ended."""

    message = "call {call_id!r} of run {run_id!r}, session {session_id!r}, can no longer be decided: {why}"
    session_id: str
    run_id: str
    call_id: str
    why: str


class IdempotencyConflictError(TurnwiseError):
    """An idempotency key was used again with another prompt."""

    message = (
        "idempotency key {key!r} of session {session_id!r} belongs to run {run_id!r}, which has another prompt: "
        "use a new key for a new prompt"
    )
    session_id: str
    key: str
    run_id: str


class TurnIdTakenError(TurnwiseError):
    """`run(turn_id=...)` repeats an id of the session; nothing was stored."""

    message = (
        "session {session_id!r} has, or had, a turn with the id {turn_id!r}, of run {run_id!r}: pass another turn_id, "
        "or an idempotency_key to repeat a call"
    )
    session_id: str
    turn_id: str
    run_id: str


class RunEndedError(TurnwiseError):
    """A run ended without a finished answer; `turn` is what was kept of it, None if it was dropped."""

    message = "run {run_id!r} of session {session_id!r} ended: {why}"
    session_id: str
    run_id: str
    why: str
    turn: Turn | None


class RunCancelledError(RunEndedError):
    """The run was cancelled; `why` is the reason given."""

    message = "run {run_id!r} of session {session_id!r} was cancelled: {why}"


class RunReplacedError(RunCancelledError):
    """The run was queued, and the run `replaced_by` came in its place, by `if_busy="latest"`."""

    message = "run {run_id!r} of session {session_id!r} was replaced by run {replaced_by!r} ({why}): wait for that"
    session_id: str
    run_id: str
    why: str
    turn: Turn | None
    replaced_by: str


class RunFailedError(RunEndedError):
    """The engine raised, returned nothing, could not be built, or ran out of time."""

    message = "run {run_id!r} of session {session_id!r} failed: {why}; the session can run the next prompt"


class RunLimitError(RunFailedError):
    """The run reached a limit of steps, budget or time. Its output is kept; `turn.stop_reason` names the limit."""


class OutputInvalidError(RunFailedError):
    """The answer is not of the requested type, also after all retries; `why` quotes the validation errors.

    Also raised by `Turn.parsed` and `Turn.parse`, if a class accepts less than its JSON schema does.
    """

    message = "run {run_id!r} of session {session_id!r} gave no answer of the requested type: {why}"


class OutputRefusedError(RunFailedError):
    """The model refused to give an answer of the requested type; `why` quotes the refusal, `turn.text` has it whole."""

    message = (
        "the model refused to answer run {run_id!r} of session {session_id!r}: {why}; "
        "the session can run the next prompt"
    )


class OutputCutError(RunFailedError):
    """An answer of a requested type was cut off at its maximum length; `turn.text` is the part that arrived."""

    message = "the answer of run {run_id!r} of session {session_id!r} is incomplete: {why}"


class RunInterruptedError(RunEndedError):
    """The session's process was lost during the run."""

    message = "run {run_id!r} of session {session_id!r} was interrupted: {why}; run the prompt again"


class EngineError(TurnwiseError):
    """An engine failed, or its provider refused a request; `why` says what happened and what to do.

    The run then fails: a caller that waits for it gets a `RunFailedError` or one of its subclasses, such as
    `RunLimitError` for `LimitError`.
    """


class InvalidRequestError(EngineError):
    """A conversation that the provider would refuse, found before it was sent; `kind` says what is wrong with it.

    The kinds are those of `turnwise.memory.providers.validation.Kind`.
    """

    message = "{provider} would refuse messages[{index}], block {block} ({kind}): {why}"
    provider: str
    index: int
    block: int
    kind: str
    why: str


class UnsupportedBlockError(InvalidRequestError):
    """An image or document in a form that the provider does not take."""


class RequestRefusedError(EngineError):
    """The provider refused the content of the conversation, and would refuse it again.

    A tool loop first repeats the request without the pictures and files that tools returned. The run fails with the
    code `refused`. In later requests of the session, a text replaces each picture and file that came after the last
    answer, or each one if none did. If the run had recorded output, nothing is replaced.
    """


class ContextOverflowError(EngineError):
    """The provider refused the conversation as too long for the model's context window.

    If the session has an overflow strategy, it shortens the request and sends it again. Without a strategy, or if
    nothing can be removed, the run fails with the code `window`.
    """


class LimitError(EngineError):
    """A run reached a limit; `code` is `step_limit`, `budget` or `quota`."""

    message = "{why} ({code})"
    why: str
    code: str


class OutputError(EngineError):
    """The model gave no answer of the requested type; `code` is `output_invalid`, `output_refused` or `output_cut`."""

    message = "{why} ({code})"
    why: str
    code: str


class GuardrailError(EngineError):
    """A guardrail of another framework's agent stopped the run, which fails with the code `guardrail`.

    `stage` is `input`, `output`, `tool input` or `tool output`; `why` is what the guardrail says about its decision.
    The run keeps what was recorded before, but not the answer that a model was giving.
    """

    message = "the {stage} guardrail {guardrail!r} stopped the run: {why}"
    stage: str
    guardrail: str
    why: str


class ToolAbortError(EngineError):
    """A tool failed, and its registry has `on_error="abort"`, which ends the run."""

    message = "tool {name!r}, call {call_id!r}, failed: {why}; with on_error='abort' this ends the run"
    name: str
    call_id: str
    why: str


class ProviderAwayError(EngineError):
    """The provider cannot be reached, is overloaded, or allows no more requests now.

    The run fails with the code `away`.
    """


class ReplayStoppedError(EngineError):
    """A replayed turn called a tool as its record did not, and nothing else answers the call."""

    message = (
        "tool {name!r}, call {call_id!r}: the record of the turn does not answer this call, and a replay calls no tool "
        "that may change something: see RecordedTools(otherwise=...)"
    )
    name: str
    call_id: str


class ToolError(TurnwiseError):
    """Raise this in a tool that cannot carry out a call: the model gets `why` verbatim, and the call is not retried."""


class ToolServerError(TurnwiseError):
    """An MCP server cannot be started, reached or understood, or its connection was lost during a call."""

    message = "MCP server {server!r}: {why}"
    server: str
    why: str


class WindowOverflowError(TurnwiseError):
    """The newest turn does not fit into the model's window together with the system prompt, the tools and the summary.

    All fields are in tokens: `overhead` is the size of the system prompt and tools, `summary` of the summary of earlier
    turns, `newest` of the newest turn.
    """

    message = (
        "the next request takes at least {needed} of {max_tokens} tokens: {overhead} for the system prompt and tools, "
        "{summary} for the summary of earlier turns, {newest} for the newest turn; shorten what is longest, "
        "or raise max_context_tokens"
    )
    max_tokens: int
    needed: int
    overhead: int
    summary: int
    newest: int


class TurnOverflowError(WindowOverflowError):
    """The newest turn does not fit into the model's window, not even without a summary, so no request can have it.

    All fields but `turn_id`, which is `session#index`, are those of `WindowOverflowError`.
    """

    message = (
        "turn {turn_id!r} does not fit: a request with it takes at least {needed} of {max_tokens} tokens: {overhead} "
        "for the system prompt and tools, {summary} for the summary of earlier turns, {newest} for the turn; "
        "delete the turn, or blocks of it by remove(), or raise max_context_tokens"
    )
    turn_id: str
    max_tokens: int
    needed: int
    overhead: int
    summary: int
    newest: int


class StrategyError(TurnwiseError):
    """An overflow strategy's plan breaks a law, which `law` names. A strategy that raises breaks the law `decides`."""

    message = "strategy {strategy} breaks the law {law!r}: {why}; its plan was not carried out"
    strategy: str
    law: str
    why: str


class SummaryRefusedError(TurnwiseError):
    """A model's answer cannot be used as a summary; `kind` is `empty`, `tool_call`, `cut` or `oversize`."""

    message = "the summary cannot be used ({kind}): {why}; nothing was changed"
    kind: str
    why: str


class LongTermMemoryError(TurnwiseError):
    """Long-term memories failed; `why` names each with its error. The conversation is still whole in its session."""

    message = "long-term memory failed: {why}"
    why: str


class ExtractionError(LongTermMemoryError):
    """A model's answer to a request for facts cannot be used; nothing was changed."""


class NotForgottenError(LongTermMemoryError):
    """Memories failed, so only a part of what was to be forgotten is gone; `why` names each with its error.

    `left` and `gone` have the ids of what was not deleted and of what was, by memory. "notes", which has no ids, stands
    for parts of the notes; a memory that could not be searched is in `left` without ids.
    """

    message = "not all is forgotten: {why}; left: {left}; gone: {gone}. Repeat the call"
    why: str
    left: dict[str, list[str]]
    gone: dict[str, list[str]]


class ReadOnlyMemoryError(LongTermMemoryError):
    """The memory is read-only; its content can only be changed at its source."""

    message = "{memory} is read-only and refuses {verb}(): write to another memory, or change the source of this one"
    memory: str
    verb: str


class MemoryOverheardError(LongTermMemoryError):
    """A tool would have read a memory in a shared session, where its result is seen by others; nothing was read."""

    message = (
        "what the memory of user {user_id!r} has would be seen by all who share the session, so {verb} is not possible "
        "here: what is relevant to a prompt is recalled for its run"
    )
    user_id: str
    verb: str


class CompactionError(TurnwiseError):
    """An overflow strategy's plan could not be carried out, and it has no `otherwise` left; nothing was changed."""

    message = (
        "the plan of {strategy} for the window of session {session_id!r} could not be carried out: {why}; "
        "try again later, or pass the strategy an otherwise= that needs no model and no memory, such as Trim()"
    )
    session_id: str
    strategy: str
    why: str


class WaitTimeoutError(TurnwiseError, TimeoutError):
    """The wait timed out before the run ended. The run continues. `state` is its state or "unknown"."""

    message = (
        "run {run_id!r} of session {session_id!r} did not end within {timeout_s} s (state: {state}), and "
        "continues: wait again, or cancel it"
    )
    session_id: str
    run_id: str
    timeout_s: float | None
    state: RunState | Literal["unknown"]


class FrameworkError(TurnwiseError):
    """A framework's installed release has another interface than its adapter was written for."""

    message = "{package} {installed}: {why}; turnwise's adapter was tested with {tested}: install that release"
    package: str
    installed: str
    tested: str
    why: str


class ReadOnlyStoreError(TurnwiseError):
    """The manager has `read_only=True`, and the method would change something; nothing was changed."""

    message = "session {session_id!r} is read-only, and {verb} would change it: use a manager without read_only=True"
    session_id: str
    verb: str


class SessionLostError(TurnwiseError):
    """The session's process cannot be reached or started."""

    message = "session {session_id!r} cannot be reached: {why}; try again: all that it acknowledged is in the store"
    session_id: str
    why: str


class ServiceError(TurnwiseError):
    """A service that is used over HTTP gave an answer that has no error of its own; `status` is that of HTTP."""

    message = "the service {url} answered {status} ({word}): {why}"
    url: str
    status: int
    word: str
    """The answer's `error`, a word for programs."""
    why: str


class UnauthorizedError(ServiceError):
    """The service does not accept the token, or wants one; nothing was changed."""

    message = "the service {url} refuses the token ({status}, {word}): {why}"


class ServiceAwayError(ServiceError):
    """The service cannot be reached, or a connection broke before its answer came.

    `word` says what is known of the request: `unsent` if it was not carried out, `unknown` if it may have been.
    """

    message = "no answer of the service {url} ({word}): {why}"
    url: str
    word: str
    why: str


class UnknownVerbError(TurnwiseError):
    """The session's process does not know what it was asked; nothing was changed."""

    message = (
        "the process of session {session_id!r} has another version of turnwise, which does not know {verb!r}: install"
        " one version on every node, and restart the processes of sessions"
    )
    session_id: str
    verb: str


class WireVersionError(TurnwiseError):
    """Two processes have versions of turnwise that do not understand each other.

    Nothing was changed, unless it is an answer that was not understood; `why` says so.
    """

    message = (
        "this process has turnwise {own} and was sent something by turnwise {other}: {why}; upgrade the older one:"
        " processes of sessions before their callers"
    )
    own: str
    other: str
    why: str


class StoreError(TurnwiseError):
    """The store could not be read or written."""


class NameRefusedError(InvalidInputError, StoreError):
    """An id or a key has characters that not every store can keep, or is too long to be found by; nothing was stored.

    Each store refuses the same names.
    """


class StoreClosedError(StoreError):
    """The store was closed."""

    message = "store {store} is closed: open it again"
    store: str


class ManagerClosedError(StoreClosedError):
    """The session manager was closed. Its sessions and their runs continue."""

    message = (
        "this session manager of {store} was closed: make a new SessionManager or AsyncSessionManager,"
        " whose sessions go on where they are"
    )


class SchemaVersionError(StoreError):
    """The store's schema has a version that this turnwise may not use: the remedy says who upgrades what."""

    message = "store {store} has schema version {found}, this turnwise writes {known}: {remedy}"
    store: str
    found: str
    known: int
    remedy: str


class SchemaMissingError(StoreError):
    """The store has no tables yet, and this program may not make them."""

    message = "store {store} has no tables: {why}; run `turnwise migrate` on it, as a role that may make tables"
    store: str
    why: str


class CorruptRecordError(StoreError):
    """A stored record is missing or cannot be read; the error does not quote its content.

    Unreadable records are always reported: `Page.unreadable` has the sessions that a list leaves out.
    """

    message = "corrupt record {key} in the store: {why}; restore it from a backup"
    key: str
    why: str


class EncryptionError(StoreError):
    """A stored record and the user's key do not match; nothing was changed."""


class KeyMissingError(EncryptionError):
    """A user has no key, or no longer has one: the user's records can be deleted, but not read or written."""

    message = (
        "user {user_id!r} has no key, so the user's records cannot be read or written: "
        "return the key from Encryption.key, or delete the user's sessions with forget()"
    )
    user_id: str


class WrongKeyError(EncryptionError):
    """A record was encrypted with another key than the user's current one."""

    message = "{record} was encrypted with another key of user {user_id!r}: return that key from Encryption.key"
    record: str
    user_id: str


class NotEncryptedError(EncryptionError):
    """A record was stored without encryption, but the store was opened with encryption."""

    message = "{record} is not encrypted: open its store without encryption=, or start with an empty store"
    record: str


class StillEncryptedError(EncryptionError):
    """A record was stored with encryption, but the store was opened without."""

    message = "{record} is encrypted: open its store in a program, with the encryption= that it was written with"
    record: str


class DuplicateKeyError(StoreError):
    """A run id, idempotency key or event key is stored already; nothing was written."""

    message = "session {session_id!r} has a record under key {key!r} already; nothing was written"
    session_id: str
    key: str


class DeliveryChangedError(StoreError):
    """A delivery was carried out, changed or cancelled since it was read; nothing was written."""

    message = (
        "delivery {delivery_id!r} of session {session_id!r} was carried out, changed or cancelled since it was read, "
        "and nothing was written: read it again"
    )
    session_id: str
    delivery_id: str


class WebhookChangedError(StoreError):
    """A webhook was changed or deleted since it was read, or there is one with its id; nothing was written."""

    message = (
        "webhook {webhook_id!r} was changed or deleted since it was read, or exists already, and nothing was written: "
        "read it again"
    )
    webhook_id: str


class FileExpiredError(StoreError):
    """A file took so long to arrive that its bytes count as left behind by a crash; nothing was stored."""

    message = "the bytes of file {file_id!r} are gone, since they took too long to arrive: put the file again"
    file_id: str


class HistoryConflictError(StoreError):
    """Another event has this key, or, if `key` is None, this number; nothing was written."""

    message = (
        "the history of session {session_id!r} has another event under the key {key!r} of event {seq}, "
        "and nothing was written: append each event once"
    )
    session_id: str
    seq: int
    key: str | None

    def __str__(self) -> str:
        if self.key is not None:
            return super().__str__()
        return (
            f"the history of session {self.session_id!r} has another event under number {self.seq}, "
            "and nothing was written: append each event once"
        )


class SessionFencedError(StoreError):
    """Another process has activated the session since and owns it now; nothing was written."""

    message = (
        "session {session_id!r} was activated by another process, so epoch {epoch} is stale and nothing was written: "
        "open the session again"
    )
    session_id: str
    epoch: int


class CheckpointFencedError(StoreError):
    """Another run has written to the thread since this one read it; nothing was stored. `latest` is its checkpoint."""

    message = (
        "thread {thread_id!r}, namespace {checkpoint_ns!r}: another run has written since this one read checkpoint "
        "{checkpoint_id!r}, and nothing was stored; the latest is {latest!r}: invoke the graph again to continue that, "
        "or name an earlier checkpoint_id in the config to branch from it"
    )
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    latest: str | None


class SessionRevertedError(StoreError):
    """The store is in an earlier state of the session, for example after a restore or a failover.

    Acknowledged records since that state are missing. This error is raised for callers that wait for one of them, and
    for the next call that would change the session, which has no effect. The session continues from the store's state:
    repeat the call.
    """

    message = (
        "the store of session {session_id!r} went back to an earlier state, by a restore or a failover, so "
        "acknowledged turns are missing, and this call changed nothing: see turns() for those left, and repeat the call"
    )
    session_id: str
