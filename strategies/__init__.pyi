from turnwise.memory.tokens.counter import (
    ByteCounter as ByteCounter,
    TiktokenCounter as TiktokenCounter,
    TokenCounter as TokenCounter,
    counter_for as counter_for,
)
from turnwise.strategies.compaction import Compaction as Compaction
from turnwise.strategies.delete_oldest import DeleteOldest as DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory as FlushToMemory
from turnwise.strategies.keep_last import KeepLast as KeepLast
from turnwise.strategies.plan import Plan as Plan, plan_for as plan_for
from turnwise.strategies.strategy import OverflowStrategy as OverflowStrategy
from turnwise.strategies.summarize import Summarize as Summarize
from turnwise.strategies.trim import Trim as Trim
from turnwise.strategies.window import TokenBudget as TokenBudget, Window as Window
