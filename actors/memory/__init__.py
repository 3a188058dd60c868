"""Long-term memory as one session uses it. Imports no Ray.

`session`, `cluster`, `hosting` and `client` import from the modules here; programs import `MemoryConfig` from
`turnwise`. The memories themselves are in `turnwise.memory.longterm`.
"""
