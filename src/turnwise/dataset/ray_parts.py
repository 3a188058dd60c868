"""What a task of Ray Data does: it opens the store, and reads the examples of its part of the sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from turnwise.actors.client.shared.runtimes import runtime_of
from turnwise.actors.hosting.placement import Dedicated
from turnwise.actors.hosting.store_spec import StoreSpec
from turnwise.dataset.reading import Part, next_page, read_examples
from turnwise.dataset.selection import Selection
from turnwise.dataset.tables import schema_of, table_of

if TYPE_CHECKING:
    import pyarrow as pa

Tools = Mapping[str | None, Sequence[Mapping[str, Any]]]


def parts_of(
    spec: StoreSpec, namespace: str, selection: Selection, tools: Tools, count: int
) -> list[Callable[[], Iterator[pa.Table]]]:
    """Return functions, each of which reads one part of the examples as tables."""
    return [partial(_tables, spec, namespace, selection, tools, (number, count)) for number in range(count)]


def _tables(spec: StoreSpec, namespace: str, selection: Selection, tools: Tools, part: Part) -> Iterator[pa.Table]:
    schema = schema_of(selection)
    store = spec.open_store(runtime_of(Dedicated(), namespace))
    with asyncio.Runner() as runner:
        try:
            examples = read_examples(store, selection, tools, Counter(), part)
            while page := runner.run(next_page(examples)):
                yield table_of(page, schema)
        finally:
            runner.run(store.close())
