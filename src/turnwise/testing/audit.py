"""The audit: checks the invariants that a store must satisfy after any faults and crashes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from typing import Any

from turnwise.actors.session.state.cached_blocks import CachedBlocks
from turnwise.errors import CorruptRecordError, InvalidRequestError, SessionNotFoundError, TranscriptError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.branches import Branches, are_valid, is_shown, ranges_below
from turnwise.memory.conversation.events import (
    AnyEvent,
    BlocksRemoved,
    CustomEvent,
    Event,
    RunEnded,
    RunStarted,
    TurnReplaced,
    without_blocks,
)
from turnwise.memory.conversation.ledger import LedgerQuery, LedgerRow
from turnwise.memory.conversation.marks import count_marks, numbers_of
from turnwise.memory.conversation.runs import REPLACED, RunRecord
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.spans import Seen, Spans, begins_with, cut, from_places, overlap, places, size, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.chat_messages import chat_messages_of
from turnwise.memory.conversation.views.rebuild import Rebuilt
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.providers.arrangement import arranged
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import INDEX, SEQ, TURN_INDEX, deliveries_of, pages, read_blocks
from turnwise.memory.stores.search.query import Query, Term
from turnwise.memory.stores.search.records import Searchable, TextFilter, turn_texts
from turnwise.memory.stores.search.words import plain_words
from turnwise.testing.acknowledged import Acknowledged, Digest, Note


@dataclass(frozen=True)
class Violation:
    """A violated invariant."""

    session_id: str
    law: str
    problem: str

    def __str__(self) -> str:
        return f"session {self.session_id!r}: {self.law}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit: how much was checked, and the violations."""

    counts: Counter[str]
    """The numbers of checked sessions, turns, runs, events and requests, and of acknowledged prompts, runs, ends and
    followers."""
    violations: tuple[Violation, ...]

    def check(self) -> None:
        """Raise AssertionError, which names each violation, if there are any."""
        if self.violations:
            raise AssertionError("\n".join(["the audit found:", *map(str, self.violations)]))


async def audit(
    store: SessionStore,
    session_ids: Iterable[str],
    acknowledged: Acknowledged | None = None,
    history: HistoryStore | None = None,
    *,
    user_id: str = DEFAULT_USER,
    all_ended: bool = True,
    discards: bool = False,
    compacts: bool = False,
    deaths: Mapping[str, Sequence[float]] | None = None,
    imported: bool = False,
) -> Audit:
    """Check stored sessions, and that the store has everything that callers had acknowledged. Only reads.

    The laws: every record can be read; event numbers only grow; one run at a time; each run has one terminal event, its
    last, and an outcome; the run that has the prompts of another one, or came in its place, exists; each turn continues
    the one before it, and with one more prompt would be accepted by every provider; the events tell each turn; no run
    is given blocks that were removed before it; each acknowledged prompt is stored once, in the order of
    acknowledgement, unless its run was replaced while it waited; a prompt that was dropped is not stored; no run with a
    debounced prompt begins before its seconds of silence have passed; each acknowledged run is stored with the
    acknowledged state and turn, or is merged into one that is; a follower of a run saw each of its events once; no run
    has ended as lost, or was resumed, unless its process died while it was active; no delivery whose run is stored
    waits to be carried out; a text that a session said is stored once; an agent has one run at most; the ledger has
    what the session has spent, exactly, and each of its runs that has ended; each mark is of a message that is stored,
    and the session counts them; a store that can search finds the messages of the stored turns by their words, and no
    others.

    Args:
        user_id: whose sessions these are.
        history: the event store, if events are stored apart from the conversations.
        all_ended: whether all runs must have ended.
        discards: whether prompts of cancelled runs may be missing: with `on_cancel="discard"` or `rollback`.
        compacts: whether sessions have an overflow strategy; then each turn continues the newest part of the last one.
        deaths: when processes of a session died or lost it, on the session's clock. The last law is checked for the
            sessions that are named here.
        imported: whether sessions have come from an archive, which brings nothing into the ledger.
    """
    notes: dict[str, list[Note]] = {}
    for note in acknowledged or ():
        notes.setdefault(note.session_id, []).append(note)
    counts: Counter[str] = Counter()
    violations: list[Violation] = []
    for session_id in dict.fromkeys(session_ids):
        try:
            session = await read_session(store, SessionKey(session_id, user_id), history)
        except SessionNotFoundError:
            violations.append(Violation(session_id, "acknowledged session", "it is not in the store"))
            continue
        except CorruptRecordError as error:
            violations.append(Violation(session_id, "can be read", str(error)))
            continue
        session_notes = notes.get(session_id, [])
        steps = list(_steps(session.turns))
        findings = [
            *_events_hold(session, all_ended=all_ended),
            *_successors_hold(session.runs),
            *_turns_hold(steps, compacts=compacts, shortened={run.turn_index for run in session.runs if run.overflow}),
            *_removed_stay_away(session),
            *_versions_hold(session),
            *_events_tell(session.events, steps),
            *_notes_hold(session, steps, session_notes, discards=discards),
            *_said_once(session.runs, steps, session_notes),
            *_silence_holds(session, session_notes),
            *_losses_hold(session.runs, (deaths or {}).get(session_id)),
            *_deliveries_hold(session),
            *_agents_hold(session),
            *_marks_hold(session),
            *await _search_holds(store, SessionKey(session_id, user_id), session),
            *([] if imported else _ledger_holds(session)),
        ]
        violations += [Violation(session_id, law, problem) for law, problem in findings]
        counts += Counter(sessions=1, turns=len(session.turns), runs=len(session.runs), events=len(session.events))
        counts += Counter(requests=sum(turn.status not in WAITING for turn in session.turns))
        counts += Counter(f"acknowledged {note.kind}" for note in session_notes)
    return Audit(counts=counts, violations=tuple(violations))


