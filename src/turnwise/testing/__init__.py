"""For your own tests and for turnwise's: a stand-in model provider, fault injection, and fixtures for pytest.

`import turnwise` does not import it. The names that most tests need are here; import the others from their modules:

- `pytest_plugin`: fixtures, which a test gets by their names; alone here, it needs pytest. They
  give a `FrozenClock`, time that only a test moves, and a `MakeManager`, the type of what makes managers;
- `local_provider`: `LocalProvider`, a server that speaks OpenAI's APIs without a model, and faults of such servers;
- `scripted_engine`: `ScriptedEngine`, an engine that gives the answers of a list, without a server; `RecordingEngine`
  also records what it was given;
- `loop`: `VirtualLoop`, an event loop with virtual time; `process`: a simulated process that can be killed at any step;
- `schedules`: `explore` and `spread` run a scenario under many seeds; a failure names its seed;
- `faults`: `FaultPlan` says which faults to inject; `Faults` injects and counts them;
- `faulty_store`, `faulty_url`: `FaultyStore` around any store, also by URL; `faulty_engine`: `FaultyEngine`;
- `world`: `World`, a session with all of these, and a caller that retries; `exhaust`: each fault at each point in turn;
- `acknowledged`: records what callers had acknowledged; `audit`: checks that a store still has it, and its invariants;
- `chaos`, with `workload`, `killers` and `report`: the same on Ray, with real processes.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
