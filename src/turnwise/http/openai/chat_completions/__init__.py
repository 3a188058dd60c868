"""Chat completions, stateless or in a session.

`chat.py` is the route. `completion_request.py` has what a request may say, `messages.py` reads messages into blocks,
`new_messages.py` finds what of them is new in a session, and `completions.py` shows a run as a completion.

Programs import nothing from here: `turnwise.http.app` includes the route.
"""