@dataclass(frozen=True)
class StoredSession:
    """All records of a session in a store."""

    log: str
    turns: Sequence[Turn]
    runs: Sequence[RunRecord]
    events: Sequence[Event]
    doubles: Sequence[Event]
    """Events with the number of another event."""
    deliveries: Sequence[Delivery] = ()
    called_by: str | None = None
    """The session whose run has called it as an agent."""
    usage: Usage = field(default_factory=Usage)
    spent: LedgerRow = field(default_factory=LedgerRow)
    """What the ledger has of it."""
    branches: Branches = ()
    next_index: int = 0
    marks: int = 0
    """How many marks it has, by its row."""


async def read_session(store: SessionStore, key: SessionKey, history: HistoryStore | None = None) -> StoredSession:
    """Return all records of a session, read from the store without caches.

    Raises:
        SessionNotFoundError: no session has this id.
        CorruptRecordError: a record cannot be read.
    """
    record = await store.get(key)
    log = record.log
    runs = [run async for page in pages(partial(store.runs, key), -1, TURN_INDEX) for run in page]
    events, doubles = await _read_events(store, key, history)
    whole = await CachedBlocks(key.session_id, store).read_events(events, log)
    deliveries = [delivery async for delivery in deliveries_of(store, key)]
    of_sessions = await store.ledger(LedgerQuery(user_id=key.user_id, by=("session",)))
    spent = [row for row in of_sessions if row.session_id == key.session_id]
    return StoredSession(
        log,
        await read_turns(store, key),
        runs,
        whole,
        doubles,
        deliveries,
        record.called_by,
        record.usage,
        spent[0] if spent else LedgerRow(),
        record.branches,
        record.next_index,
        record.marks,
    )


async def read_turns(store: SessionStore, key: SessionKey) -> list[Turn]:
    """Return all turns of a session, shown or not, read from the store without caches."""
    branches = (await store.get(key)).branches
    records = [turn async for page in pages(partial(store.turns, key), -1, INDEX) for turn in page]
    spans = union(*(part for turn in records for part in (turn.prompt, turn.spans)))
    cache = BlockCache()
    cache.add_spans(spans, await read_blocks(store, spans))
    return [Turn(key.session_id, record, cache, branches=branches) for record in records]


async def read_events(store: SessionStore, key: SessionKey, history: Any = None) -> list[AnyEvent]:
    """Return all events of a session from the store and the event store, in the order of their numbers."""
    return (await _read_events(store, key, history))[0]


