"""Routes for chat front ends: the Vercel AI SDK's `useChat`, and clients of AG-UI.

The session has the history: of a request, only the newest message of the user and answers to calls that wait are used.
Nothing is stored for the dialects but the message's id, as the turn's. Programs import nothing
from here: `turnwise.http.app` includes the routes.
"""
