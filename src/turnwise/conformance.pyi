from turnwise.memory.event_store.conformance import check_event_store as check_event_store
from turnwise.memory.longterm.conformance import (
    check_memory as check_memory,
    check_read_only_memory as check_read_only_memory,
)
from turnwise.memory.longterm.items.conformance import check_item_store as check_item_store
from turnwise.memory.stores.conformance.suite import check_session_store as check_session_store
from turnwise.strategies.conformance import check_strategy as check_strategy
