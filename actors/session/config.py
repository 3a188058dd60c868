"""`SessionConfig`: limits, timeouts and policies of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnwise.actors.inference.observing import Telemetry
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.engines.budget import Budget, Price
from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.files.records import FileLimits
from turnwise.memory.tokens.counter import TokenCounter
from turnwise.memory.values.checked_settings import (
    Count,
    PositiveBytes,
    PositiveCount,
    PositiveSeconds,
    Seconds,
    checked_settings,
)


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class SessionConfig:
    """Settings of a manager's sessions. A live session switches to a later manager's settings at its next run."""

    on_cancel: Literal["keep", "discard"] = "keep"
    """What remains of a cancelled run. "keep": its prompts and the output so far, marked as cancelled. "discard":
    nothing; prompts that were stored by `append` move to the next turn."""

    on_lost: Literal["interrupt", "resume"] = "interrupt"
    """What happens to a run whose process was lost: it ends as interrupted, or resumes after its last record.
    An unfinished model call is repeated; a tool call that had begun is not, unless the tool is `repeatable`."""

    max_resumes: Count = 3
    """The maximum number of times that a run is resumed. After that it ends as interrupted, since the run itself may be
    what crashes its process."""

    run_budget: Budget | None = None
    """The limits of one run."""

    session_budget: Budget | None = None
    """The limits of all runs of a session together."""

    over_budget: Literal["fail", "ask"] = "fail"
    """What happens to a run that has used up a budget: it fails, or waits until a caller approves or rejects it.
    An approval lets this run use the budget once more."""

    prices: Mapping[str, Price | Sequence[Price]] = field(default_factory=dict)
    """The prices of models, by name; required if a budget limits the cost. If prices change, give a model all of them,
    with the days from which they hold: a run is priced by its start."""

    title: Literal["auto"] | None = None
    """"auto": the engine gives a session that has no title one, from its first turn, once that has ended: by a model
    call of its own, which delays nothing and counts as the session's usage. None: callers give titles."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What sessions recall from long-term memory and save in it."""

    max_context_tokens: PositiveCount | None = None
    """The maximum number of tokens of a request and its answer together; if omitted, the model's own limit, if
    that is known."""

    reserve_output_tokens: Count | None = None
    """How many of these tokens are reserved for the answer. If omitted, the engine's maximum answer length, else an
    eighth of the window, at most 4,096."""

    token_counter: TokenCounter | None = None
    """Counts the tokens of blocks; if omitted, by the vocabulary of the engine's model (see `counter_for`)."""

    compaction_attempts: PositiveCount = 3
    """How often a summary by a model, or a save in a memory, is tried before a compaction plan is given up."""

    compaction_timeout_s: PositiveSeconds = 120.0
    """The time limit of one such attempt, in seconds."""

    cancel_grace_s: Seconds = 2.0
    """How long a cancelled engine may take to stop before it is abandoned, in seconds."""

    max_queued: Count = 16
    """The maximum number of runs that wait behind the active one."""

    max_prompt_bytes: PositiveCount = 4_000_000
    """The largest prompt, as UTF-8 JSON."""

    max_inline_bytes: Count = 65_536
    """Pictures and files of prompts, results and imports with more bytes than this become files of the session by
    themselves, where there is a place for files: see `Session.files`. Smaller ones stay in the store's rows."""

    max_file_bytes: PositiveBytes = 67_108_864
    """The largest file. A request to a model has it in memory."""

    max_session_files: PositiveCount = 1_000
    """The maximum number of files of a session, and of those of a user that belong to no session."""

    max_session_file_bytes: PositiveBytes = 1_073_741_824
    """The maximum number of bytes of these files together."""

    max_user_file_bytes: PositiveBytes = 10_737_418_240
    """The maximum number of bytes of all files of a user together, each content once."""

    max_metadata_bytes: PositiveCount = 65_536
    """The largest metadata of a session, as UTF-8 JSON."""

    storage_limit: PositiveCount | None = None
    """How many blocks (prompts, answers, calls and results) a session keeps stored. Above it, the oldest turns go for
    good once no run is active or queued, with their events, what search finds of them, and the summaries that they are
    part of. The newest turn stays, and so do turns that a memory has yet to get. Long-term memories keep what they
    have, the ledger its sums, and the session its files. Of each turn that went, half a kilobyte stays: the record of
    its run, so that a repeated request is known, one event, and an empty place for each block."""

    max_labels: Count = 64
    """The maximum number of labels of a run, and of an event that a caller adds."""

    max_label_chars: PositiveCount = 256
    """The maximum number of characters of a label's name, and of its value."""

    idle_s: PositiveSeconds = 300.0
    """How long a session's process stays after its last call or run, in seconds."""

    sweep_every_s: PositiveSeconds | None = 3_600.0
    """How often expired sessions are deleted by themselves (see `SessionManager.sweep`), in seconds, while a manager is
    open that has opened a session with a `ttl_s`. Of several such managers of a store, one does it at a time; the
    shortest interval counts. If None, this manager deletes them in `sweep` only."""

    sweep_archive: str | None = None
    """A folder to which each session is exported before it is so deleted, which all these managers reach; see
    `SessionManager.sweep`."""

    delta_interval_s: Seconds = 0.005
    """How long pieces of the answer are gathered before they are published as one event, in seconds."""

    telemetry: Telemetry | None = None
    """Traces and metrics of the sessions; set by `SessionManager(telemetry=...)`."""

    store_retry_s: Seconds = 30.0
    """How long storing a finished answer is retried before callers that wait for the run get the StoreError, in
    seconds."""

    @property
    def file_limits(self) -> FileLimits:
        """How much may be stored in files."""
        return FileLimits(
            file_bytes=self.max_file_bytes,
            session_bytes=self.max_session_file_bytes,
            session_files=self.max_session_files,
            user_bytes=self.max_user_file_bytes,
        )

    def __post_init__(self) -> None:
        window, reserve = self.max_context_tokens, self.reserve_output_tokens
        if reserve is not None and window is not None and reserve >= window:
            raise ConfigError("reserve_output_tokens", reserve, f"must be less than max_context_tokens, {window}")

    def check_labels(self, labels: Mapping[str, str]) -> None:
        """Raise InvalidInputError for more or longer labels than these settings allow."""
        if len(labels) > self.max_labels:
            raise InvalidInputError("labels", shown(labels), f"must be at most {self.max_labels}, not {len(labels)}")
        for text in (*labels, *labels.values()):
            if len(text) > self.max_label_chars:
                reason = f"must be at most {self.max_label_chars} characters long, not {len(text)}"
                raise InvalidInputError("labels", shown(text), reason)
