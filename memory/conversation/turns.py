"""Turns: immutable snapshots of a conversation, as spans over append-only block logs.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, TypeVar

from turnwise.errors import OutputInvalidError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled, System, answer_text
from turnwise.memory.conversation.branches import Branches, Version, is_shown, versions_of
from turnwise.memory.conversation.output_type import read_answer
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Span, Spans, cut, join, overlap, places, size
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.message_formats import MessageFormat, Messages, to_messages
from turnwise.memory.conversation.views.notebook_display import turn_html
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import Record

Made = TypeVar("Made")

TurnStatus = Literal["pending", "queued", "running", "completed", "cancelled", "failed", "interrupted"]
"""`pending`: prompts were appended and no run has them yet. The other values are the states of the turn's run."""

OPEN_STATUSES = ("pending", "queued", "running")
"""The statuses of turns that have not ended. The status of a turn is `running` while its run waits for approval."""


@dataclass(frozen=True, kw_only=True)
class TurnRecord(Record):
    """A turn as it is stored: where its blocks are, not the blocks.

    The snapshot is `input + output`; the blocks that the turn added to its parent are `prompt + output`. While the turn
    is pending or queued, the turn it will continue may still change, and `input` is empty.
    """

    index: int
    """From 0; grows with every turn of the session. A discarded turn leaves a gap."""
    parent: str | None = None
    turn_id: str | None = None
    """The id that the caller of `run` gave the turn; unique in the session."""
    run_id: str | None = None
    status: TurnStatus = "pending"
    prompt: Spans = ()
    appended: Spans = ()
    """The part of `prompt` that was appended before the run. It stays if the run is discarded."""
    input: Spans = ()
    output: Spans = ()
    carried: Spans = field(default=(), compare=False)
    """The compacted form of `input` that the next turn continues from, made by an overflow strategy during or after
    this turn; empty if `input` was not compacted. Not part of the snapshot, so two records that differ only here are
    equal."""
    usage: Usage | None = None
    stop_reason: str | None = None
    created_at: float = 0.0
    metadata: FrozenDict = field(default_factory=FrozenDict)
    forgotten: bool = False
    """Whether the turn was forgotten on request: no later turn or long-term memory gets its blocks. The snapshot
    stays."""
    removed: Spans = ()
    """The blocks that were removed from what the next turn continues: of those that this turn added, and, while this
    was the newest turn, also of earlier ones. The snapshot stays."""
    marks: FrozenDict = field(default_factory=FrozenDict)
    """The marks of its messages, by number and name: see `marks`. A turn that has not ended has none."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in OPEN_STATUSES

    @property
    def spans(self) -> Spans:
        """The snapshot: the model's input, then its output."""
        return join(self.input or self.prompt, self.output)

    @property
    def carries_all(self) -> bool:
        """Whether `carried` is all that the next turn continues, since blocks were removed or forgotten."""
        return self.forgotten or bool(self.removed)

    @property
    def removed_numbers(self) -> tuple[int, ...]:
        """The numbers of its removed blocks, among the blocks that it added, `prompt + output`."""
        if not self.removed:
            return ()
        own_places = places(join(self.prompt, self.output))
        removed_places = frozenset(places(overlap(own_places, self.removed)))
        return tuple(number for number, place in enumerate(own_places) if place in removed_places)

    @property
    def base(self) -> Spans:
        """The spans that the next turn continues from: the snapshot, or its compacted form."""
        if self.carries_all:
            return join(self.carried)
        return join(self.carried or self.input or self.prompt, self.output)


def turn_id(session_id: str, index: int) -> str:
    """Return the name of a turn among all turns of its user."""
    return f"{session_id}#{index}"


_ANSWERED = "answered"
"""The name of a log that is never stored. It holds the output of a turn that somebody else answers."""

_RECALLED = "recalled"
"""The name of a log that is never stored. It holds the recalled blocks of a turn, for requests only."""


