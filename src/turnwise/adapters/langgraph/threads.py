"""`GraphThreads`: LangGraph's threads in a store, with the decision who may write to them.

All that is here blocks, and may be called from any threads.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from turnwise.adapters.langgraph.checkpoints import CheckpointStore, Commit, Place, Row, Space
from turnwise.adapters.langgraph.encoding import (
    INLINE,
    INLINE_BYTES,
    LIST,
    VALUE,
    Codec,
    Known,
    Ranges,
    Ref,
    Typed,
    arranged,
    pack,
    ranges_of,
    share,
    spans_of,
    unpack,
)
from turnwise.errors import CheckpointFencedError, CheckpointInUseError, CheckpointNotFoundError, CorruptRecordError
from turnwise.memory.values.ids import new_key

_PLACES = 64
"""The most spaces whose elements a process remembers."""

_REMEMBERED_BYTES = 32 * 2**20
"""The most bytes of elements that a saver remembers; more only if the latest state of the space used last has more."""

_PARENTS = 8
"""The most checkpoints of a space that a process remembers."""

_PAGE = 200

_STEP_BITS = 24
"""Random bits by which a revision rises. It stays below 63 bits for half a trillion changes."""

Write = tuple[int, str, Typed | list[Typed]]
"""A pending write: its number, its channel, its value serialised; a list element by element."""


@dataclass(frozen=True)
class StoredWrite:
    """A pending write as it was stored."""

    task_id: str
    path: str
    number: int
    channel: str
    ref: Ref


@dataclass(frozen=True)
class Stored:
    """A checkpoint as it was stored, with the elements that its values and pending writes are made of."""

    place: Place
    space: Space
    row: Row
    header: dict[str, Any]
    metadata: dict[str, Any]
    refs: Mapping[str, Ref]
    writes: Sequence[StoredWrite] = ()
    elements: Mapping[tuple[str, int], Typed] = field(default_factory=dict)

    @property
    def delta(self) -> set[str]:
        """The channels that have to be rebuilt from earlier checkpoints."""
        return set(self.metadata.get("counters_since_delta_snapshot") or ()) - self.refs.keys()


@dataclass(frozen=True, kw_only=True)
class Put:
    """A checkpoint to store. Values that the caller may still change are serialised at once."""

    id: str
    parent: str | None
    claim: str | None
    header: Typed
    metadata: Typed
    run_id: str | None
    versions: Mapping[str, Any]
    new: Mapping[str, Typed | list[Typed] | None]
    """The channels that changed; None for one without a value."""
    same: Mapping[str, Callable[[], Typed | list[Typed]]]
    """The other channels; they are serialised only if the parent does not have them."""
    replays: bool
    """Whether the graph around this one replays an earlier checkpoint."""


@dataclass(slots=True)
class _Memory:
    """The checkpoints and elements of a space that this process has read or written."""

    space: Space
    checkpoints: dict[str, tuple[Mapping[str, Any], Mapping[str, Ref]]] = field(default_factory=dict)
    """By id: versions and references of channels."""
    channels: dict[str, Known] = field(default_factory=dict)
    counted: int = 0
    """What it had in bytes when `GraphThreads` counted it last."""

    @property
    def size(self) -> int:
        """The bytes of all elements."""
        return sum(channel.size for channel in self.channels.values())

    def remember(self, id: str, versions: Mapping[str, Any], refs: Mapping[str, Ref]) -> None:
        self.checkpoints[id] = (versions, refs)
        while len(self.checkpoints) > _PARENTS:
            del self.checkpoints[next(iter(self.checkpoints))]
        if self.size > _REMEMBERED_BYTES:
            _, latest = self.checkpoints.get(self.space.head or id, (versions, refs))
            ranges = ranges_of(latest.items())
            self.channels = {
                channel: self.channels[channel].only(ranges[channel]) for channel in self.channels if channel in ranges
            }


_Make = Callable[[_Memory | None, bool], Commit]


@dataclass(slots=True, eq=False)
class _Change:
    """A change of a space. It is made by the thread that asks for it, or by one whose change came before."""

    make: _Make
    learn: Callable[[_Memory], None]
    is_done: bool = False
    error: BaseException | None = None


class _Line:
    """The changes of a space that wait, and the lock of who makes them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[_Change] = deque()


