"""The console: pages for people, mounted into the service. Install it with `turnwise[console]`.

`app.py` mounts it; `gate.py` asks who is there before any page or websocket is answered; each page is a
file. Pages show what is stored as text only: `text.py` makes control characters visible, and `tags.py` makes elements
from texts. Nothing here can do what the Python API cannot. Import public names from `turnwise.console`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
