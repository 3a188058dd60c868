"""A strategy of your own for conversations that outgrow the window: keep the first exchange, and the newest that fit.

    pip install turnwise
    python examples/custom_strategy.py

`Trim` would lose the beginning, where people say what they want. The example checks the laws of strategies first.
"""

from dataclasses import dataclass

from turnwise import EchoEngine, SessionConfig, SessionManager, blocks
from turnwise.conformance import check_strategy
from turnwise.strategies import ByteCounter, Plan, TokenBudget, Window, plan_for


@dataclass(frozen=True)
class KeepTheTask:
    """Removes exchanges after the first, the oldest first, until the request fits.

    A decision is pure: it depends on the window, the budget and these settings only. An exchange is a prompt with all
    that follows it up to the next prompt, so a tool result never loses its call. Summaries and the system prompt stay.
    """

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        """Return what to keep; None if all of it fits."""
        if window.taken(budget) <= budget.max_tokens:
            return None
        newest_first = list(window.exchanges())
        task = window.without(newest_first[-1], blocks.System, blocks.Summary) if len(newest_first) > 1 else ()
        for first_parts in (task, ()):  # if even the newest exchange does not fit beside the task, the task goes too
            room = budget.max_tokens - sum(window.tokens(*part) for part in first_parts)
            later = newest_first[:-1] if first_parts else newest_first
            if cuts := [part.start for part in later if window.tokens_from(part.start, budget) <= room]:
                keep = tuple(sorted([*first_parts, *window.kept_from(min(cuts))]))
                return plan_for(window, budget, strategy="KeepTheTask", keep=keep, reason="it is neither first nor new")
        raise window.overflow(budget)

    def due(self, window: Window, budget: TokenBudget) -> bool:
        """Return whether to compact beside the conversation although the window still fits: never."""
        return False


def main() -> None:
    check_strategy(lambda case: KeepTheTask(), range(300))
    print("KeepTheTask keeps the laws in 300 random conversations")
    config = SessionConfig(max_context_tokens=500, reserve_output_tokens=100, token_counter=ByteCounter())
    engine = EchoEngine()
    with SessionManager("memory://own-strategy", engine=engine, overflow=KeepTheTask(), config=config) as manager:
        chat = manager.open()
        chat.run("Plan a week in Lisbon for two, without a car.").wait()
        for number in range(12):
            chat.run(f"What about day {number}?").wait()
        prompts = [block.text for block in chat.run("Is it done?").wait().blocks if block.kind == "user"]
        print(f"the model was given {len(prompts)} of {len(chat.turns())} prompts:")
        print("\n".join(f"  {prompt}" for prompt in prompts))
        if plan := chat.compact(explain=True):
            print(plan)


if __name__ == "__main__":
    main()