class Turn:
    """A complete, deeply immutable snapshot of a conversation: all that the model saw and what it answered.

    Making one is O(1). The first read of `blocks` is O(blocks) and needs no network. A pickle includes the blocks.
    """

    __slots__ = ("_branches", "_cache", "_model", "_parsed", "_prompt_blocks", "_record", "_session_id", "_stores")

    def __init__(
        self,
        session_id: str,
        record: TurnRecord,
        cache: BlockCache,
        prompt_blocks: tuple[AnyBlock, ...] | None = None,
        branches: Branches = (),
    ) -> None:
        self._session_id = session_id
        self._record = record
        self._cache = cache
        self._prompt_blocks = prompt_blocks
        self._branches = branches
        self._model: Any = None
        self._parsed: Any = None
        self._stores: bool | None = False

    @property
    def record(self) -> TurnRecord:
        """The stored record; for stores and the wire."""
        return self._record

    @property
    def cache(self) -> BlockCache:
        """The cache that holds its blocks; for the wire."""
        return self._cache

    @property
    def id(self) -> str:
        """Names this turn among all turns of the user: `session_id#index`."""
        return turn_id(self._session_id, self._record.index)

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self._session_id

    @property
    def index(self) -> int:
        """Its place in the session, from 0; a discarded turn leaves a gap."""
        return self._record.index

    @property
    def turn_id(self) -> str | None:
        """The id that the caller gave it, by `run(turn_id=...)`; `Session.turn` finds the turn by it."""
        return self._record.turn_id

    @property
    def run_id(self) -> str | None:
        """The run that answered it; None while it is pending, and if it was imported."""
        return self._record.run_id

    @property
    def parent(self) -> str | None:
        """The id of the turn it continues; in a fork this may be a turn of another session.

        Of a turn that waits, pending or queued, the turn that it would continue if nothing else happened.
        """
        return self._record.parent

    @property
    def branches(self) -> Branches:
        """The session's branches when the turn was read; for the wire."""
        return self._branches

    @property
    def versions(self) -> tuple[Version, ...]:
        """The turns that the session has had in this place, this one included, by age; see `Session.rerun`."""
        return versions_of(self._branches, self._record.index)

    @property
    def version(self) -> int:
        """The number of this one among its `versions`, from 1."""
        return next(version.number for version in self.versions if version.turn_index == self._record.index)

    @property
    def is_shown(self) -> bool:
        """Whether the conversation had this turn when it was read, and no other version in place of it."""
        return is_shown(self._branches, self._record.index)

    @property
    def status(self) -> TurnStatus:
        """The turn's status: see `TurnStatus`."""
        return self._record.status

    @property
    def blocks(self) -> tuple[AnyBlock, ...]:
        """The whole snapshot, oldest first."""
        return self._cache.read(self._record.spans)

    @property
    def new_blocks(self) -> tuple[AnyBlock, ...]:
        """What this turn added: its prompts, then the answer."""
        return self._cache.read(join(self._record.prompt, self._record.output))

    @property
    def removed(self) -> tuple[int, ...]:
        """The numbers of those of its `new_blocks` that were removed: see `Session.remove`."""
        return self._record.removed_numbers

    @property
    def asked(self) -> tuple[AnyBlock, ...]:
        """Its prompts as the caller gave them, also if `showing` replaced the blocks."""
        return self._cache.read(join(self._record.prompt)) if self._prompt_blocks is None else self._prompt_blocks

    @property
    def output(self) -> tuple[AnyBlock, ...]:
        """What its run has added, in order."""
        return self._cache.read(self._record.output)

    @property
    def text(self) -> str:
        """The answer: the text after the last tool result, joined; empty while there is none."""
        return answer_text(self.output)

    @property
    def parsed(self) -> Any:
        """The answer as an instance of the class that `run(output=...)` was given; None if it was given none.

        The class is known only to the handle that `run` returned, in the process that called it. A turn read in another
        way has None here; pass the class to `parse` instead. Later reads return the instance that the first read made.

        Raises:
            OutputInvalidError: the class accepts less than its JSON schema, which the run's answer was checked against.
        """
        if self._parsed is None and self._model is not None:
            self._parsed = self.parse(self._model)
        return self._parsed

    def parse(self, model: type[Made]) -> Made:
        """Return the answer as an instance of a pydantic model, or of what else pydantic's `TypeAdapter` takes.

        Raises:
            OutputInvalidError: the answer does not fit; the message quotes the errors.
        """
        try:
            answer: Made = read_answer(model, self.text)
        except ValueError as error:
            raise OutputInvalidError(self._session_id, self.run_id, str(error), self) from error
        return answer

    def to(self, format: MessageFormat) -> Messages:
        """Return the whole snapshot as messages of another library: see `to_messages`.

        Raises:
            InvalidInputError: there is no such format.
            UnsupportedBlockError: a picture or a file in a form that the format does not have.
            ConfigError: the format needs a package that is not installed.
        """
        return to_messages(self.blocks, format)

    def typed(self, model: Any) -> "Turn":
        """Return this turn with `model` as the class that `parsed` makes."""
        turn = Turn(self._session_id, self._record, self._cache, self._prompt_blocks, self._branches)
        turn._model = model
        return turn

    @property
    def usage(self) -> Usage | None:
        """The usage that the provider counted; None if it did not report any."""
        return self._record.usage

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped, in the provider's words: `stop`, `length`, ..."""
        return self._record.stop_reason

    @property
    def created_at(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._record.created_at

    @property
    def metadata(self) -> FrozenDict:
        """What engine, hooks and middleware noted about the turn: see `StepContext.annotate`.

        An imported turn that memories are to get has `turnwise.memory`, too.
        """
        return self._record.metadata

    def as_started(self) -> "Turn":
        """Return a copy of this turn without its answer, as it was when its run started."""
        status: TurnStatus = "running" if self._record.input else self._record.status
        record = replace(
            self._record, status=status, output=(), usage=None, stop_reason=None, metadata=FrozenDict(), carried=()
        )
        return Turn(self._session_id, record, self._cache, self._prompt_blocks, self._branches)

    def answered(self, output: Sequence[Block]) -> "Turn":
        """Return a copy of this turn whose run has added these blocks, for a request to a model. It is never stored."""
        record = replace(self._record, output=(Span(_ANSWERED, 0, len(output)),) if output else ())
        cache = self._cache.over(_ANSWERED, list(output))
        return Turn(self._session_id, record, cache, self._prompt_blocks, self._branches)

    def beside(self, branches: Branches) -> "Turn":
        """Return this turn as one of a session that has these branches."""
        return Turn(self._session_id, self._record, self._cache, self._prompt_blocks, branches) if branches else self

    def recalling(self, block: Block | None, *, front: Block | None = None) -> "Turn":
        """Return a copy of this turn with a block before its prompt, for requests to a model. It is never stored.

        Args:
            front: another block, which comes before the conversation, behind system prompts with which that begins.
        """
        record, prompt_spans = self._record, join(self._record.prompt)
        before, prompt = cut(record.input, size(record.input) - size(prompt_spans))
        if prompt != prompt_spans:  # the prompt is not one piece at the end of the input
            before, prompt = (), record.input
        systems = list(takewhile(lambda place: isinstance(self._cache.read([place])[0], System), places(before)))
        first, late = ([Span(_RECALLED, index, index + 1)] * bool(each) for index, each in enumerate((front, block)))
        shown = join(systems, first, cut(before, len(systems))[1], late, prompt)
        blocks = [each or Recalled(text="") for each in (front, block)]
        return Turn(self._session_id, replace(record, input=shown), self._cache.over(_RECALLED, blocks))

    @property
    def naming_files(self) -> dict[Span, AnyBlock]:
        """The blocks of the snapshot that name files, by their places."""
        return self._cache.naming_files(self._record.spans)

    def replacing(self, blocks: Mapping[Span, Block]) -> "Turn":
        """Return a copy of this turn with other blocks at some places, for a request to a model. It is never stored."""
        return Turn(self._session_id, self._record, self._cache.replacing(blocks), self._prompt_blocks, self._branches)

    def showing(self, blocks: Sequence[Block], *, store: bool = False) -> "Turn":
        """Return a copy of this turn with other blocks, for a request to a model.

        Args:
            store: whether the conversation goes on with these blocks, once a middleware hands the turn on to its
                runner: see `Middleware`. Otherwise they are for this request only.
        """
        cache = BlockCache()
        cache.add("", 0, list(blocks))
        record = replace(self._record, prompt=(), input=(Span("", 0, len(blocks)),), output=(), carried=())
        turn = Turn(self._session_id, record, cache, self.asked)
        turn._stores = self._stores if self._stores is None else store or self._stores
        return turn

    def reduced(self, blocks: Sequence[Block]) -> "Turn":
        """Return a copy of this turn with other blocks, which is never stored: see `showing`."""
        turn: Turn = self.showing(blocks)
        turn._stores = None
        return turn

    @property
    def is_to_store(self) -> bool:
        """Whether the conversation goes on with its blocks: see `showing`."""
        return bool(self._stores)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        return self.id == other.id and self._record == other._record and self.blocks == other.blocks

    def __hash__(self) -> int:
        return hash((self.id, self.status))

    def __repr__(self) -> str:
        return f"<Turn {self.id} {self.status} text={self.text[:40]!r}>"

    _repr_html_ = turn_html

    def __reduce__(self) -> tuple[object, ...]:
        spans = join(self._record.prompt, self._record.input, self._record.output)
        blocks = self._cache.read_encoded(spans)
        return functools.partial(
            turn_of,
            session_id=self._session_id,
            record=self._record,
            spans=spans,
            encoded=blocks,
            branches=self._branches,
        ), ()


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or stands when a wait for it is over. `turn` is None if the run's turn was dropped."""

    run: RunRecord
    turn: Turn | None


def turn_of(
    session_id: str, record: TurnRecord, spans: Spans, encoded: Sequence[str], branches: Branches = ()
) -> "Turn":
    """Return a turn from the encoded blocks of `spans`, in order."""
    cache = BlockCache()
    cache.add_spans(spans, encoded)
    return Turn(session_id, record, cache, branches=branches)
