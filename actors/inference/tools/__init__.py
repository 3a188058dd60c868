"""Tools that a model may call: how they are declared, run, and recorded."""