async def _read_events(store: SessionStore, key: SessionKey, history: Any) -> tuple[list[AnyEvent], list[AnyEvent]]:
    events_by_seq: dict[int, AnyEvent] = {}
    doubles: list[AnyEvent] = []
    for source in (store, history) if history else (store,):
        async for events in pages(partial(source.events, key), 0, SEQ):
            page = [without_blocks(event) for event in events]  # only event stores have blocks
            doubles += [event for event in page if events_by_seq.setdefault(event.seq, event) != event]
    return [events_by_seq[seq] for seq in sorted(events_by_seq)], doubles


WAITING = ("pending", "queued")
"""The statuses of turns that no model was given."""

Finding = tuple[str, str]
"""A law, and how it is violated."""


def _events_hold(session: StoredSession, *, all_ended: bool) -> Iterator[Finding]:
    for event in session.doubles:
        yield "numbers only grow", f"two events have the number {event.seq}"
    active = None
    ended: set[str] = set()
    for event in session.events:
        if event.run_id in ended and not isinstance(event, CustomEvent):
            yield "one terminal event, the last", f"{event!r} comes after the end of its run"
        if isinstance(event, RunStarted):
            if active is not None:
                yield "one run at a time", f"{event!r} while run {active!r} is active"
            active = event.run_id
        if isinstance(event, RunEnded) and event.run_id:
            ended.add(event.run_id)
            active = None if active == event.run_id else active
    for run in session.runs:
        if run.is_open == (run.run_id in ended):
            yield "one terminal event, the last", f"run {run.run_id!r} is {run.state}, but its events say otherwise"
        if all_ended and run.is_open:
            yield "no run without outcome", f"run {run.run_id!r} is {run.state}"


def _deliveries_hold(session: StoredSession) -> Iterator[Finding]:
    run_ids = {run.run_id for run in session.runs}
    for delivery in session.deliveries:
        if delivery.to_session is None and delivery.run_id in run_ids:
            yield "carried out once", f"delivery {delivery.key!r} is still there, and its run {delivery.run_id!r}, too"


def _agents_hold(session: StoredSession) -> Iterator[Finding]:
    if session.called_by is not None and len(session.runs) > 1:
        yield "an agent is called once", f"it has the runs {[run.run_id for run in session.runs]}"


def _marks_hold(session: StoredSession) -> Iterator[Finding]:
    for turn in session.turns:
        messages = chat_messages_of(turn.session_id, turn.record, None, turn.asked, turn.output)
        if strays := set(numbers_of(turn.record)) - {message.number for message in messages}:
            yield "a mark has its message", f"turn {turn.index} has marks of the messages {sorted(strays)}"
    if session.marks != (count := sum(count_marks(turn.record) for turn in session.turns)):
        yield "marks are counted", f"the session counts {session.marks} of {count}"


SEARCHED_WORDS = 8
"""With how many words of a session's messages the audit searches."""


