"""A Claude model that thinks, calls a tool and reads its own cache; the next turn goes on from its signed thoughts.

    pip install 'turnwise[anthropic]'
    python examples/adapters/anthropic_model.py

Without an ANTHROPIC_API_KEY, a simulated model answers.
"""

import os
from contextlib import ExitStack

from turnwise import Packed, SessionManager, tool
from turnwise.adapters import AnthropicEngine
from turnwise.testing import LocalProvider, tool_script


@tool
def depth(sea: str) -> str:
    """Look up how deep a sea is."""
    return f"The {sea} sea is 55 m deep on average."


SCRIPT = tool_script([[("depth", {"sea": "Baltic"})], "It is 55 m deep."], reasoning="I should look that up.")

with ExitStack() as stack:
    url = None
    if "ANTHROPIC_API_KEY" not in os.environ:
        url = stack.enter_context(LocalProvider(reply=SCRIPT)).anthropic_url
    engine = AnthropicEngine("claude-sonnet-4-5", base_url=url, thinking=2048, cache="5m", tools=[depth])
    manager = stack.enter_context(SessionManager("memory://seas", engine=engine, placement=Packed(hosts=1)))
    session = manager.open("seas")
    for prompt in ("How deep is the Baltic sea?", "Are you sure?"):
        run = session.run(prompt)
        turn = run.wait()
        kinds, usage = [block.kind for block in turn.output], run.info().usage
        print(f"{turn.text} ({', '.join(kinds)}; {usage.cached_tokens if usage else 0} tokens were cached)")
