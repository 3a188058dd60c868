"""The event streams of chat front ends: AG-UI, and the Vercel AI SDK's UI message stream.

`answers` says what a run's events mean for somebody who watches the answer, and where each piece is, so that a stream
can be cut anywhere; an encoder for each protocol says it in the protocol's words. All of it is pure but for
`stream`, which reads a run. Routes of `turnwise.http` serve both. Programs import the names from `turnwise.adapters`.
"""
