"""Pydantic AI runs, and turnwise keeps its messages: a conversation that any process goes on with, or branches.

    pip install 'turnwise[pydantic-ai]'; python examples/adapters/pydantic_ai_history.py

A test model answers.
"""

import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from turnwise import SessionManager
from turnwise.adapters import MessageHistory
from turnwise.engines import NoAnswer

agent = Agent(TestModel(custom_output_text="It is in Paris."))


@agent.tool_plain
def where(tower: str) -> str:
    """Return where a tower is."""
    return f"{tower} is in Paris"


if __name__ == "__main__":
    with SessionManager(f"sqlite:///{Path(tempfile.mkdtemp(), 'chats.db')}", engine=NoAnswer()) as manager:
        history = MessageHistory(manager.open("sarah"))
        for question in ("Where is the tower?", "And the other?"):
            history.save(agent.run_sync(question, message_history=history.load()))
        print([turn.text for turn in manager.open("sarah").turns()])
        earlier = MessageHistory(manager.open("sarah").fork(at=0))  # after the first answer
        print(f"{len(history.load())} messages, and {len(earlier.load())} in the branch")
