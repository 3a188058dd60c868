"""The service: turnwise over HTTP, as an ASGI app. Install it with `turnwise[http]`.

`app.py` puts the app together; `service.py` has what its requests share; `auth.py` finds the user of a request;
`native/` is the API under `/v1`, `openai/` OpenAI's under `/openai/v1`, `front_ends/` those of chat front ends;
`middleware/` refuses requests before a route; `server/` is the process. Each request is a few calls of an
`AsyncSessionManager`. Import public names from `turnwise.http`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
