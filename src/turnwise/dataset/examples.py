"""`Examples` and `AsyncExamples`: the conversations of a manager's store as examples for training a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.engine import Framed
from turnwise.actors.inference.shadow import answering
from turnwise.dataset.files import writing
from turnwise.dataset.messages import Example
from turnwise.dataset.ray_parts import parts_of
from turnwise.dataset.reading import next_page, read_examples
from turnwise.dataset.selection import Selection
from turnwise.dataset.tables import schema_of
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.actors.cluster.ray_dataset import RayDataset


class AsyncExamples:
    """`Examples` with coroutine methods, of an `AsyncSessionManager`: `async for example in examples`."""

    def __init__(self, manager: AsyncSessionManager, selection: Selection) -> None:
        self._manager = manager
        self.selection = selection
        self.left_out: Counter[str] = Counter()
        """What did not come along when the examples were last read, by reason."""

    async def __aiter__(self) -> AsyncIterator[Example]:
        await self._manager.list(limit=1)  # which starts the manager
        self.left_out = Counter()
        store, tools = self._manager.client.session_store, _tools_of(self._manager)
        async for example in read_examples(store, self.selection, tools, self.left_out):
            yield example

    async def write(self, path: str | Path) -> int:
        """Write all examples to a file; see `Examples.write`."""
        count = 0
        examples = aiter(self)
        with writing(path, self.selection) as write:
            while page := await next_page(examples):
                write(page)
                count += len(page)
        return count

    def to_ray(self, *, blocks: int = 8) -> RayDataset:
        """Return the examples as a dataset of Ray Data; see `Examples.to_ray`."""
        return _to_ray(self._manager, self.selection, blocks)


class Examples:
    """The conversations of a manager's store as examples for training a model: an iterable of JSON objects.

    Each iteration reads the store anew, and has one example in memory at a time. A session that changes meanwhile comes
    along as it was or as it is; what is deleted meanwhile does not.

    Args:
        manager: whose store is read; one with `read_only=True` will do. That of an encrypted store needs the keys; a
            user without a key does not come along.
        selection: which conversations come along, and what of them.
    """

    def __init__(self, manager: SessionManager, selection: Selection) -> None:
        self._manager = manager
        self.selection = selection
        self.left_out: Counter[str] = Counter()
        """What did not come along when the examples were last read, by reason."""

    def __iter__(self) -> Iterator[Example]:
        for page in self._pages():
            yield from page

    def write(self, path: str | Path) -> int:
        """Write all examples to a file, and return how many there are.

        Args:
            path: ends with `.jsonl` or `.parquet`, which says what is written. The file is there once it is whole.

        Raises:
            InvalidInputError: the path ends otherwise.
            ConfigError: Parquet needs `pip install 'turnwise[dataset]'`.
        """
        count = 0
        with writing(path, self.selection) as write:
            for page in self._pages():
                write(page)
                count += len(page)
        return count

    def to_ray(self, *, blocks: int = 8) -> RayDataset:
        """Return the examples as a dataset of Ray Data, which tasks on the cluster read when it is consumed.

        Args:
            blocks: into how many parts the sessions are divided, each of which a task reads.

        Raises:
            ConfigError: Ray Data is not installed, or the store is in the memory of this process.
        """
        return _to_ray(self._manager, self.selection, blocks)

    def _pages(self) -> Iterator[list[Example]]:
        self._manager.list(limit=1)  # which starts the manager
        self.left_out = Counter()
        client = self._manager.client
        examples = read_examples(client.session_store, self.selection, _tools_of(self._manager), self.left_out)
        while page := client.portal.run(next_page(examples)):
            yield page


def _tools_of(manager: SessionManager | AsyncSessionManager) -> dict[str | None, Sequence[Mapping[str, Any]]]:
    """Return the tools of the manager's engines, by the names that runs have of them."""
    engines = {name: answering(engine) for name, engine in manager.engines.items()}
    tools = {name: engine.frame().tools for name, engine in engines.items() if isinstance(engine, Framed)}
    if first := next(iter(manager.engines), None):
        tools[None] = tools.get(first, ())
    return tools


def _to_ray(manager: SessionManager | AsyncSessionManager, selection: Selection, blocks: int) -> RayDataset:
    client = manager.client
    url = client.store_spec.url
    is_of_process = isinstance(client.placement, InProcess) and (not isinstance(url, str) or url.startswith("memory:"))
    if is_of_process:
        reason = "it is in the memory of this process, which tasks of Ray cannot read: use write(), or another store"
        raise ConfigError("store", str(url), reason)
    schema = schema_of(selection)
    from turnwise.actors.cluster.ray_dataset import dataset_of

    spec = replace(client.store_spec, read_only=True)
    return dataset_of(parts_of(spec, client.namespace, selection, _tools_of(manager), blocks), schema)
