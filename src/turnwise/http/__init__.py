"""The service: turnwise over HTTP, as an ASGI app. Install it with `turnwise[http]`.

`app.py` puts the app together; `service.py` is what its requests share; `auth.py` says whose request it is;
`sessions.py` and its neighbours are the native API under `/v1`; `openai/` is OpenAI's dialect under `/openai/v1`.
Nothing here can do what the Python API cannot: each request is a few calls of an `AsyncSessionManager`.
Public names are imported from `turnwise.http`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
