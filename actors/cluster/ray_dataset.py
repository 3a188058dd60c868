"""`dataset_of`: a dataset of Ray Data, whose parts tasks read when it is consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from turnwise.actors.hosting.identity import pickled
from turnwise.actors.wire_version import unpacked_settings
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

    RayDataset = ray.data.Dataset
    """A dataset of Ray Data."""


def dataset_of(parts: Sequence[Callable[[], Iterator[pa.Table]]], schema: pa.Schema) -> RayDataset:
    """Return a dataset whose rows these functions yield as tables, each in a task of its own.

    Nothing is read before the dataset is consumed. The functions are pickled now.

    Raises:
        ConfigError: Ray Data is not installed.
    """
    try:
        import ray.data
        from ray.data.block import BlockMetadata
        from ray.data.datasource import Datasource, ReadTask
    except ModuleNotFoundError as error:
        reason = f"needs Ray Data, which lacks {error.name}: pip install 'turnwise[dataset]'"
        raise ConfigError("dataset", "Ray Data", reason) from error

    reads = [partial(_read, pickled(part)) for part in parts]

    class Parts(Datasource):
        """The functions as a source of Ray Data."""

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            """Return a task for each function."""
            unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
            return [ReadTask(read, unknown, schema=schema) for read in reads]

        def estimate_inmemory_data_size(self) -> None:
            """Return None: nobody knows before the store is read."""

    source: Any = Parts
    dataset: RayDataset = ray.data.read_datasource(source(), override_num_blocks=len(parts))
    return dataset


def _read(part: bytes) -> Iterator[pa.Table]:
    tables: Iterator[pa.Table] = unpacked_settings(part)()
    return tables
