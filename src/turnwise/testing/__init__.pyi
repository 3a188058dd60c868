from turnwise.testing.faults import FaultPlan as FaultPlan, Faults as Faults
from turnwise.testing.faulty_engine import FaultyEngine as FaultyEngine
from turnwise.testing.faulty_store import FaultyStore as FaultyStore
from turnwise.testing.fixtures.frozen_clock import FrozenClock as FrozenClock
from turnwise.testing.fixtures.make_manager import MakeManager as MakeManager
from turnwise.testing.local_provider.assistant import assistant_reply as assistant_reply
from turnwise.testing.local_provider.embeddings import embed as embed
from turnwise.testing.local_provider.http_protocol import RecordedRequest as RecordedRequest
from turnwise.testing.local_provider.replies import (
    Message as Message,
    Reply as Reply,
    Step as Step,
    attentive_reply as attentive_reply,
    default_reply as default_reply,
    tool_script as tool_script,
)
from turnwise.testing.local_provider.server import LocalProvider as LocalProvider
from turnwise.testing.loop import VirtualLoop as VirtualLoop
from turnwise.testing.schedules import explore as explore, spread as spread
from turnwise.testing.scripted_engine import (
    Pause as Pause,
    RecordingEngine as RecordingEngine,
    ScriptedAnswer as ScriptedAnswer,
    ScriptedEngine as ScriptedEngine,
)
from turnwise.testing.world import World as World
