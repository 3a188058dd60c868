"""Imports what a process of sessions needs, before it has one: Ray does so in each of its processes, if it is told.

    RAY_preload_python_modules=turnwise.preload ray start --head

A session that gets such a process answers a quarter of a second earlier. Each process takes some 20 MB more, also one
that never has a session.
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
