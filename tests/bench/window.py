"""Measures the context window: decisions, counting, other sessions' compactions, and an idle strategy."""

import functools
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
import tiktoken

from harness import Samples, Table, end_process, prompt_of, retire
from turnwise import (
    DeleteOldest,
    EchoEngine,
    FlushToMemory,
    OpenAIEngine,
    Session,
    SessionConfig,
    SessionManager,
    Summarize,
    Trim,
    Turn,
)
from turnwise.engines import RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import Event, WindowCompacted
from turnwise.strategies import ByteCounter, OverflowStrategy, TokenBudget
from turnwise.strategies.conformance_conversations import Conversation
from turnwise.strategies.strategy import decide
from turnwise.testing import LocalProvider

SHORT, LONG = 1_000, 100_000
"""The numbers of blocks of the two histories."""

BUDGET = TokenBudget(2_000)
"""The token budget, for some hundred blocks."""

EXCHANGE: tuple[Block, ...] = (
    User(text="What is it like?"),
    ToolUse(call_id="a", name="look"),
    ToolResult(call_id="a", text="It is raining."),
    Text(text="It rains."),
)

ANSWER_CHARS, SUMMARY_TOKENS = 50_000, 4_000
"""The tokens of each turn of the compacting session, and the maximum of each summary."""

WORD_S = 0.005
"""The pause between two words of a summary, in seconds: a model that is faster than most."""


class Nowhere:
    """A fake long-term memory: a decision only checks whether it is writable."""

    read_only = False


NOWHERE: Any = Nowhere()

STRATEGIES: tuple[OverflowStrategy, ...] = (
    Trim(),
    DeleteOldest(3),
    Summarize(None, max_summary_tokens=100, keep_turns=20),
    FlushToMemory([NOWHERE]),
)


