"""turnwise: LLM conversations and agents as concurrent, durable sessions on Ray.

Import the names that a first program and an agent need from here, and the others from `turnwise.errors`,
`turnwise.events`, `turnwise.blocks`, `turnwise.results`, `turnwise.stores`, `turnwise.memories`, `turnwise.engines`,
`turnwise.strategies`, `turnwise.transcripts`, `turnwise.dataset`, `turnwise.replay`, `turnwise.adapters`,
`turnwise.http`, `turnwise.client`, `turnwise.console`, `turnwise.telemetry`, `turnwise.conformance` and
`turnwise.testing`.
"""

from turnwise._exports import exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = exports(__name__, __file__)
