"""Tools that a model may call: how they are declared, run, and recorded.

Programs import `tool` from `turnwise`, and the rest from `turnwise.engines` and `turnwise.memories`. Engines and
`adapters` import from the modules here: `tool.py` declares, `registry.py` runs, `loop.py` calls the model and the
tools in turn.
"""
