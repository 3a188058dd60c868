"""Imports what a process of sessions needs. Ray does so in each of its processes, before it has anything to do, if told:

    RAY_preload_python_modules=turnwise.preload ray start --head

A session that gets such a process answers a quarter of a second earlier. Each takes about 20 MB more, also those of others.
"""

import importlib

from turnwise.memory.values.collection_pauses import importing

MODULES = (
    "turnwise.actors.cluster.actors.session_actor",
    "turnwise.actors.cluster.actors.packed_actor",
    "turnwise.actors.cluster.dispatcher_process",
    "turnwise.actors.cluster.runtime",
    "turnwise.actors.hosting.dedicated_host",
    "turnwise.memory.stores.sql.store",
)

with importing(MODULES[-1]):
    for name in MODULES:
        importlib.import_module(name)
