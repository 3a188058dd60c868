"""An agent of Pydantic AI in a session: a payment waits for an approval, which another program could give days later.

    pip install 'turnwise[pydantic-ai]'
    python examples/adapters/pydantic_ai_agent.py

A model of Pydantic AI that calls each tool once answers, so no key and no network is needed.
"""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from turnwise import Packed, SessionManager
from turnwise.adapters import PydanticAIEngine, to_pydantic_ai

agent = Agent(TestModel(custom_output_text="It is paid."), name="clerk")


@agent.tool_plain(requires_approval=True)
def pay(euros: int) -> str:
    """Pay a bill."""
    return f"paid {euros} euros"


with SessionManager("memory://bills", engine=PydanticAIEngine(agent), placement=Packed(hosts=1)) as manager:
    session = manager.open("bills")
    run = session.run("Pay the bill of the printer.")
    for event in run.events():
        if event.kind == "approval_requested":
            print(f"{event.name} waits for an approval")
            run.approve(event.call_id, input={"euros": 70})
    turn = run.wait()
    print(f"{turn.text} ({', '.join(block.kind for block in turn.output)})")
    print(f"The history has {len(to_pydantic_ai(turn))} messages for message_history=")
