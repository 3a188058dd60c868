"""Sets to learn from: the conversations of a store as examples for training a model.

Programs import `Examples` and `Selection` from `turnwise.dataset`. `selection.py` says what is chosen; `turns.py` reads
the turns that may come along; `pairs.py` finds better and worse answers; `messages.py` makes messages in the formats of
OpenAI and Hugging Face; `reading.py` reads a store; `files.py` and `tables.py` write. Only the command line imports
from here.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
