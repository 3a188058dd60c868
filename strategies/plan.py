"""`Plan`: the decision of an overflow strategy, which the session inspects, checks and carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from turnwise.errors import InvalidRequestError, StrategyError
from turnwise.memory.conversation.blocks import Block, Summary, System, ToolResult, ToolUse, User
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.spans import Span, Spans, join
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.strategies.compaction import Compaction, Reason
from turnwise.strategies.flush_task import FlushTask
from turnwise.strategies.ranges import Range, Ranges, gaps, merge, overlap
from turnwise.strategies.summary_task import SummaryTask
from turnwise.strategies.window import TokenBudget, Window

if TYPE_CHECKING:
    from turnwise.strategies.strategy import OverflowStrategy

Law = Literal[
    "order kept",
    "system prompt once",
    "newest turn kept",
    "tool pairs whole",
    "summaries kept or folded in",
    "nothing twice",
    "something goes",
    "valid for providers",
    "budget met",
    "decides",
    "decides the same again",
    "leaves nothing to do",
]
"""The laws for strategies: see `Plan.check` and `strategy.decide`, and for the last two `conformance.py`."""

LAWS: tuple[Law, ...] = get_args(Law)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to keep of a window. `plan_for` makes plans and counts their tokens; making a plan has no effect.

    After the plan is carried out, the next request contains the system prompt, the new summary if there is one, and the
    ranges to keep.
    """

    strategy: str
    """The name of the strategy."""
    keep: Ranges
    """The ranges that stay, without system prompts. The effective system prompt always stays."""
    summary: SummaryTask | None = None
    flush: FlushTask | None = None
    reasons: tuple[Reason, ...] = ()
    tokens_before: int = 0
    """The tokens of the request before the plan."""
    tokens_after: int = 0
    """The most tokens of the request after the plan."""
    otherwise: OverflowStrategy | None = None
    """The strategy to use if the summary or the flush fails for good and the window is over its budget."""

    # Carrying out

    @property
    def waits(self) -> bool:
        """Whether the plan needs a summary by a model or a flush to memories first."""
        return self.summary is not None or self.flush is not None

    def spans(self, window: Window, summary_span: Span | None = None) -> Spans:
        """Return the spans of the next turn's input after the plan is carried out.

        Args:
            summary_span: the span of the new summary; required if the plan has one, and None otherwise.
        """
        if (summary_span is None) != (self.summary is None):
            raise ValueError("a plan with a summary takes its span, and one without takes none")
        system = [] if window.system is None else [Range(window.system, window.system + 1)]
        return join(window.spans_of(system), [summary_span] if summary_span else [], window.spans_of(self.keep))

    def retaining(self, window: Window, budget: TokenBudget, ranges: Sequence[Range]) -> Plan | None:
        """Return a plan that keeps some exchanges of its flush in the window; None if it would remove nothing.

        It may miss the budget: see `otherwise`.
        """
        if self.flush is None or not ranges:
            return self
        retained = [part for flushed in ranges for part in window.without(flushed, System)]
        keep = merge([*self.keep, *retained])
        if not _tokens(window, gaps(keep, Range(0, len(window)))):
            return None
        stay = merge(ranges)
        removed = tuple(part for flushed in self.flush.ranges for part in gaps(stay, flushed))
        plan = plan_for(
            window,
            budget,
            strategy=self.strategy,
            keep=keep,
            flush=replace(self.flush, ranges=removed),
            reason="a memory has not acknowledged the others",
            otherwise=self.otherwise,
        )
        return replace(plan, summary=self.summary)

    def explain(self) -> Compaction:
        """Return which parts are removed and kept, why, and their tokens."""
        return Compaction(
            strategy=self.strategy,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            reasons=self.reasons,
        )

    # Checking

    def check(self, window: Window, budget: TokenBudget) -> None:
        """Raise if the plan breaks a law. O(blocks to keep); changes nothing.

        - order kept: all ranges are within the window, in ascending order, separate and not empty, and the summarised
          blocks are older than all kept blocks;
        - system prompt once: no range to keep contains a system prompt;
        - newest turn kept: the whole newest exchange stays;
        - tool pairs whole: no call is separated from its result;
        - summaries kept or folded in: an earlier summary stays, or the new summary includes it;
        - nothing twice: blocks that go to long-term memory do not stay as well;
        - something goes: the request has fewer tokens than before, even if the summary has its full length;
        - valid for providers: each provider that would accept the present request accepts the new one;
        - budget met: the request is within the budget, even if the summary has its full length.

        Tool pairs and validity are not checked if the plan keeps only the newest whole exchanges, which keep both.

        Raises:
            StrategyError: names the law.
        """
        self._check_order(window)
        self._check_system_and_summaries(window)
        self._check_newest(window)
        has_whole_exchanges = self._keeps_whole_exchanges(window)
        if not has_whole_exchanges:
            self._check_pairs(window)
        after = _request_tokens(window, budget, self.keep, self.summary)
        if after >= (before := window.taken(budget)):
            self._break("something goes", f"the request would have {after} tokens, and has {before} now")
        if not has_whole_exchanges:
            self._check_valid(window)
        if after > budget.max_tokens:
            self._break("budget met", f"the request would take {after} of {budget.max_tokens} tokens")

    def _break(self, law: Law, reason: str) -> NoReturn:
        raise StrategyError(self.strategy, law, reason)

    def _removed(self, window: Window) -> Ranges:
        return gaps(self.keep, Range(0, len(window)))

    def _check_order(self, window: Window) -> None:
        for ranges in (self.keep, self.summary.ranges if self.summary else (), self.flush.ranges if self.flush else ()):
            for part in ranges:
                if not 0 <= part.start < part.stop <= len(window):
                    self._break("order kept", f"{tuple(part)} is not a range of {len(window)} blocks")
            for before, after in pairwise(ranges):
                if after.start < before.stop:
                    self._break("order kept", f"{tuple(after)} comes after {tuple(before)}")
        if self.summary and self.summary.ranges and self.keep and self.summary.ranges[-1].stop > self.keep[0].start:
            self._break("order kept", f"block {self.summary.ranges[-1].stop - 1} is summarised, an older one is kept")

    def _check_system_and_summaries(self, window: Window) -> None:
        for part in self.keep:
            if (system := next(window.places(System, part), None)) is not None:
                self._break("system prompt once", f"block {system} is a system prompt: leave it out of what is kept")
        remaining = merge([*self.keep, *(self.summary.ranges if self.summary else ())])
        for position in window.summaries:
            if not any(overlap([Range(position, position + 1)], remaining)):
                self._break("summaries kept or folded in", f"block {position} is a summary, and would be removed")
        for part in overlap(self.flush.ranges if self.flush else (), self.keep):
            if window.without(part, Summary):
                self._break("nothing twice", f"blocks {part.start} to {part.stop - 1} are flushed and kept")

    def _check_newest(self, window: Window) -> None:
        for part in gaps(self.keep, window.newest):
            if removed := window.without(part, System):
                self._break(
                    "newest turn kept",
                    f"block {removed[0].start} would be removed; the newest turn begins at {window.newest.start}",
                )

    def _keeps_whole_exchanges(self, window: Window) -> bool:
        summaries = set(window.summaries)
        first = next((index for part in self.keep for index in range(*part) if index not in summaries), len(window))
        cut = next((part.start for part in window.exchanges() if part.start <= first), 0)
        return self.keep in (window.kept_from(cut), window.kept_from(cut, pinned=False))

    def _check_pairs(self, window: Window) -> None:
        pairs: CallPairs[int] = CallPairs()
        for part, after in pairwise([*self.keep, Range(len(window), len(window))]):
            for block in window.blocks([part]):
                if pairs.read(block, part.start) is None and isinstance(block, ToolResult):
                    self._check_orphan(window, block.call_id, part.start)
            # A call still waits for its result, which must not be in the next removed range.
            removed = window.blocks([Range(part.stop, after.start)]) if pairs.open else ()
            if separated := pairs.open.keys() & {block.call_id for block in removed if isinstance(block, ToolResult)}:
                self._break("tool pairs whole", f"call {min(separated)!r} stays, and its result goes")

    def _check_orphan(self, window: Window, call_id: str, before: int) -> None:
        """Raise if a result stays without its call, unless the conversation had no call for it in the first place."""
        removed = window.blocks(overlap(self._removed(window), [Range(0, before)]))
        if any(isinstance(block, ToolUse) and block.call_id == call_id for block in removed):
            self._break("tool pairs whole", f"the result of call {call_id!r} stays, and the call would be removed")

    def _check_valid(self, window: Window) -> None:
        summary = [Summary(text="A summary.")] if self.summary else []
        after = refusals([*summary, *window.blocks(self.keep)])
        before = refusals(window.blocks([Range(0, len(window))])) if after else {}
        if new_refusals := sorted(set(after) - set(before)):
            self._break("valid for providers", str(after[new_refusals[0]]))