def conversation_of(blocks: int) -> Conversation:
    """Return a conversation with this number of blocks, all of them counted."""
    conversation = Conversation()
    conversation.add([System(text="Be brief."), *EXCHANGE * (blocks // len(EXCHANGE))])
    conversation.window()
    return conversation


def decisions(table: Table, times: int) -> None:
    """Measure making a window of a counted history, deciding on it, and checking the plan.

    The same blocks of both histories stay; of the long one, more is removed. Removed blocks are not read: summaries and
    memories would read them.
    """
    short, long = conversation_of(SHORT), conversation_of(LONG)
    floors, samples = [Samples() for _ in STRATEGIES], [Samples() for _ in STRATEGIES]
    for number in range(-2, times):
        for strategy, floor, subject in zip(STRATEGIES, floors, samples, strict=True):
            kept_parts = set()
            for conversation, taken in ((short, floor), (long, subject)):
                with taken.timed():
                    window = conversation.window()
                    plan = decide(strategy, window, BUDGET)
                assert plan
                kept_parts.add(tuple((part.start - len(window), part.stop - len(window)) for part in plan.keep))
            assert len(kept_parts) == 1, "the same blocks stay"
        if number < 0:
            for measured in (*floors, *samples):
                measured.clear()
    ratios = [subject.median / floor.median for subject, floor in zip(samples, floors, strict=True)]
    names = [type(strategy).__name__ for strategy in STRATEGIES]
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    table.line(f"deciding on {SHORT:,} blocks: {names[worst]}, the worst", floors[worst], "floor")
    table.judge(f"deciding on {LONG:,} blocks, of which as many stay", ratios[worst], 2, samples=samples[worst])
    ratios_shown = [f"{names[index]} {ratio:.3g}x" for index, ratio in enumerate(ratios) if index != worst]
    table.line("  the other strategies", result=", ".join(ratios_shown))


def countings(table: Table, times: int) -> None:
    """Measure making a window of a history of which only the last turn is not yet counted."""
    short, long = conversation_of(SHORT), conversation_of(LONG)
    few, floor, many = Samples(), Samples(), Samples()
    for number in range(-20, times):
        for conversation, exchanges, samples in ((short, 1, floor), (long, 1, few), (long, 10, many)):
            conversation.add(EXCHANGE * exchanges)
            with samples.timed():
                conversation.window()
        if number < 0:
            for samples in (few, floor, many):
                samples.clear()
    table.line(f"counting a turn of 4 blocks behind {SHORT:,}", floor, "floor")
    table.judge(f"counting a turn of 4 blocks behind {LONG:,}", few.median / floor.median, 2, samples=few)
    table.judge("counting a turn of 40 blocks there, to 4", many.median / few.median, 15, samples=many)
    table.line("  what each block adds", result=f"{(many.median - few.median) / 36 * 1e6:.2g} us")


@functools.cache
def long_text() -> str:
    return prompt_of(ANSWER_CHARS)


@functools.cache
def byte_pairs() -> tiktoken.Encoding:
    """Return a vocabulary without merges: each byte is a token, and tiktoken takes its usual time."""
    words = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("bytes", pat_str=words, mergeable_ranks=ranks, special_tokens={})


@dataclass(frozen=True)
class PairCounter(ByteCounter):
    """Counts with tiktoken, without a download."""

    def text(self, text: str) -> int:
        return len(byte_pairs().encode_ordinary(text))


class Talker:
    """Answers at once with a long text."""

    def build(self, session: SessionView) -> "Talker":
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text=long_text())]


class Neighbour:
    """Makes a session compact repeatedly, or computes as much, in its own process, together with the model's provider.

    Each turn of the session passes the trigger, so each is followed by a compaction: the answer is counted, the model
    gets it and the last summary over HTTP, and the new summary is stored.
    """

    def __init__(self, url: str, namespace: str) -> None:
        with ExitStack() as stack:
            provider = stack.enter_context(LocalProvider(token_delay_s=WORD_S, reply=prompt_of(600)))
            model = OpenAIEngine("stand-in", base_url=provider.base_url, api_key="no-key")
            full = ANSWER_CHARS + SUMMARY_TOKENS
            overflow = Summarize(
                model,
                trigger_ratio=0.6,
                keep_turns=1,
                max_summary_tokens=SUMMARY_TOKENS,
                model_window=4 * full,  # as of a model whose limit is known: what it is shown is counted first
            )
            config = SessionConfig(max_context_tokens=2 * full, reserve_output_tokens=0, token_counter=PairCounter())
            manager = SessionManager(url, engine=Talker(), overflow=overflow, config=config, namespace=namespace)
            self._session = stack.enter_context(manager).open()
            stack.callback(retire, self._session)
            self._thread = stack.enter_context(ThreadPoolExecutor(1))
            self._end = stack.pop_all().close
        self._pid = self._session.info().pid
        self._stop, self._going = threading.Event(), threading.Event()
        self._work: Future[None] | None = None
        self._done = 0
        self._spent = (0.0, 0.0)
        """The CPU time of the processes for the compactions, and the elapsed time."""
        for _ in range(2):
            self._compact()
        self._spent = (0.0, 0.0)  # the first ones take longer
        self._compact()

    def pid(self) -> int:
        return os.getpid()

    def go(self, work: Literal["compact", "compute"]) -> None:
        """Start it; return when a compaction is running."""
        self._stop.clear()
        self._going.clear()
        self._work = self._thread.submit(self._go_on, self._compact if work == "compact" else self._compute)
        self._work.add_done_callback(lambda _: self._going.set())
        self._going.wait()

    def rest(self) -> None:
        """Stop it; return when the compaction has ended."""
        self._stop.set()
        assert self._work
        self._work.result()

    def outcome(self) -> tuple[int, float, float]:
        """Return the number of compactions, their rate per second, and the share of a core that they use."""
        read = list[Event]()
        while page := self._session.events(read[-1].seq if read else 0):
            read += page
        compactions = sum(isinstance(event, WindowCompacted) for event in read)
        assert self._done - 1 <= compactions <= self._done, "each turn was followed by one; the first may be by none"
        worked, took = self._spent
        return compactions, (self._done - 2) / took, worked / took

    def close(self) -> None:
        self._stop.set()
        self._end()

    def _go_on(self, do: Callable[[], None]) -> None:
        while not self._stop.is_set():
            do()

    def _compact(self) -> None:
        began = self._now()
        self._session.run("And then?").wait()
        self._going.set()
        self._session.compact()
        self._done += 1
        worked, took = (now - then for now, then in zip(self._now(), began, strict=True))
        self._spent = self._spent[0] + worked, self._spent[1] + took

    def _compute(self) -> None:
        """Use as much of a core as a compaction does, in pieces of 1 ms."""
        self._going.set()
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        worked, took = self._spent
        time.sleep(0.001 * max(took / worked - 1, 0))

    def _now(self) -> tuple[float, float]:
        """Return the CPU time of the session's process and this one, and the time."""
        fields = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        session_s = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return session_s + time.process_time(), time.monotonic()


def beside_compactions(
    table: Table, manager: SessionManager, site: tuple[str, str], *, rounds: int, window_s: float
) -> None:
    """Measure a session's turns while another session of the same store compacts, and while it is idle.

    In short alternating periods. Two of each round are idle; their difference is noise. In another one, the other
    process only computes, as much as a compaction does, which shows the effect of a busy core without a lock.

    Args:
        site: the manager's store and namespace.
    """
    prompt, busy, computing, idle = prompt_of(200), Samples(), Samples(), (Samples(), Samples())
    actor: Any = ray.remote(Neighbour).options(num_cpus=0, max_concurrency=2).remote(*site)

    def converse(samples: Samples) -> None:
        until = time.monotonic() + window_s
        while time.monotonic() < until:
            with samples.timed():
                session.run(prompt).wait()

    def converse_beside(work: Literal["compact", "compute"], samples: Samples) -> None:
        ray.get(actor.go.remote(work))
        converse(samples)
        ray.get(actor.rest.remote())

    pid = ray.get(actor.pid.remote())
    windows: list[Callable[[], None]] = [
        lambda: converse(idle[0]),
        lambda: converse_beside("compact", busy),
        lambda: converse(idle[1]),
        lambda: converse_beside("compute", computing),
    ]
    for _ in range(rounds):
        session = manager.open()  # one for all rounds would have more turns than a window takes
        converse(Samples())
        for window in windows:
            window()
        windows = [*windows[1:], windows[0]]
        retire(session)
    count, rate, share = ray.get(actor.outcome.remote())
    ray.get(actor.close.remote())
    end_process(actor, pid)
    alone = Samples([*idle[0], *idle[1]])

    def noise(of: Callable[[Samples], float]) -> float:
        first, second = map(of, idle)
        return max(first / second, second / first)

    def p95(samples: Samples) -> float:
        return samples.percentile(95)

    floor = f"floor; between its halves {noise(statistics.median):.3g}x"
    table.line("durable turn, another session idle", alone, floor)
    table.judge("durable turn, another session compacting", busy.median / alone.median, 1.25, samples=busy)
    table.line("  a process beside it that only computes as much", computing, f"{computing.median / alone.median:.3g}x")
    ratios_shown = f"idle halves {noise(p95):.3g}x, only computing {p95(computing) / p95(alone):.3g}x"
    table.line("  p95, to that beside an idle one", result=f"{p95(busy) / p95(alone):.3g}x; {ratios_shown}")
    table.line(f"  {count} compactions", result=f"{rate:.2g} a second, at {share:.0%} of a core")


def idle_strategy(table: Table, manage: Callable[..., SessionManager], rounds: int) -> None:
    """Measure the turns of a session with an idle strategy, alternating with those of one without a strategy."""
    prompt, without, samples, turns_each = prompt_of(200), Samples(), Samples(), 10
    settings: dict[str, Any] = {"token_counter": ByteCounter(), "max_context_tokens": 10**8}
    with (
        manage("bare-window", EchoEngine()) as bare,
        manage("wide-window", EchoEngine(), overflow=Trim(), **settings) as managed,
    ):
        pair: list[tuple[Session, Samples]] = [(bare.open(), without), (managed.open(), samples)]
        for number in range(-2, rounds):
            for session, taken in pair:
                for _ in range(turns_each):
                    with taken.timed():
                        session.run(prompt).wait()
            if number < 0:
                for _, taken in pair:
                    taken.clear()
            pair.reverse()
        for session, _ in pair:
            retire(session)
    table.line("durable turn, no overflow strategy", without, "floor")
    table.judge(
        "durable turn, overflow=Trim() with nothing to do", samples.median / without.median, 1.15, samples=samples
    )