class GraphThreads:
    """The threads in a store, for callers in any threads. Changes of one space in this process wait for each other.

    What is known of a space changes only while it is taken out of `_memories`, under the space's lock.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._memories: OrderedDict[Place, _Memory] = OrderedDict()
        self._lines: WeakValueDictionary[Place, _Line] = WeakValueDictionary()
        self._bytes = 0
        """The bytes of all `_memories`, as they were counted."""
        self._guard = threading.Lock()
        """Held briefly, for the three above."""

    async def close(self) -> None:
        await self._store.close()

    # Reading

    def load(self, where: Place, id: str | None, codec: Codec) -> Stored | None:
        """Return a checkpoint with its values and pending writes; the latest if the id is None."""
        while True:
            known = self._known(where)
            if not (read := self._store.read(where, id)):
                self._forget(where, known)  # a run that reads that the thread was deleted may begin it anew
                return None
            space, row, writes = read
            if row is None:
                return None
            stored = replace(describe(where, space, row, codec), writes=_merged(row.id, writes))
            if full := self._with_elements(stored, codec):
                self._learn(full)
                return full
            again = self._store.read(where, id)
            if again and again[0].revision == space.revision:
                raise CorruptRecordError(f"checkpoint {row.id!r} of thread {where[0]!r}", "elements are missing")

    def page(
        self, thread_id: str | None, ns: str | None, *, before: str | None, codec: Codec
    ) -> tuple[list[Stored], str | None]:
        """Return checkpoints by id, newest first, without values and pending writes; and where the next page begins."""
        rows = self._store.page(thread_id, ns, before=before, limit=_PAGE)
        checkpoints = [describe(where, space, row, codec) for where, space, row in rows]
        return checkpoints, rows[-1][2].id if len(rows) >= _PAGE else None

    def filled(self, part: Sequence[Stored], codec: Codec) -> list[Stored]:
        """Return checkpoints with their values and pending writes, without those that were deleted meanwhile."""
        by_space: dict[int, list[Stored]] = {}
        for stored in part:
            by_space.setdefault(stored.space.key, []).append(stored)
        filled: dict[tuple[int, str], Stored] = {}
        for key, chosen in by_space.items():
            writes = self._store.writes(key, [stored.row.id for stored in chosen])
            here = [
                replace(checkpoint, writes=_merged(checkpoint.row.id, writes.get(checkpoint.row.id, ())))
                for checkpoint in chosen
            ]
            ranges = ranges_of(ref for checkpoint in here for ref in _refs(checkpoint))
            elements = self._elements(here[0], ranges, codec)
            for checkpoint in here:
                own = ranges_of(_refs(checkpoint)).items()
                needed = [(channel, index) for channel, spans in own for span in spans for index in range(*span)]
                if all(place in elements for place in needed):
                    full: Stored | None = replace(checkpoint, elements=elements)
                else:
                    full = self.load(checkpoint.place, checkpoint.row.id, codec)
                if full:
                    filled[key, checkpoint.row.id] = full
        named = ((stored.space.key, stored.row.id) for stored in part)
        return [filled[name] for name in named if name in filled]

    def history(self, where: Place, id: str | None, channels: Collection[str], codec: Codec) -> list[Stored]:
        """Return the ancestors of a checkpoint, newest first, back to where each channel has a value.

        With the values of these channels only.
        """
        if not (read := self._store.read(where, id)):
            return []
        space, row, _ = read
        if row is None:
            return []
        chain: list[Stored] = []
        missing, rows = set(channels), dict[str, Row]()
        while missing and row.parent:
            if row.parent not in rows:
                after = self._store.page(*where, before=row.id, limit=_PAGE)
                rows = {row_after.id: row_after for _, _, row_after in after}
            if row.parent not in rows:  # its id is larger: clocks of machines differ
                if not (read := self._store.read(where, row.parent)) or not read[1]:
                    break
                rows[row.parent] = read[1]
            row = rows[row.parent]
            chain.append(describe(where, space, row, codec))
            missing -= chain[-1].refs.keys()
        filled = []
        for first in range(0, len(chain), _PAGE):
            part = chain[first : first + _PAGE]
            writes = self._store.writes(space.key, [checkpoint.row.id for checkpoint in part])
            for checkpoint in part:
                own = [
                    write
                    for write in _merged(checkpoint.row.id, writes.get(checkpoint.row.id, ()))
                    if write.channel in channels
                ]
                refs = {channel: ref for channel, ref in checkpoint.refs.items() if channel in channels}
                if not (full := self._with_elements(replace(checkpoint, writes=own, refs=refs), codec)):
                    raise CorruptRecordError(
                        f"checkpoint {checkpoint.row.id!r} of {where[0]!r}", "elements are missing"
                    )
                filled.append(full)
        return filled

    def _with_elements(self, stored: Stored, codec: Codec) -> Stored | None:
        """Return it with its elements; None if one is missing."""
        ranges = ranges_of(_refs(stored))
        if not ranges:
            return stored
        elements = self._elements(stored, ranges, codec)
        count = sum(end - start for spans in ranges.values() for start, end in spans)
        return replace(stored, elements=elements) if len(elements) == count else None

    def _elements(self, stored: Stored, ranges: Ranges, codec: Codec) -> dict[tuple[str, int], Typed]:
        """Return the elements in these ranges. Those that this process knows are not read again."""
        memory = self._known(stored.place)
        # Another revision may be that of a store that was restored, with other elements at these positions.
        channels = memory.channels if memory and memory.space == stored.space else {}
        elements: dict[tuple[str, int], Typed] = {}
        missing: Ranges = {}
        for channel, spans in ranges.items():
            here = channels[channel].elements if channel in channels else {}
            for index in (index for span in spans for index in range(*span)):
                if (typed := here.get(index)) is not None:
                    elements[channel, index] = typed
                elif (last := missing.setdefault(channel, [])) and last[-1][1] == index:
                    last[-1] = last[-1][0], index + 1
                else:
                    last.append((index, index + 1))
        return elements | self._stored(stored.space.key, missing, codec) if missing else elements

    def _stored(self, key: int, ranges: Ranges, codec: Codec) -> dict[tuple[str, int], Typed]:
        data_by_place = self._store.values(key, ranges)
        return {place: codec.unseal(*unpack(f"element {place}", data)) for place, data in data_by_place.items()}

    # Writing

    def put(self, where: Place, put: Put, codec: Codec) -> None:
        """Store a checkpoint.

        Raises:
            CheckpointFencedError: another run has written since; nothing was stored.
            CheckpointNotFoundError: there is no such parent; nothing was stored.
        """
        refs: dict[str, Ref] = {}

        def make(memory: _Memory | None, _: bool) -> Commit:
            nonlocal refs
            space = memory.space if memory else None
            if _is_outdated(where, space, put.claim):
                raise CheckpointNotFoundError(*where, put.parent or put.id)
            self._check_put(where, space, put)
            refs, values, ends = self._placed(where, memory, put, codec)
            record = pack([*codec.seal(put.header), *codec.seal(put.metadata), refs])
            return Commit(
                before=space,
                after=_after(space, put.claim, head=put.id, ends=ends),
                rows=[Row(put.id, put.parent, put.run_id, record)],
                values=[(channel, index, pack(codec.seal(typed))) for channel, index, typed in values],
            )

        self._change(where, make, lambda memory: memory.remember(put.id, put.versions, refs))

    def put_writes(
        self,
        place_and_id: tuple[Place, str],
        claim: str | None,
        task: tuple[str, str],
        writes: Sequence[Write],
        codec: Codec,
    ) -> None:
        """Store pending writes of a task, given by its id and path, for a checkpoint, given by its space and id.

        Raises:
            CheckpointFencedError: another run has written since; nothing was stored.
            CheckpointNotFoundError: the space was deleted since it was read or written here; nothing was stored. This
                is known of the last `_PLACES` spaces that this process used; another one begins anew.
        """
        where, name = place_and_id

        def make(memory: _Memory | None, was_deleted: bool) -> Commit:
            space = memory.space if memory else None
            is_claimed = space is not None and _is_of(space, claim)
            if (was_deleted and not is_claimed) or _is_outdated(where, space, claim):
                raise CheckpointNotFoundError(*where, name)
            if space and not (_holds(space, claim) if is_claimed else space.writer is None):
                raise CheckpointFencedError(*where, name, space.head)
            channels = memory.channels if memory else {}
            rows = [
                [
                    number,
                    channel,
                    share(value, channels.get(channel), codec)
                    if isinstance(value, list)
                    else [INLINE, *codec.seal(value)],
                ]
                for number, channel, value in writes
            ]
            after = _after(space, claim)
            return Commit(before=space, after=after, writes=[(name, after.revision, pack([*task, rows]))])

        self._change(where, make)

    def _change(self, where: Place, make: _Make, learn: Callable[[_Memory], None] = lambda _: None) -> None:
        """Make a commit from what is known of the space, and store it; again if another process was faster.

        Changes that wait for another one of their space are then stored together, in one transaction.

        Args:
            where: the space.
            make: is also told whether the space that this process knew was deleted.
            learn: adds to what is known of the space then.
        """
        change, line = _Change(make, learn), self._line_of(where)
        line.waiting.append(change)
        with line.lock:
            if not change.is_done:
                self._store_all(where, [line.waiting.popleft() for _ in range(len(line.waiting))])
        if change.error:
            raise change.error

    def _store_all(self, where: Place, changes: Sequence[_Change]) -> None:
        """Store changes, in order, and note which of them failed."""
        try:
            self._try_all(where, list(changes))
        except BaseException as error:  # noqa: BLE001 - each caller raises it
            for change in changes:
                change.error = change.error or error
        finally:
            for change in changes:
                change.is_done = True

    def _try_all(self, where: Place, changes: list[_Change]) -> None:
        known = self._known(where)
        first = known.space if known else None
        while changes:
            memory = self._take(where)  # comes back only after a commit
            is_remembered = memory is not None
            if memory is None and (read := self._store.read(where, None)):
                memory = _Memory(read[0])
            before, commits = first, list[Commit]()
            for change in changes:
                was_deleted = before is not None and (memory is None or memory.space.key != before.key)
                change.error = None
                try:
                    commit = change.make(memory, was_deleted)
                except (CheckpointFencedError, CheckpointNotFoundError) as error:
                    if is_remembered:
                        break  # it may be outdated
                    change.error = error
                    continue
                except Exception as error:  # noqa: BLE001 - its caller raises it
                    change.error = error
                    changes.remove(change)
                    break
                before = commit.after
                memory = memory or _Memory(before)
                memory.space = before
                change.learn(memory)
                commits.append(commit)
            else:
                if not commits and first and (memory is None or memory.space.key != first.key):
                    self._cache(where, _Memory(first))  # so that the next of these calls is refused as well
                if not commits:
                    return
                if memory and self._store.commit(where, _joined(commits)):
                    self._cache(where, memory)
                    return

    def _check_put(self, where: Place, space: Space | None, put: Put) -> None:
        """Check that a put is one of those that `TurnwiseSaver` allows."""
        if space and _is_of(space, put.claim):
            if not _holds(space, put.claim):
                raise CheckpointFencedError(*where, put.parent, space.head)
            return
        head = space.head if space else None
        if space and space.writer is None and head == put.id:
            return  # it is repeated, as its answer was lost
        if space is None or head is None or put.parent is None:
            begins = head is None or put.replays or (not put.versions and space and space.writer is None)
            if put.parent is None and begins:
                return
        elif space.writer is None and head == put.parent:
            return
        if put.parent and not ((read := self._store.read(where, put.parent)) and read[1]):
            raise CheckpointNotFoundError(*where, put.parent)
        raise CheckpointFencedError(*where, put.parent, head)

    def _placed(
        self, where: Place, memory: _Memory | None, put: Put, codec: Codec
    ) -> tuple[dict[str, Ref], list[tuple[str, int, Typed]], dict[str, int]]:
        """Return the references of all channels, the new elements, and where each channel ends then."""
        versions, before = self._parent(where, memory, put.parent, codec)
        ends = dict(memory.space.ends) if memory else {}
        refs: dict[str, Ref] = {}
        values: list[tuple[str, int, Typed]] = []
        for channel in {**put.versions, **put.new, **put.same}:
            if channel in put.new:
                dumped = put.new[channel]
            elif channel in before and versions.get(channel) == put.versions.get(channel):
                refs[channel] = before[channel]
                continue
            else:
                dumped = put.same[channel]() if channel in put.same else None
            if dumped is None:
                continue
            if isinstance(dumped, tuple) and len(dumped[1]) <= INLINE_BYTES:
                refs[channel] = [INLINE, *codec.seal(dumped)]
                continue
            channel_known = self._channel_elements(memory, channel, before.get(channel), codec)
            elements = dumped if isinstance(dumped, list) else [dumped]
            spans, new = arranged(elements, channel_known, ends.get(channel, 0))
            refs[channel] = [LIST, *spans] if isinstance(dumped, list) else [VALUE, spans[0]]
            values += [(channel, index, typed) for index, typed in new]
            if new:
                ends[channel] = new[-1][0] + 1
        return refs, values, ends

    def _parent(
        self, where: Place, memory: _Memory | None, id: str | None, codec: Codec
    ) -> tuple[Mapping[str, Any], Mapping[str, Ref]]:
        """Return the versions and references of a parent's channels."""
        if memory is None or id is None:
            return {}, {}
        if id not in memory.checkpoints:
            if not (read := self._store.read(where, id)) or not read[1]:
                return {}, {}
            stored = describe(where, read[0], read[1], codec)
            memory.remember(id, stored.header["channel_versions"], stored.refs)
        return memory.checkpoints[id]

    def _channel_elements(self, memory: _Memory | None, channel: str, before: Ref | None, codec: Codec) -> Known:
        """Return what is known of a channel's elements; if nothing is, after reading those of the parent."""
        if memory is None:
            return Known()
        if channel not in memory.channels:
            channel_known = memory.channels[channel] = Known()
            if before and (ranges := ranges_of([(channel, before)])):
                for (_, index), typed in (self._stored(memory.space.key, ranges, codec)).items():
                    channel_known.learn(index, typed)
                channel_known.starts = [start for start, _ in spans_of(before)]
        return memory.channels[channel]

    def _learn(self, stored: Stored) -> None:
        """Remember what a caller, who will probably continue it, has read."""
        line = self._line_of(stored.place)
        if not line.lock.acquire(blocking=False):
            return  # a change is under way, which knows the space better
        try:
            memory, space = self._known(stored.place), stored.space
            if memory is None or memory.space != space:
                if memory and memory.space.key == space.key and memory.space.revision > space.revision:
                    return  # a change has been made since it was read
                memory = _Memory(space)
            self._take(stored.place)
            for (channel, index), typed in stored.elements.items():
                channel_known = memory.channels.setdefault(channel, Known())
                if index not in channel_known.elements:
                    channel_known.learn(index, typed)
            for channel, ref in stored.refs.items():
                if channel in memory.channels:
                    memory.channels[channel].starts = [start for start, _ in spans_of(ref)]
            memory.remember(stored.row.id, stored.header["channel_versions"], stored.refs)
            self._cache(stored.place, memory)
        finally:
            line.lock.release()

    def _line_of(self, where: Place) -> _Line:
        with self._guard:
            return self._lines.setdefault(where, _Line())

    def _known(self, where: Place) -> _Memory | None:
        """Return what is known of a space. It must not be changed."""
        with self._guard:
            return self._memories.get(where)

    def _take(self, where: Place) -> _Memory | None:
        """Take out what is known of a space, to change it."""
        with self._guard:
            return self._dropped(where)

    def _forget(self, where: Place, known: _Memory | None) -> None:
        """Forget what was known of a space, unless something else is known of it now."""
        with self._guard:
            if self._memories.get(where) is known:
                self._dropped(where)

    def _cache(self, where: Place, memory: _Memory) -> None:
        memory.counted = memory.size
        with self._guard:
            self._dropped(where)
            self._memories[where] = memory
            self._bytes += memory.counted
            while len(self._memories) > _PLACES or (self._bytes > _REMEMBERED_BYTES and len(self._memories) > 1):
                self._dropped(next(iter(self._memories)))

    def _dropped(self, where: Place) -> _Memory | None:
        if (memory := self._memories.pop(where, None)) is not None:
            self._bytes -= memory.counted
        return memory

    # Deleting and copying

    def delete(self, thread_id: str) -> None:
        """Delete a thread, if there is one."""
        self._store.delete(thread_id)

    def copy(self, source: str, target: str) -> tuple[bool, bool]:
        """Copy a thread; return whether there is a source, and whether the target was free."""
        return bool(self._store.spaces(source)), self._store.copy(source, target)

    def keep_latest(self, thread_id: str, codec: Codec) -> None:
        """Delete all checkpoints of a thread but the latest of each namespace, and those that it is rebuilt from."""

        def keep(all_: Mapping[str, Stored], space: Space) -> set[str]:
            head = all_.get(space.head or "")
            return {head.row.id, *_needed(head, all_)} if head else set()

        for where, _ in self._store.spaces(thread_id):
            self._remove(where, keep, codec)

    def delete_runs(self, run_ids: Collection[str], codec: Codec) -> None:
        """Delete the checkpoints of these runs.

        Raises:
            CheckpointInUseError: another checkpoint is rebuilt from one of them; none of its namespace was deleted.
        """

        def keep(all_: Mapping[str, Stored], _: Space) -> set[str]:
            needed_ids = {name for name, stored in all_.items() if stored.row.run_id not in run_ids}
            for name in needed_ids:
                for needed in _needed(all_[name], all_):
                    if needed not in needed_ids:
                        ancestor = all_[needed]
                        raise CheckpointInUseError(ancestor.place[0], needed, ancestor.row.run_id, name)
            return needed_ids

        for where in self._store.with_runs([*run_ids]):
            self._remove(where, keep, codec)

    def _remove(self, where: Place, keep: Callable[[Mapping[str, Stored], Space], set[str]], codec: Codec) -> None:
        """Delete all checkpoints of a space but those that `keep` returns, and the elements that nothing refers to.

        Pending writes of a checkpoint that is not stored yet stay, with the elements that they share.
        """
        line = self._line_of(where)
        with line.lock:
            self._take(where)
            while read := self._store.read(where, None):
                space, all_, before = read[0], dict[str, Stored](), None
                while True:
                    part, before = self.page(*where, before=before, codec=codec)
                    all_ |= {stored.row.id: stored for stored in part}
                    if before is None:
                        break
                kept_ids = keep(all_, space)
                if not (removed := [*(all_.keys() - kept_ids)]):
                    return
                refs = [item for name in kept_ids for item in all_[name].refs.items()]
                kept_writes = self._store.writes(space.key, [*kept_ids])
                kept_writes |= self._store.early_writes(space.key)
                for name, writes in kept_writes.items():
                    refs += [(write.channel, write.ref) for write in _merged(name, writes)]
                revision = _next(space.revision)
                head = space.head if space.head in kept_ids else max(kept_ids, default=None)
                after = replace(space, revision=revision, pruned=revision, head=head)
                unused = _without(ranges_of(refs), space.ends)
                if self._store.commit(where, Commit(before=space, after=after, removed=removed, removed_values=unused)):
                    return


