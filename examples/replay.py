"""Would another system prompt be better? Twenty stored conversations are answered anew, and compared.

    pip install turnwise
    python examples/replay.py                        the report is in the folder replay-report here

Nothing is written to the conversations, and their tool is not called again. A simulated model answers: no key.
"""

from typing import Any

from turnwise import Budget, InProcess, OpenAIEngine, SessionConfig, SessionManager, tool
from turnwise.replay import FunctionGrader, Selection, replay
from turnwise.testing import LocalProvider

CALLED: list[int] = []


@tool
def order(number: int) -> str:
    """Say where an order is."""
    CALLED.append(number)
    return f"order {number} arrives tomorrow"


def simulated(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer as a model would: ask the tool, then answer, at more length if the system prompt wants it."""
    if messages[-1]["role"] != "tool":
        arguments = f'{{"number": {messages[-1]["content"].split()[-1]}}}'
        return {"tool_calls": [{"id": f"call_{len(messages)}", "function": {"name": "order", "arguments": arguments}}]}
    is_kind = "kind" in messages[0]["content"]
    thanks = "Thank you for asking. " if is_kind else ""
    more = " Is there anything else that I can do for you?" if is_kind else ""
    return {"content": f"{thanks}Your {messages[-1]['content']}.{more}"}


def main() -> None:
    with LocalProvider(reply=simulated) as provider:
        then, now = (
            OpenAIEngine("local", base_url=provider.base_url, system=system, tools=[order])
            for system in ("Be brief.", "Be brief, and kind.")
        )
        config = SessionConfig(run_budget=Budget(tokens=10_000))
        with SessionManager("sqlite:///shop.db", engine=then, placement=InProcess(), config=config) as manager:
            for number in range(20):
                chat = manager.open(f"customer-{number}", user_id=f"user-{number}")
                chat.run(f"Where is order {number}", labels={"about": "order"}).wait()
            called = len(CALLED)
            result = replay(
                manager,
                engine=now,
                floor=then,
                select=Selection(labels={"about": "order"}, sample=15, seed=1),
                graders=[FunctionGrader("thanks", lambda turn, answer: "Thank" in answer.text)],
                out="replay-report",
                fail_if="output_tokens > 1.5x or refusals > +1%",
            )
        metrics = result.summary.all.metrics
        print(f"{result.summary.turns} turns, {len(CALLED) - called} calls of the tool")
        print(f"different answers: {metrics['different'].replayed:.0%}, by chance {metrics['different'].floor:.0%}")
        ratio = metrics["output_tokens"].ratio
        print(f"tokens out: {ratio.value:.2f}x, between {ratio.low:.2f}x and {ratio.high:.2f}x")
        print(f"thanks: {metrics['thanks'].replayed:.0%}, then {metrics['thanks'].floor:.0%}")
        print(f"failed, since {' and '.join(result.failed)}: open {result.files['report']}")


if __name__ == "__main__":
    main()
