"""Step 2 of the tutorial: an agent with tools, one of which waits until a person approves its call.

    pip install turnwise
    python step2_agent.py
    python step2_agent.py approve

Its page is docs/tutorial/agent.md.
"""

import sys

from turnwise import InProcess, OpenAIEngine, SessionManager, tool
from turnwise.testing import LocalProvider, tool_script


@tool
def bill(month: str) -> dict[str, int]:
    """Return the bill of a month."""
    return {"euros": 75}


@tool(approval=True)  # or lambda arguments, context: arguments["euros"] > 50
def pay(euros: int) -> str:
    """Pay the bill."""
    return f"paid {euros} euros"


script = tool_script([[("bill", {"month": "May"})], [("pay", {"euros": 75})], "It is paid."])
with LocalProvider(reply=script) as provider:  # a stand-in; with a real model, leave it and base_url out
    engine = OpenAIEngine("local", base_url=provider.base_url, tools=[bill, pay])
    with SessionManager("sqlite:///tutorial.db", engine=engine, placement=InProcess()) as manager:
        chat = manager.open("bills", user_id="sarah")
        waiting = [record.run_id for record in chat.runs() if record.state == "awaiting_approval"]
        run = chat.execution(waiting[0]) if waiting else chat.run("Pay the bill of May.")
        if not waiting:
            next(event for event in run.events() if event.kind == "approval_requested")
        (call,) = run.pending()
        print(f"It wants to call {call.name} with {dict(call.input)}.")
        if "approve" in sys.argv:
            run.approve(call.call_id)  # or: run.reject(call.call_id, "ask again in June")
            print(run.wait().text, [step.name for step in run.steps() if step.kind == "tool"])
