from turnwise.dataset.examples import AsyncExamples as AsyncExamples, Examples as Examples
from turnwise.dataset.selection import (
    DatasetFormat as DatasetFormat,
    DatasetKind as DatasetKind,
    Selection as Selection,
    thumb as thumb,
)
