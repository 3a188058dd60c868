"""Turns: immutable snapshots of a conversation, as spans over append-only block logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from turnwise.errors import OutputInvalidError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Block, answer_text
from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.output_type import read_answer
from turnwise.memory.conversation.spans import Span, Spans, cut, join, size
from turnwise.memory.conversation.usage import Usage

Made = TypeVar("Made")

TurnStatus = Literal["pending", "queued", "running", "completed", "cancelled", "failed", "interrupted"]
"""`pending`: prompts were appended and no run has taken them up; the others are those of the turn's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn as it is stored: where its blocks are, not the blocks.

    The snapshot is `input + output`; what the turn added to its parent is `prompt + output`. While the turn is
    pending or queued its base is not settled and `input` is empty.
    """

    index: int
    """From 0; grows with every turn of the session. A discarded turn leaves a gap."""
    parent: str | None = None
    run_id: str | None = None
    status: TurnStatus = "pending"
    prompt: Spans = ()
    appended: Spans = ()
    """The part of `prompt` that was appended on its own: it outlives the run, should that be discarded."""
    input: Spans = ()
    output: Spans = ()
    carried: Spans = field(default=(), compare=False)
    """What the next turn is given in place of `input`, before the output: what an overflow strategy made of it while
    or after this turn ran; empty if that is `input`. Not part of the snapshot, so two records that differ only here
    are equal."""
    usage: Usage | None = None
    stop_reason: str | None = None
    created_at: float = 0.0
    metadata: FrozenDict = field(default_factory=FrozenDict)
    forgotten: bool = False
    """Whether no later turn continues what it added, and no memory is given it: somebody asked for that. The snapshot
    stays."""

    @property
    def spans(self) -> Spans:
        """The snapshot: what the model was given, then what it answered."""
        return join(self.input or self.prompt, self.output)

    @property
    def base(self) -> Spans:
        """What the next turn continues from: the snapshot, or what an overflow strategy made of it."""
        if self.forgotten:
            return join(self.carried)
        return join(self.carried or self.input or self.prompt, self.output)


_RECALLED = "recalled"
"""The log that there is not, which holds what a turn recalls."""


class Turn:
    """A complete, deeply immutable snapshot of a conversation: all that the model saw and what it answered.

    Making one is O(1); `blocks` is O(their number) at its first reading and needs no network. Pickles with its blocks.
    """

    __slots__ = ("_asked", "_cache", "_model", "_parsed", "_record", "_session_id")

    def __init__(
        self, session_id: str, record: TurnRecord, cache: BlockCache, asked: tuple[AnyBlock, ...] | None = None
    ) -> None:
        self._session_id = session_id
        self._record = record
        self._cache = cache
        self._asked = asked
        self._model: Any = None
        self._parsed: Any = None

    @property
    def record(self) -> TurnRecord:
        """Where its blocks are; for stores and the wire."""
        return self._record

    @property
    def cache(self) -> BlockCache:
        """Where its blocks are held; for the wire."""
        return self._cache

    @property
    def id(self) -> str:
        """Names this turn among all sessions: `session_id#index`."""
        return f"{self._session_id}#{self._record.index}"

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self._session_id

    @property
    def index(self) -> int:
        """Its place in the session, from 0; a discarded turn leaves a gap."""
        return self._record.index

    @property
    def run_id(self) -> str | None:
        """The run that answered it; None while it is pending."""
        return self._record.run_id

    @property
    def parent(self) -> str | None:
        """The id of the turn it continues; in a fork this may be a turn of another session."""
        return self._record.parent

    @property
    def status(self) -> TurnStatus:
        """How far it is."""
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
    def asked(self) -> tuple[AnyBlock, ...]:
        """Its prompts as they were given, whatever it is `showing`."""
        return self._cache.read(join(self._record.prompt)) if self._asked is None else self._asked

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

        The class stays in the process that called `run`, with the handle that it returned: of a turn that came another
        way this is None, and `parse` takes the class again. Made at the first reading, then the same instance.

        Raises:
            OutputInvalidError: the class takes less than its JSON schema says, by which the run's answer was checked.
        """
        if self._parsed is None and self._model is not None:
            self._parsed = self.parse(self._model)
        return self._parsed

    def parse(self, model: type[Made]) -> Made:
        """Return the answer as an instance of a pydantic model, or of what else pydantic's `TypeAdapter` takes.

        Raises:
            OutputInvalidError: it is none; quotes what is wrong.
        """
        try:
            made: Made = read_answer(model, self.text)
        except ValueError as error:
            raise OutputInvalidError(self._session_id, self.run_id, str(error), self) from error
        return made

    def typed(self, model: Any) -> Turn:
        """Return this turn with the class of its answer, for `parsed`."""
        turn = Turn(self._session_id, self._record, self._cache, self._asked)
        turn._model = model
        return turn

    @property
    def usage(self) -> Usage | None:
        """What the provider counted, if it said."""
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
        """What the engine noted about the turn."""
        return self._record.metadata

    def recalling(self, block: Block) -> Turn:
        """Return this turn with a block in front of its own prompt, for requests to a model. It is never stored."""
        record, own = self._record, join(self._record.prompt)
        before, prompt = cut(record.input, size(record.input) - size(own))
        if prompt != own:  # a part of it stands elsewhere
            before, prompt = (), record.input
        shown = join(before, [Span(_RECALLED, 0, 1)], prompt)
        return Turn(self._session_id, replace(record, input=shown), self._cache.over(_RECALLED, [block]))

    def showing(self, blocks: Sequence[Block]) -> Turn:
        """Return this turn with other blocks, for a request to a model. It is never stored."""
        cache = BlockCache()
        cache.add("", 0, list(blocks))
        record = replace(self._record, prompt=(), input=(Span("", 0, len(blocks)),), output=(), carried=())
        return Turn(self._session_id, record, cache, self.asked)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        return self.id == other.id and self._record == other._record and self.blocks == other.blocks

    def __hash__(self) -> int:
        return hash((self.id, self.status))

    def __repr__(self) -> str:
        return f"<Turn {self.id} {self.status} text={self.text[:40]!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        spans = join(self._record.prompt, self._record.input, self._record.output)
        return turn_of, (self._session_id, self._record, tuple(spans), self._cache.read_encoded(spans))


def turn_of(session_id: str, record: TurnRecord, spans: Spans, encoded: Sequence[str]) -> Turn:
    """Return a turn whose blocks, those of `spans` in order, are given encoded."""
    cache = BlockCache()
    cache.add_spans(spans, encoded)
    return Turn(session_id, record, cache)
