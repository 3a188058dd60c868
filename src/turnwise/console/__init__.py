"""The console: pages for people, mounted into the service. Install it with `turnwise[console]`.

`app.py` mounts it; `access/` asks who is there before it answers a page or a websocket; `pages/` has a file for each
page, made of `elements/`. Pages show stored texts as text only, never as HTML or Markdown. Whatever the console does,
the Python API does too. Import public names from `turnwise.console`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