def describe(where: Place, space: Space, row: Row, codec: Codec) -> Stored:
    """Return a stored checkpoint, without values and pending writes."""
    kind, data, metadata_kind, metadata, refs = unpack(f"checkpoint {row.id!r} of thread {where[0]!r}", row.record)
    header = codec.load(codec.unseal(kind, data))
    return Stored(where, space, row, header, codec.load(codec.unseal(metadata_kind, metadata)), refs)


def _refs(stored: Stored) -> list[tuple[str, Ref]]:
    return [*stored.refs.items(), *((write.channel, write.ref) for write in stored.writes)]


def claim_of(where: Place, space: Space) -> str:
    """Return a new run's claim to a space that it has read: with it, it may write unless another run writes before."""
    return f"{space.key}.{space.written}.{secrets.token_hex(4)}.{_mark(where)}"


def _mark(where: Place) -> str:
    """Return what tells a claim to this place from one to another, which a graph passes on to its subgraphs."""
    return hashlib.blake2b("\0".join(where).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _is_outdated(where: Place, space: Space | None, claim: str | None) -> bool:
    """Return whether a claim is to a space of this place that was deleted since."""
    return claim is not None and claim.endswith(f".{_mark(where)}") and not (space and _is_of(space, claim))


def _is_of(space: Space, claim: str | None) -> bool:
    return claim is not None and claim.partition(".")[0] == str(space.key)


def _holds(space: Space, claim: str | None) -> bool:
    return claim is not None and (claim == space.writer or claim.split(".")[1:2] == [str(space.written)])


def _after(
    space: Space | None, claim: str | None, head: str | None = None, ends: Mapping[str, int] | None = None
) -> Space:
    """Return the state of a space after a write."""
    before = space or Space(new_key())
    revision = _next(before.revision)
    return Space(
        before.key,
        revision,
        written=revision,
        pruned=before.pruned,
        head=head or before.head,
        writer=claim if _is_of(before, claim) else None,
        ends=before.ends if ends is None else ends,
    )


def _joined(commits: Sequence[Commit]) -> Commit:
    """Return one commit that does what these do, each of which follows the one before it."""
    return Commit(
        before=commits[0].before,
        after=commits[-1].after,
        rows=[row for commit in commits for row in commit.rows],
        values=[value for commit in commits for value in commit.values],
        writes=[write for commit in commits for write in commit.writes],
    )


def _next(revision: int) -> int:
    """Return a revision after this one: another one at each call, since a store may be restored to an earlier state."""
    return revision + 1 + secrets.randbits(_STEP_BITS)


def _merged(id: str, stored: Sequence[bytes]) -> list[StoredWrite]:
    """Return the pending writes of a checkpoint in the order in which LangGraph applies them.

    Of two with one number, the first counts, or the last if the number is negative.
    """
    merged: dict[tuple[str, int], StoredWrite] = {}
    for data in stored:
        task_id, path, rows = unpack(f"pending writes of checkpoint {id!r}", data)
        for number, channel, ref in rows:
            if number < 0 or (task_id, number) not in merged:
                merged[task_id, number] = StoredWrite(task_id, path, number, channel, ref)
    return sorted(merged.values(), key=lambda write: (write.path, write.task_id, write.number))


def _needed(stored: Stored, all_: Mapping[str, Stored]) -> list[str]:
    """Return the ids of the ancestors that a checkpoint's channels are rebuilt from."""
    ancestors: list[str] = []
    missing = stored.delta
    while missing and (parent := all_.get(stored.row.parent or "")):
        ancestors.append(parent.row.id)
        missing -= parent.refs.keys()
        stored = parent
    return ancestors


def _without(used: Ranges, ends: Mapping[str, int]) -> Ranges:
    """Return the ranges of positions below `ends` that are not used."""
    unused: Ranges = {}
    for channel, end in ends.items():
        position = 0
        for first, last in [*used.get(channel, ()), (end, end)]:
            if first > position:
                unused.setdefault(channel, []).append((position, first))
            position = last
    return unused
