"""`Summarize`: replaces the older exchanges by a model's summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnwise.errors import ConfigError
from turnwise.memory.values.checked_settings import NotBlank, PositiveCount, Share, checked_settings
from turnwise.memory.values.required_arguments import needs
from turnwise.strategies.plan import Plan, plan_for
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.summary_task import PROMPT, SummaryTask
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window

_LEAST = 64
"""The least tokens of a useful summary. With less room, no model is called."""


@needs(model="pass the engine that writes the summaries, such as OpenAIEngine('gpt-5-mini')")
@dataclass(frozen=True)
@checked_settings("Summarize.")
class Summarize:
    """Above `trigger_ratio` of the window, replaces the previous summary and the older exchanges by a new summary.

    So each block is summarized once, and the summary grows with the conversation. Summarized blocks stay in the log. If
    the model returns no valid summary, or no summary would fit, the window does not change; once it is over its budget,
    `otherwise` decides.
    """

    model: Any
    """The engine that writes the summary, an `EngineBuilder`. A small model is enough."""
    trigger_ratio: Share = field(default=0.8, kw_only=True)
    """The fill of the window that triggers a summary, as a share of its budget, above 0 and up to 1."""
    keep_turns: PositiveCount = field(default=2, kw_only=True)
    """How many of the newest exchanges stay unchanged; fewer if they alone would trigger a summary again."""
    keep_tokens: PositiveCount | None = field(default=None, kw_only=True)
    """The most tokens of the exchanges that stay. The newest stays even if it takes more."""
    max_summary_tokens: PositiveCount = field(default=1000, kw_only=True)
    """The most tokens of the summary."""
    model_window: PositiveCount | None = field(default=None, kw_only=True)
    """The most tokens of one request to the model, its answer included; if left out, the model's limit, if known.
    Longer text is summarized in parts."""
    prompt: NotBlank = field(default=PROMPT, kw_only=True)
    """The instructions to the model."""
    otherwise: OverflowStrategy = field(default=Trim(), kw_only=True)
    """The strategy to use if a summary cannot make the request fit."""

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        """Also raises ConfigError if the kept exchanges and the summary would trigger the next summary at once."""
        if window.taken(budget) <= self._trigger(budget):
            return None
        plan = self._plan(window, budget)
        if plan or window.taken(budget) <= budget.max_tokens:
            return plan
        return self.otherwise.decide(window, budget)

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return window.taken(budget) > self._trigger(budget) and self._plan(window, budget) is not None

    def _trigger(self, budget: TokenBudget) -> int:
        trigger = int(budget.max_tokens * self.trigger_ratio)
        name = "max_summary_tokens" if self.keep_tokens is None else "keep_tokens"
        if (self.keep_tokens or 0) + self.max_summary_tokens > trigger:
            room = f"the trigger, {trigger} of {budget.max_tokens}"
            reason = f"the kept exchanges and a summary of {self.max_summary_tokens} tokens must stay under {room}"
            raise ConfigError(f"Summarize.{name}", getattr(self, name), reason)
        return trigger

    def _plan(self, window: Window, budget: TokenBudget) -> Plan | None:
        cut = self._cut(window, budget)
        tokens = window.tokens(0, cut)
        if tokens == window.summary_tokens(cut):
            return None
        rest = budget.overhead + window.system_tokens + window.tokens(cut)
        max_tokens = min(self.max_summary_tokens, budget.max_tokens - rest, tokens - 1)
        if max_tokens < min(_LEAST, self.max_summary_tokens):
            return None
        task = SummaryTask(
            ranges=(Range(0, cut),),
            max_tokens=max_tokens,
            model=self.model,
            model_window=self.model_window,
            prompt=self.prompt,
        )
        return plan_for(
            window,
            budget,
            strategy="Summarize",
            keep=window.kept_from(cut, pinned=False),
            summary=task,
            reason=f"it is oldest, and a request is to take less than {self._trigger(budget)} tokens",
            otherwise=self.otherwise,
        )

    def _cut(self, window: Window, budget: TokenBudget) -> int:
        """Return the position at which the kept exchanges begin."""
        room = self._trigger(budget) - budget.overhead - window.system_tokens - self.max_summary_tokens
        if self.keep_tokens is not None:
            room = min(room, self.keep_tokens)
        cut = window.newest.start
        for number, exchange in enumerate(window.exchanges()):
            if number >= self.keep_turns or window.tokens(exchange.start) > room:
                break
            cut = exchange.start
        return cut
