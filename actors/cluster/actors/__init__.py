"""The actors: what Ray needs of hosts, whose bodies are plain classes of `turnwise.actors.hosting`.

`actor_lookup.py` and `runtime.py` of the folder above start them. Import each name from the module that defines it.
"""
