"""Step 5 of the tutorial: a lead that calls agents, and begins by itself when a timer says so.

    pip install turnwise
    python step5_team.py

Its page is docs/tutorial/team.md.
"""

from turnwise import InProcess, SessionConfig, SessionManager, Turn
from turnwise.blocks import ToolResult
from turnwise.engines import EngineBuilder, FunctionEngine, agent_tool
from turnwise.testing import ScriptedEngine


def research(turn: Turn) -> str:
    """Answer a task; a model would look something up."""
    (task,) = (block.text for block in turn.asked if block.kind == "user")
    return f"all about {task}"


researcher = agent_tool("researcher", engine="research", description="Finds out facts about one topic.")
calls = [("researcher", {"task": topic}) for topic in ("tides", "boats")]
engines: dict[str, EngineBuilder] = {
    "lead": ScriptedEngine([calls, "The report is done."], tools=[researcher]),  # a model would choose its calls
    "research": FunctionEngine(research),
}
config = SessionConfig(on_lost="resume")  # what is under way when the program is killed goes on in the next one

with SessionManager("sqlite:///tutorial.db", engine=engines, placement=InProcess(), config=config) as manager:
    chat = manager.open("report", user_id="sarah")
    chat.schedule("Write the report.", after_s=1.0, key="report")  # a second program with this key changes nothing
    seen, is_done = 0, False
    while not is_done:
        for event in chat.events(seen, wait_s=30.0):  # of whatever happens in the session, whoever began it
            seen = event.seq
            if event.kind == "call_decided":
                print("The lead has heard from an agent.")
            is_done |= event.kind == "run_completed"
    (turn,) = chat.turns()
    print([block.text for block in turn.output if isinstance(block, ToolResult)], turn.text)
    print("Sessions of agents:", [session.session_id for session in manager.list(agents=True) if session.called_by])
