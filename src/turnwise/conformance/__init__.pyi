from turnwise.conformance.engines import check_engine as check_engine
from turnwise.conformance.placements import check_placement as check_placement
from turnwise.conformance.reports import Outcome as Outcome, Report as Report, laws_of as laws_of, report as report
from turnwise.memory.event_store.conformance import check_event_store as check_event_store
from turnwise.memory.longterm.conformance import (
    check_memory as check_memory,
    check_read_only_memory as check_read_only_memory,
)
from turnwise.memory.longterm.index.conformance import check_vectors as check_vectors
from turnwise.memory.longterm.items.conformance import check_item_store as check_item_store
from turnwise.memory.stores.conformance.suite import check_session_store as check_session_store
from turnwise.strategies.conformance import check_strategy as check_strategy
