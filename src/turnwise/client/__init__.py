"""Sessions of a service over HTTP, for programs that are no node of its cluster: `RemoteManager`.

`manager.py`, `session.py`, `execution.py` and the modules beside them have the verbs of `turnwise.actors.client`, each
of which is a request or two; `connection.py` sends requests, repeats what may be repeated, and follows events.
`shared/` reads answers; `blocking/` is made from the modules here. Import public names from `turnwise.client`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