async def _search_holds(store: SessionStore, key: SessionKey, session: StoredSession) -> list[Finding]:
    """Search for words of the messages, evenly spread: each time, all messages with the word are found, and no more."""
    if not isinstance(store, Searchable):
        return []
    runs = {run.turn_index: run for run in session.runs}
    words_of = {
        (text.turn_index, text.number): set(plain_words(text.text))
        for turn in session.turns
        for text in turn_texts(key.session_id, turn.record, runs.get(turn.index), turn.asked, turn.output)
    }
    words = sorted(set[str]().union(*words_of.values()))
    findings: list[Finding] = []
    for word in words[:: max(1, len(words) // SEARCHED_WORDS)]:
        texts = TextFilter(query=Query((Term((word,)),)), user_id=key.user_id, session_id=key.session_id)
        hits = await store.search_texts(texts, limit=len(words_of) + 1)
        hit_places = sorted((hit.turn_index, hit.number) for hit in hits)
        stored_places = sorted(place for place, own_words in words_of.items() if word in own_words)
        if hit_places != stored_places:
            problem = f"{word!r} is in messages {stored_places}, and found in {hit_places}"
            findings.append(("search finds what is stored", problem))
    return findings


def _ledger_holds(session: StoredSession) -> Iterator[Finding]:
    """The ledger has what the session's row has, and each run that has ended, also those that were removed since."""
    spent, usage = session.spent, session.usage
    for name, number in vars(usage).items():
        if round(number - getattr(spent.usage, name), 6):
            yield (
                "the ledger has what was spent",
                f"{name} is {getattr(spent.usage, name)} there, {number} in the session",
            )
    if spent.runs < (ended := sum(run.has_run for run in session.runs)):
        yield "the ledger has what was spent", f"it counts {spent.runs} of {ended} runs"


def _successors_hold(runs: Iterable[RunRecord]) -> Iterator[Finding]:
    run_ids = {run.run_id for run in runs}
    for run in runs:
        if run.successor and run.successor not in run_ids:
            yield "a successor exists", f"run {run.run_id!r} is {run.code} by run {run.successor!r}"


def _leading(run: RunRecord | None, runs: Mapping[str, RunRecord]) -> RunRecord | None:
    """Return the run that has the prompts of this one: itself, unless it was merged."""
    while run and (leading := runs.get(run.leads_to or "")):
        run = leading
    return run


@dataclass(frozen=True)
class _Step:
    """A turn beside the one before it in the conversation, as it was shown when the turn began."""

    turn: Turn
    before: Turn | None
    continues: bool
    """Whether it begins with the places of the turn before. A place holds one block, so those need no comparison."""
    new: Spans
    """Its places after those of the turn before; all if it does not continue these."""

    @property
    def added(self) -> tuple[Block, ...]:
        """The blocks at its new places."""
        return self.turn.cache.read(self.new)


def _steps(turns: Iterable[Turn]) -> Iterator[_Step]:
    """Yield each turn; no turn continues one that waits."""
    before, older = None, Spans()
    ended: list[Turn] = []
    for turn in turns:
        spans = turn.record.spans
        if turn.branches and turn.status not in WAITING:
            below = ranges_below(turn.branches, turn.index)
            before = next((last for last in reversed(ended) if any(last.index in part for part in below)), None)
            older = before.record.spans if before else Spans()
            ended.append(turn)
        if turn.status in WAITING:
            yield _Step(turn, None, False, spans)
            continue
        same = max(len(older) - 1, 0)  # spans that both have, as joined ones only grow at their end
        first, rest = cut(spans[same:], size(older[same:]))
        continues = before is not None and spans[:same] == older[:same] and first == older[same:]
        yield _Step(turn, before, continues, rest if continues else spans)
        before, older = turn, spans


def _turns_hold(steps: Iterable[_Step], *, compacts: bool, shortened: Container[int] = ()) -> Iterator[Finding]:
    is_valid = False
    for step in steps:
        turn = step.turn
        if turn.status in WAITING:
            continue
        if not _continues(step, shortened, compacts=compacts):
            yield "continues the turn before", f"turn {turn.index} does not"
        try:
            if not is_valid or not _is_valid(step.added):
                check_request([*turn.blocks, User(text="next")])
            is_valid = True
        except InvalidRequestError as error:
            is_valid = False
            yield "next request valid", f"after turn {turn.index}: {error}"


def _is_valid(added: Sequence[Block]) -> bool:
    """Return whether `added` are valid by themselves, and so after each valid conversation.

    For they begin with the user then, and no call of a valid conversation waits for a result.
    """
    try:
        check_request([*added, User(text="next")])
    except InvalidRequestError:
        return False
    return True


def _versions_hold(session: StoredSession) -> Iterator[Finding]:
    """Check that the branches are those of the stored turns, and that the events tell which version is shown."""
    branches, indexes = session.branches, {turn.index for turn in session.turns}
    if not are_valid(branches, session.next_index):
        yield "branches are in order", f"they are {branches}, and the next turn is {session.next_index}"
    for turn in session.turns if branches else ():
        if len(turn.versions) > 1 and (missing := {version.turn_index for version in turn.versions} - indexes):
            yield "each version is stored", f"turn {turn.index} has the versions {missing}, which are not stored"
        if sum(version.is_shown for version in turn.versions) > 1:
            yield "one version is shown", f"of turn {turn.index}, more are: {turn.versions}"
    told = [event for event in session.events if isinstance(event, TurnReplaced)]
    for event in told[-1:]:
        shown, replaced = event.turn_index, event.replaced
        if shown is None or (shown in indexes and not is_shown(branches, shown)):
            yield "events tell what is shown", f"{event!r} shows a turn that is not shown"
        if replaced in indexes and is_shown(branches, replaced):
            yield "events tell what is shown", f"{event!r} replaces a turn that is shown"


def _events_tell(events: Iterable[Event], steps: Iterable[_Step]) -> Iterator[Finding]:
    """Check that the events alone tell each turn as it was when its run ended."""
    ended = {step.turn.run_id: step for step in steps if not step.turn.record.is_open}
    rebuilt = Rebuilt()
    before, older = None, list[Block]()
    for event in events:
        try:
            rebuilt.add(event)
        except TranscriptError:  # the session was reverted
            return
        step = ended.get(event.run_id)
        if not event.terminal or step is None:
            continue
        replayed = rebuilt.blocks
        if step.continues and step.before is before and replayed[: len(older)] == older:  # mostly the same objects
            is_told = replayed[len(older) :] == list(step.added)
        else:
            is_told = replayed == list(step.turn.blocks)
        if not is_told:
            yield "the events tell each turn", f"event {event.seq} tells another turn {event.turn_index}"
        before, older = (step.turn, replayed) if is_told else (None, [])


def check_request(blocks: Sequence[Block]) -> None:
    """Check that every provider would accept the conversation, with unsupported pictures and files shown as text.

    Raises:
        InvalidRequestError: a provider would refuse it; the error says which, where and why.
    """
    for rules in (CHAT, RESPONSES, ANTHROPIC):
        check(arranged(rules.spare(blocks), rules), rules)


def _continues(step: _Step, shortened: Container[int], *, compacts: bool) -> bool:
    """Return whether a turn continues the one before; behind one of `shortened`, all that this one could have had."""
    turn, before = step.turn, step.before
    if before is not None and before.index in shortened and begins_with(turn.record.spans, before.record.base):
        return True
    compacts = compacts or turn.index in shortened
    if before is None:
        is_of_fork = turn.parent is not None  # whose first turn continues one of another session
        return not compacts or is_of_fork or _continues_newest(turn, ())
    if step.continues and (not compacts or size(step.new) == len(turn.new_blocks)):
        return True
    if before.record.removed:
        return _continues_rest(turn, before, compacts=compacts)
    return _continues_newest(turn, before.blocks) if compacts else _begins_with(turn.blocks, before.blocks)


def _begins_with(blocks: Sequence[Block], before: Sequence[Block]) -> bool:
    """Return whether `blocks` begins with `before`, except for summaries of refused pictures and files."""
    pairs = zip(blocks, before, strict=False)
    return len(blocks) >= len(before) and all(
        now == then or (isinstance(now, Summary) and isinstance(then, Image | Document)) for now, then in pairs
    )


def _continues_rest(turn: Turn, before: Turn, *, compacts: bool) -> bool:
    """Return whether the turn continues what was left of the turn before, in order, when blocks had been removed.

    Only these may lack: removed ones, calls, results, thoughts, refused pictures and files, summaries, and what comes
    before the first that is left.
    """
    record, held = turn.record, dict(zip(places(before.record.spans), before.blocks, strict=True))
    prompt_places = places(cut(record.spans, size(record.spans) - len(turn.new_blocks))[0])
    carried = [place for place in prompt_places if place in held]
    remaining, removed = {*carried}, {*places(before.record.removed)}
    if carried != [place for place in held if place in remaining]:
        return False
    lacking = dropwhile(lambda place: place not in remaining, held)
    may_lack = ToolUse | ToolResult | Thinking | Image | Document | Summary
    return compacts or all(
        place in remaining or place in removed or isinstance(held[place], may_lack) for place in lacking
    )


def _removed_stay_away(session: StoredSession) -> Iterator[Finding]:
    """Check that no run that begins after a removal is given the removed blocks."""
    spans_by_run = {turn.run_id: turn.record.spans for turn in session.turns}
    removed: Spans = ()
    for event in session.events:
        if isinstance(event, BlocksRemoved):
            removed = union(removed, from_places(event.removed, session.log))
        elif (
            isinstance(event, RunStarted) and removed and (has := overlap(spans_by_run.get(event.run_id, ()), removed))
        ):
            yield "removed blocks stay away", f"run {event.run_id!r} was given {has}"


_MOVED = (System, Summary, Image, Document)
"""Blocks that a compaction or a refusal moves or replaces."""


def _continues_newest(turn: Turn, before: tuple[Block, ...]) -> bool:
    """Return whether the turn's input ends like `before`, apart from blocks that a compaction moves."""
    own = len(turn.new_blocks)
    carried = [block for block in turn.blocks[: len(turn.blocks) - own] if not isinstance(block, _MOVED)]
    older = [block for block in before if not isinstance(block, _MOVED)]
    return not carried or older[-len(carried) :] == carried


def _notes_hold(
    session: StoredSession, steps: Sequence[_Step], notes: Sequence[Note], *, discards: bool
) -> Iterator[Finding]:
    runs = {run.run_id: run for run in session.runs}
    digests = _digests(steps) if any(note.digest for note in notes) else {}
    seqs = _seqs(session.events) if any(note.kind == "followed" for note in notes) else {}
    stored = _places(steps)
    present: list[tuple[Note, int]] = []
    for note in notes:
        own = runs.get(note.run_id or "")
        run = _leading(own, runs)
        if note.run_id and run is None:
            yield f"acknowledged {note.kind}", f"run {note.run_id!r} is not in the store"
        elif note.kind == "prompt":
            positions = stored.get(note.prompt or "", [])
            if run and run.code == REPLACED:
                if positions:
                    yield "replaced prompts are dropped", f"{note.prompt!r} of run {run.run_id!r} is stored"
            elif len(positions) == 1:
                present.append((note, positions[0]))
            elif positions or not (discards and run and run.state == "cancelled"):
                yield (
                    "acknowledged prompt once",
                    f"{note.prompt!r} of run {note.run_id!r} is stored {len(positions)} times",
                )
        elif note.kind == "dropped" and note.prompt in stored:
            yield "dropped prompts are not stored", f"{note.prompt!r} is stored"
        elif note.kind == "end" and run:
            if run.state != note.state:
                yield "acknowledged end", f"run {run.run_id!r} was acknowledged as {note.state}, but is {run.state}"
            if note.digest and digests.get(run.run_id) != note.digest:
                yield (
                    "acknowledged turn",
                    f"the turn of run {run.run_id!r} is missing, or differs from the acknowledged one",
                )
        elif note.kind == "followed" and run:
            run_seqs = seqs.get(run.run_id, [])
            yield from _followed(note, run_seqs if run is own else run_seqs[-1:])
    yield from _in_order(present)


def _said_once(runs: Iterable[RunRecord], steps: Iterable[_Step], notes: Iterable[Note]) -> Iterator[Finding]:
    said_notes = [note for note in notes if note.kind == "said"]
    times = Counter(block.text for block in _blocks_once(steps) if isinstance(block, Text)) if said_notes else Counter()
    states = {run.run_id: run.state for run in runs}
    for note in said_notes:
        state, count = states.get(note.run_id or ""), times[note.prompt or ""]
        if count != (state == "completed"):
            yield "said once", f"{note.prompt!r} of run {note.run_id!r}, which is {state}, is said {count} times"


def _silence_holds(session: StoredSession, notes: Iterable[Note]) -> Iterator[Finding]:
    runs = {run.run_id: run for run in session.runs}
    began = {event.run_id: event.at for event in reversed(session.events) if isinstance(event, RunStarted)}
    for note in notes:
        own = runs.get(note.run_id or "")
        run = _leading(own, runs)
        if note.silence_s and own and run and began.get(run.run_id, math.inf) < own.created_at + note.silence_s:
            yield "silence before a debounced run", f"run {run.run_id!r} began before {note.silence_s} s of silence"


def _losses_hold(runs: Iterable[RunRecord], deaths: Sequence[float] | None) -> Iterator[Finding]:
    for run in runs if deaths is not None else ():
        began, ended = (math.inf if time is None else time for time in (run.started_at, run.ended_at))
        died = sum(began <= time <= ended for time in deaths or ())
        lost = run.resumes + (run.state == "interrupted")
        if lost > died:
            yield (
                "only a death loses a run",
                f"run {run.run_id!r} was lost {lost} times, in {died} deaths of its process",
            )


def _digests(steps: Iterable[_Step]) -> dict[str, str]:
    """Return the digests of the turns by run. Each block is hashed once."""
    digests: dict[str, str] = {}
    by_index: dict[int, Digest] = {}
    for step in steps:
        hashed = by_index[step.before.index].copy() if step.before and step.continues else Digest()
        hashed.add(step.added)
        if step.turn.run_id:
            digests[step.turn.run_id] = str(hashed)
        if step.turn.status not in WAITING:
            by_index[step.turn.index] = hashed
    return digests


def _seqs(events: Sequence[Event]) -> dict[str | None, list[int]]:
    """Return the numbers of the events by run."""
    seqs: dict[str | None, list[int]] = {}
    for event in events:
        seqs.setdefault(event.run_id, []).append(event.seq)
    return seqs


def _places(steps: Iterable[_Step]) -> dict[str, list[int]]:
    """Return the positions of each prompt in reading order; a block that several turns share counts once.

    A prompt that was stored again, since its turn was answered anew, counts once too.
    """
    positions: dict[str, list[int]] = {}
    covered, turns, count = Seen(), dict[int, Turn](), 0
    for step in steps:
        turns[step.turn.index] = step.turn
        again = _prompt_again(step.turn, turns)
        for block in _new_blocks(step, covered):
            count += isinstance(block, User)
            if isinstance(block, User) and block not in again:
                positions.setdefault(block.text, []).append(count)
    return positions


def _prompt_again(turn: Turn, turns: Mapping[int, Turn]) -> Sequence[Block]:
    """Return the prompt of a turn if an earlier version of it has the same; else nothing."""
    indexes = [version.turn_index for version in turn.versions] if turn.branches else []
    earlier = [turns[index] for index in indexes if index < turn.index and index in turns]
    return turn.asked if any(version.asked == turn.asked for version in earlier) else ()


def _blocks_once(steps: Iterable[_Step]) -> Iterator[Block]:
    """Yield all blocks in reading order; one that several turns share is yielded once."""
    covered = Seen()
    for step in steps:
        yield from _new_blocks(step, covered)


def _new_blocks(step: _Step, covered: Seen) -> Sequence[Block]:
    """Return the blocks of a turn that are not covered yet, and cover them."""
    new = [part for span in (*step.new, *step.turn.record.prompt) for part in covered.take(span)]
    return step.turn.cache.read(new)


def _followed(note: Note, seqs: Sequence[int]) -> Iterator[Finding]:
    """Check what a follower saw of a run whose events have the numbers `seqs`."""
    followed = set(note.seqs)
    if list(note.seqs) != sorted(followed):
        yield "followers see each event once", f"a follower of run {note.run_id!r} saw {note.seqs}"
    if missed := [seq for seq in seqs if seq not in followed]:
        yield "followers miss nothing", f"a follower of run {note.run_id!r} did not see {missed}"


def _in_order(present: Sequence[tuple[Note, int]]) -> Iterator[Finding]:
    """Check that a prompt that was acknowledged before another call stands before the prompt of that call."""
    by_return = sorted(present, key=lambda pair: pair[0].returned_at)
    furthest, furthest_place, index = "", -1, 0
    for note, place in sorted(present, key=lambda pair: pair[0].called_at):
        while index < len(by_return) and by_return[index][0].returned_at < note.called_at:
            earlier, earlier_place = by_return[index]
            if earlier_place > furthest_place:
                furthest, furthest_place = str(earlier.prompt), earlier_place
            index += 1
        if furthest_place > place:
            yield (
                "order of acknowledgement",
                f"{note.prompt!r} was sent after {furthest!r} was acknowledged, but stands before it",
            )
