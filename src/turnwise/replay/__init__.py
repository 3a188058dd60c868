"""Replays: stored turns are answered anew, by another model, prompt, strategy or memory, and compared.

`replay(manager, engine=...)` does it for the sessions of a store. Inside: `selecting.py` and `recorded.py` read turns;
`replaying.py` answers those of one conversation, with `context.py`, `tools.py`, `windows.py` and `recalling.py`;
`comparing.py`, `grading.py` and `statistics.py` say what differs; `writing.py` and `report.py` write it.
Import the names from `turnwise.replay`; nothing but the command line imports this room.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
