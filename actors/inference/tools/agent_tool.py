"""`agent_tool`: a tool whose call is a session of its own, in which another engine answers."""

from __future__ import annotations

import inspect

from turnwise.actors.inference.tools.signature import known_schema
from turnwise.actors.inference.tools.tool import AgentSettings, OnLostAgent, Tool
from turnwise.memory.conversation.memory_use import MemoryUse

_PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "pattern": "\\S",
            "description": "What the agent is to do. It sees nothing of this conversation, so say all that it needs.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


def agent_tool(
    name: str,
    *,
    description: str,
    engine: str | None = None,
    memory: MemoryUse = "off",
    timeout_s: float | None = None,
    max_depth: int = 3,
    max_calls: int = 16,
    background: bool = False,
    on_lost: OnLostAgent = "report",
    max_restarts: int = 3,
) -> Tool:
    """Return a tool by which a model gives a task to an agent: a session of the same user, with its own history.

    The run waits for the agent's answer without a process, as for an approval, while its other tools run. The model
    gets the answer as the call's result. If the agent fails, is cancelled or its process is lost, an error result says
    so. The call, the agent's run and its result happen once, whatever is killed. When the caller's run ends before, as
    by a cancel, the agent's run is cancelled, and so on down. For engines of turnwise's tool loop.

    Args:
        description: what the model is told about the agent.
        engine: which engine of the manager answers, by its name in `SessionManager(engine={name: engine})`; the first
            one if omitted.
        memory: how the agent's session uses long-term memory: see `AsyncSessionMemory.use`.
        timeout_s: the agent's run fails after so many seconds.
        max_depth: how deep agents may call agents: with 1, an agent's call of this tool gets an error result.
        max_calls: how many agents one run may call; further calls get an error result.
        background: the call's result is "started" and the agent's id, at once, and the run goes on. What the agent has
            answered comes as a message: before the next model call of the active run, else as the prompt of a new run.
            A run that completes leaves the agent at work; one that ends otherwise cancels it.
        on_lost: what happens if the agent's run is interrupted, as its process was lost and its session does not resume
            it. `report`: the result is an error, or the message says so. `restart`: another agent begins with the same
            task, in a session of its own, as long as the caller's run is open.
        max_restarts: how often that happens for one call.

    Raises:
        ConfigError: the name or a setting cannot be used.
    """
    return Tool(
        name=name,
        description=inspect.cleandoc(description),
        parameters=known_schema(name, _PARAMETERS),
        agent=AgentSettings(
            engine=engine,
            memory=memory,
            timeout_s=timeout_s,
            max_depth=max_depth,
            max_calls=max_calls,
            background=background,
            on_lost=on_lost,
            max_restarts=max_restarts,
        ),
    )