def refusals(blocks: Sequence[Block]) -> dict[str, InvalidRequestError]:
    """Return the providers that would refuse the blocks, and why. A prompt is added if the model spoke last."""
    sent_blocks = [block for block in blocks if CHAT.sends(block) or isinstance(block, ToolUse)]
    prompt = [User(text="Go on.")] if not sent_blocks or sent_blocks[-1].role == "assistant" else []
    messages = messages_of([*blocks, *prompt])
    errors: dict[str, InvalidRequestError] = {}
    for rules in (CHAT, RESPONSES, ANTHROPIC):
        try:
            check(messages, rules)
        except InvalidRequestError as error:
            errors[rules.name] = error
    return errors


def plan_for(
    window: Window,
    budget: TokenBudget,
    *,
    strategy: str,
    keep: Ranges,
    reason: str,
    summary: SummaryTask | None = None,
    flush: FlushTask | None = None,
    otherwise: OverflowStrategy | None = None,
) -> Plan:
    """Return the plan that keeps these ranges, with token counts and reasons.

    Args:
        reason: why the rest is removed.
    """
    fate: Literal["summarised", "flushed", "dropped"] = "summarised" if summary else "flushed" if flush else "dropped"
    removed = gaps(keep, Range(0, len(window)))
    reasons = [Reason(part, fate, window.tokens(*part), reason) for part in removed if window.without(part, System)]
    if window.system is not None:
        system = Range(window.system, window.system + 1)
        reasons.append(Reason(system, "kept", window.system_tokens, "it is the system prompt"))
    for part in keep:
        is_summary = part.stop <= window.newest.start and not window.without(part, Summary)
        reason_to_keep = "it is a summary" if is_summary else "it is newer, and fits"
        reasons.append(Reason(part, "kept", window.tokens(*part), reason_to_keep))
    return Plan(
        strategy=strategy,
        keep=keep,
        summary=summary,
        flush=flush,
        reasons=tuple(reasons),
        tokens_before=window.taken(budget),
        tokens_after=_request_tokens(window, budget, keep, summary),
        otherwise=otherwise,
    )


def _tokens(window: Window, ranges: Ranges) -> int:
    return sum(window.tokens(*part) for part in ranges)


def _request_tokens(window: Window, budget: TokenBudget, keep: Ranges, summary: SummaryTask | None) -> int:
    summary_tokens = summary.max_tokens if summary else 0
    return budget.overhead + window.system_tokens + _tokens(window, keep) + summary_tokens
