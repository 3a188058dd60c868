"""The OpenAI Agents SDK: an agent answers a durable session, and waits there until somebody approves a payment.

    pip install 'turnwise[openai-agents]'; python examples/adapters/agents_sdk_agent.py

A simulated model answers.
"""

from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

from turnwise import SessionManager
from turnwise.adapters import AgentsSDKEngine
from turnwise.testing import LocalProvider, tool_script


@function_tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay the hotel."""
    return f"{euros} euros were paid"


def main() -> None:
    with LocalProvider(reply=tool_script([[("pay", {"euros": 700})], "The hotel is paid."])) as provider:
        url = provider.base_url

        def make() -> Agent:  # called where the session runs, since a client cannot travel
            client = AsyncOpenAI(base_url=url, api_key="local-key")
            return Agent(name="Clerk", tools=[pay], model=OpenAIChatCompletionsModel("local", client))

        with SessionManager("memory://clerks", engine=AgentsSDKEngine(make)) as manager:
            run = manager.open("hotel", user_id="sarah").run("Pay the hotel.")
            call = next(event for event in run.events() if event.kind == "approval_requested")
            print(f"waits for {call.name}({dict(call.input)})")
            manager.execution(run.run_id, user_id="sarah").approve(call.call_id)  # from any process, after any restart
            print(run.wait().text)


if __name__ == "__main__":
    main()
