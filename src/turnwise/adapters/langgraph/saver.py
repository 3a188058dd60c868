"""`TurnwiseSaver`: LangGraph's checkpointer on our stores."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Self, cast

from turnwise.adapters.langgraph.calls import Calls
from turnwise.adapters.langgraph.checkpoints import Place, open_checkpoints
from turnwise.adapters.langgraph.encoding import SHARED_WRITES, Codec, Typed, is_divided, value_of
from turnwise.adapters.langgraph.threads import GraphThreads, Put, Stored, Write, claim_of
from turnwise.adapters.version_checks import framework
from turnwise.errors import ConfigError, ThreadExistsError, ThreadNotFoundError
from turnwise.memory.stores.urls import redact, resolve_own_url
from turnwise.memory.values.ids import check_id, check_names

with framework("langgraph-checkpoint", extra="langgraph", tested="4.3"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        PendingWrite,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

with framework("langgraph", extra="langgraph", tested="1.2"):
    # LangGraph sets it for subgraphs of a graph that replays an earlier checkpoint.
    from langgraph._internal._constants import CONFIG_KEY_REPLAY_STATE

_CLAIM = "__turnwise_claim"
"""The key in a config's `configurable` that says what a run had read before it writes."""

_FILLED_AT_ONCE = 20
"""The most checkpoints of a list whose values are read by one call."""


class TurnwiseSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of LangGraph's graphs in SQLite, PostgreSQL or memory.

    Each element of a list in a channel is stored once, so a conversation takes space in proportion to its length, and
    not to its square. Values are serialized by LangGraph's own serializer. A checkpoint is stored whole or not at all.
    Methods of one saver may be called from any threads and event loops. A copy shares its connections, and closing one
    closes both; a pickle has the URL, with its password, and the serializer that was given.

    **One writer.** A run may write to a thread (more precisely, to one namespace of it) if no other run has written
    since it read the thread; from then on it may write until another run takes over in the same way. Otherwise its call
    raises `CheckpointFencedError` and stores nothing. So of two runs at once, the one that writes first after both have
    read goes on, and the other fails; a run that hung goes no further once another has taken over; and `update_state`
    during a run ends that run. A chain of checkpoints forks only if a caller names an earlier `checkpoint_id`, in
    `invoke`, `update_state` or `bulk_update_state`; such a branch becomes the latest.

    The config of each tuple that this saver returns has a key that names the state which the run has read. With a
    config without that key, as one made by hand, `put` stores a checkpoint in these cases only:

    - It is the first one of its namespace.
    - It has no parent, and its graph replays an earlier checkpoint.
    - It continues the latest, and the last write was not by a run with the key.
    - It has no parent and no channels, and the last write was not by a run with the key.

    With such a config, `put_writes` stores if the last write was not by a run with the key.

    **The latest** is the checkpoint that was stored last; lists are in the order of ids.

    Ids of threads, checkpoints, tasks and runs, and names of channels are stored as they are, also with an
    `EncryptedSerializer`. Lists of numbers only, and lists inside of other values, are stored whole at each change.

    Args:
        url: `sqlite:///path/to/file.db`, `postgresql://user:password@host/name` or `memory://`; it may be a session
            store's. Redis keeps sessions and memory items only.
        serde: LangGraph's serializer; `JsonPlusSerializer()` if not given.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: the URL names a Redis.
    """

    def __init__(self, url: str, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._threads = GraphThreads(open_checkpoints(url))
        # Resolved here, so that a relative path means the same file where a pickle is loaded.
        self._url, self._serde = resolve_own_url(url), serde
        self._calls = Calls(redact(url))

    def __repr__(self) -> str:
        return f"TurnwiseSaver({redact(self._url)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._url.startswith("memory:"):
            raise TypeError("TurnwiseSaver('memory://') lives in its process and cannot be sent to another: use SQLite")
        return partial(TurnwiseSaver, serde=self._serde), (self._url,)

    def __copy__(self) -> Self:
        """Return a saver with the same connections, for LangGraph, which gives it a serializer with an allowlist."""
        shared = object.__new__(type(self))
        shared.__dict__ |= self.__dict__
        return shared

    # Closing

    def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        self._calls.close_and_wait(self._threads.close)

    async def aclose(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        await self._calls.close(self._threads.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a config, the latest if it names none; None if there is none. Blocks.

        Raises:
            InvalidInputError: the config names no thread.
            CorruptRecordError: the checkpoint cannot be read.
        """
        where, name = _place(config), get_checkpoint_id(config)
        codec = Codec(self.serde)
        stored = self._calls.here(lambda: self._threads.load(where, name, codec))
        return _tuple(stored, codec) if stored else None

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a config, the latest if it names none; None if there is none.

        Raises:
            InvalidInputError: the config names no thread.
            CorruptRecordError: the checkpoint cannot be read.
        """
        where, name = _place(config), get_checkpoint_id(config)
        codec = Codec(self.serde)
        stored = await self._calls.elsewhere(lambda: self._threads.load(where, name, codec))
        return _tuple(stored, codec) if stored else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, those with the largest id first. Blocks.

        Args:
            config: the thread, namespace and checkpoint; all of each that it does not name, and all threads if None.
            filter: what their metadata must have.
            before: yields only checkpoints with a smaller id than this one's.
            limit: the most checkpoints.
        """
        codec, wanted = Codec(self.serde), _Wanted(config, filter, before, limit)
        while wanted.more:  # `chosen` sets `more` and `before` when all of a page has been read
            page, last = self._calls.here(lambda: self._threads.page(*wanted.place, before=wanted.before, codec=codec))
            for part in _parts(wanted.chosen(page, last)):
                for full in self._calls.here(partial(self._threads.filled, part, codec)):
                    yield _tuple(full, codec)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, those with the largest id first.

        Args:
            config: the thread, namespace and checkpoint; all of each that it does not name, and all threads if None.
            filter: what their metadata must have.
            before: yields only checkpoints with a smaller id than this one's.
            limit: the most checkpoints.
        """
        codec, wanted = Codec(self.serde), _Wanted(config, filter, before, limit)
        while wanted.more:  # `chosen` sets `more` and `before` when all of a page has been read
            page, last = await self._calls.elsewhere(
                lambda: self._threads.page(*wanted.place, before=wanted.before, codec=codec)
            )
            for part in _parts(wanted.chosen(page, last)):
                for full in await self._calls.elsewhere(partial(self._threads.filled, part, codec)):
                    yield _tuple(full, codec)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint wrote to channels. Blocks.

        For each channel, back to the nearest ancestor that stores its value.
        """
        where, name, codec = _place(config), get_checkpoint_id(config), Codec(self.serde)
        return _history(self._calls.here(lambda: self._threads.history(where, name, channels, codec)), channels, codec)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint wrote to channels.

        For each channel, back to the nearest ancestor that stores its value.
        """
        where, name, codec = _place(config), get_checkpoint_id(config), Codec(self.serde)
        return _history(
            await self._calls.elsewhere(lambda: self._threads.history(where, name, channels, codec)), channels, codec
        )

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint that continues the config's; return the config that names it. Blocks until it is durable.

        A stored checkpoint with its id is replaced.

        Raises:
            CheckpointFencedError: another run has written to the thread since; nothing was stored. See the class.
            CheckpointNotFoundError: the config names a checkpoint that is not there; nothing was stored.
            InvalidInputError: the config names no thread, or a name is one that stores cannot keep; nothing was stored.
        """
        where, put, codec = self._prepared_put(config, checkpoint, metadata, new_versions)
        self._calls.here(lambda: self._threads.put(where, put, codec))
        return _config(where, put.id, put.claim)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint that continues the config's; return the config that names it, when it is durable.

        A stored checkpoint with its id is replaced.

        Raises:
            CheckpointFencedError: another run has written to the thread since; nothing was stored. See the class.
            CheckpointNotFoundError: the config names a checkpoint that is not there; nothing was stored.
            InvalidInputError: the config names no thread, or a name is one that stores cannot keep; nothing was stored.
        """
        where, put, codec = self._prepared_put(config, checkpoint, metadata, new_versions)
        await self._calls.elsewhere(lambda: self._threads.put(where, put, codec))
        return _config(where, put.id, put.claim)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote, for the config's checkpoint, which may be stored later. Blocks until it is durable.

        A write that a task repeats changes nothing, unless it is an error, an interrupt or an answer to one.

        Raises:
            CheckpointFencedError: another run has written to the thread since; nothing was stored. See the class.
            CheckpointNotFoundError: the thread was deleted since; nothing was stored.
            InvalidInputError: the config names no thread, or no checkpoint.
        """
        where, name, rows, codec = self._prepared_writes(config, writes)
        task, claim = (task_id, task_path), _claim(config)
        self._calls.here(lambda: self._threads.put_writes((where, name), claim, task, rows, codec))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote, for the config's checkpoint, which may be stored later.

        A write that a task repeats changes nothing, unless it is an error, an interrupt or an answer to one.

        Raises:
            CheckpointFencedError: another run has written to the thread since; nothing was stored. See the class.
            CheckpointNotFoundError: the thread was deleted since; nothing was stored.
            InvalidInputError: the config names no thread, or no checkpoint.
        """
        where, name, rows, codec = self._prepared_writes(config, writes)
        task, claim = (task_id, task_path), _claim(config)
        await self._calls.elsewhere(lambda: self._threads.put_writes((where, name), claim, task, rows, codec))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the version of a channel after this one. Versions of two branches differ."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:012}.{secrets.token_hex(4)}"

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all namespaces, if there is one, in one transaction. Blocks."""
        self._calls.here(lambda: self._threads.delete(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all namespaces, if there is one, in one transaction."""
        await self._calls.elsewhere(lambda: self._threads.delete(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, with their pending writes. One transaction for each namespace. Blocks.

        The latest is then the checkpoint with the largest id among those left.

        Raises:
            CheckpointInUseError: a `DeltaChannel` of another checkpoint is rebuilt from one of them.
        """
        self._calls.here(lambda: self._threads.delete_runs(set(run_ids), Codec(self.serde)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, with their pending writes. One transaction for each namespace.

        The latest is then the checkpoint with the largest id among those left.

        Raises:
            CheckpointInUseError: a `DeltaChannel` of another checkpoint is rebuilt from one of them.
        """
        await self._calls.elsewhere(lambda: self._threads.delete_runs(set(run_ids), Codec(self.serde)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, as it is at one moment, in one transaction. Blocks.

        Raises:
            ThreadNotFoundError: there is no such thread.
            ThreadExistsError: the target exists; nothing was copied.
        """
        self._calls.here(lambda: self._copy(str(source_thread_id), str(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, as it is at one moment, in one transaction.

        Raises:
            ThreadNotFoundError: there is no such thread.
            ThreadExistsError: the target exists; nothing was copied.
        """
        await self._calls.elsewhere(lambda: self._copy(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads. Threads that do not exist are passed over. Blocks.

        Args:
            thread_ids: the threads.
            strategy: `keep_latest` leaves the latest of each namespace, and those that its `DeltaChannel`s are rebuilt
                from; one transaction for each namespace. `delete` deletes the threads.

        Raises:
            ConfigError: the strategy is another one.
        """
        self._calls.here(lambda: self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads. Threads that do not exist are passed over.

        Args:
            thread_ids: the threads.
            strategy: `keep_latest` leaves the latest of each namespace, and those that its `DeltaChannel`s are rebuilt
                from; one transaction for each namespace. `delete` deletes the threads.

        Raises:
            ConfigError: the strategy is another one.
        """
        await self._calls.elsewhere(lambda: self._prune(thread_ids, strategy))

    def _copy(self, source: str, target: str) -> None:
        is_copied, free = self._threads.copy(source, check_id("thread", target))
        if not is_copied:
            raise ThreadNotFoundError(source)
        if not free:
            raise ThreadExistsError(target)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ConfigError("strategy", strategy, "must be 'keep_latest' or 'delete'")
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                self._threads.delete(thread_id)
            else:
                self._threads.keep_latest(thread_id, Codec(self.serde))

    # Serialising, in the caller's thread, where values may still change

    def _prepared_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Place, Put, Codec]:
        codec, where = Codec(self.serde), _place(config)
        stored_metadata = cast(dict[str, Any], get_checkpoint_metadata(config, metadata))
        values = checkpoint["channel_values"]
        run_id = stored_metadata.get("run_id")
        check_names("run_id", None if run_id is None else str(run_id))
        for name in values.keys() | new_versions.keys():
            _check_channel(name)
        put = Put(
            id=check_id("checkpoint", checkpoint["id"]),
            parent=get_checkpoint_id(config) or None,
            claim=_claim(config),
            header=codec.dump({name: value for name, value in checkpoint.items() if name != "channel_values"}),
            metadata=codec.dump(stored_metadata),
            run_id=None if run_id is None else str(run_id),
            versions=dict(checkpoint["channel_versions"]),
            new={name: _dumped(codec, values[name]) if name in values else None for name in new_versions},
            same={name: partial(_dumped, codec, value) for name, value in values.items() if name not in new_versions},
            replays=config["configurable"].get(CONFIG_KEY_REPLAY_STATE) is not None,
        )
        return where, put, codec

    def _prepared_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> tuple[Place, str, Sequence[Write], Codec]:
        codec, where = Codec(self.serde), _place(config)
        if not (name := get_checkpoint_id(config)):
            raise ConfigError("config.configurable.checkpoint_id", name, "must name the checkpoint of the writes")
        rows: list[Write] = []
        for number, (channel, value) in enumerate(writes):
            _check_channel(channel)
            is_shared = is_divided(value) and len(value) >= SHARED_WRITES  # a shorter list is stored whole
            dumped = _dumped(codec, value) if is_shared else codec.dump(value)
            rows.append((WRITES_IDX_MAP.get(channel, number), channel, dumped))
        return where, name, rows, codec


class _Wanted:
    """Which checkpoints a list still has to yield."""

    def __init__(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        self.place = (_place(config)[0], config["configurable"].get("checkpoint_ns")) if config else (None, None)
        self._id = get_checkpoint_id(config) if config else None
        bounds = [get_checkpoint_id(before) if before else None, _just_above(self._id) if self._id else None]
        self.before = min((bound for bound in bounds if bound), default=None)
        self._filter = filter or {}
        self._remaining = limit
        self.more = limit is None or limit > 0

    def chosen(self, page: Sequence[Stored], last: str | None) -> Iterator[Stored]:
        """Yield what the list has of a page. Then `more` says if another page is wanted, and `before` its beginning."""
        for stored in page:
            if self._id and stored.row.id != self._id:
                last = None
                break
            if all(stored.metadata.get(name) == value for name, value in self._filter.items()):
                yield stored
                if self._remaining is not None:
                    self._remaining -= 1
                    if not self._remaining:
                        self.more = False
                        return
        self.before, self.more = last, last is not None


def _just_above(id: str) -> str:
    """Return a text that sorts after this id and before all others that do: ids have no control characters."""
    return f"{id}\1"


def _parts(chosen: Iterator[Stored]) -> Iterator[list[Stored]]:
    """Yield checkpoints in parts: one, since many callers want no more, then as many as a call should read."""
    size = 1
    while part := [*islice(chosen, size)]:
        yield part
        size = _FILLED_AT_ONCE


def _place(config: RunnableConfig) -> Place:
    """Return the thread and namespace that a config names."""
    named = config.get("configurable") or {}
    thread_id = named.get("thread_id")
    if thread_id is None:
        raise ConfigError("config.configurable.thread_id", thread_id, "must be the id of a thread")
    check_names("config.configurable.checkpoint_id", get_checkpoint_id(config))
    return _checked_place(str(thread_id), str(named.get("checkpoint_ns") or ""))


@lru_cache(1024)  # a turn names its place six times
def _checked_place(thread_id: str, ns: str) -> Place:
    place = check_id("thread", thread_id), ns
    check_names("config.configurable.checkpoint_ns", *place)
    return place


@lru_cache(1024)  # and its channels twenty times
def _check_channel(name: str) -> None:
    check_names("channel", name)


def _claim(config: RunnableConfig) -> str | None:
    claim = config["configurable"].get(_CLAIM)
    return claim if isinstance(claim, str) else None


def _config(where: Place, id: str, claim: str | None) -> RunnableConfig:
    named = {"thread_id": where[0], "checkpoint_ns": where[1], "checkpoint_id": id}
    return {"configurable": named | ({_CLAIM: claim} if claim else {})}


def _dumped(codec: Codec, value: Any) -> Typed | list[Typed]:
    return [codec.dump(element) for element in value] if is_divided(value) else codec.dump(value)


def _tuple(stored: Stored, codec: Codec) -> CheckpointTuple:
    claim, row = claim_of(stored.place, stored.space), stored.row
    values = {name: value_of(codec, name, ref, stored.elements) for name, ref in stored.refs.items()}
    return CheckpointTuple(
        config=_config(stored.place, row.id, claim),
        checkpoint=cast(Checkpoint, {**stored.header, "channel_values": values}),
        metadata=cast(CheckpointMetadata, stored.metadata),
        parent_config=_config(stored.place, row.parent, claim) if row.parent else None,
        pending_writes=list(_pending(stored, codec)),
    )


def _pending(stored: Stored, codec: Codec) -> Iterator[PendingWrite]:
    for write in stored.writes:
        yield write.task_id, write.channel, value_of(codec, write.channel, write.ref, stored.elements)


def _history(ancestors: Sequence[Stored], channels: Sequence[str], codec: Codec) -> Mapping[str, DeltaChannelHistory]:
    """Return what the ancestors, newest first, wrote to each channel, the oldest first."""
    histories: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        writes: list[list[PendingWrite]] = []
        histories[channel] = {"writes": []}
        for stored in ancestors:
            writes.append([write for write in _pending(stored, codec) if write[1] == channel])
            if channel in stored.refs:
                histories[channel]["seed"] = value_of(codec, channel, stored.refs[channel], stored.elements)
                break
        histories[channel]["writes"] = [write for group in reversed(writes) for write in group]
    return histories
