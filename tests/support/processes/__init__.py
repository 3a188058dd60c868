"""Processes: Ray's workers as forks, clusters, packed hosts, and programs as users run them.

Some of it is run by its path: `fork_server.py`, `forked_worker.py`, `large_settings.py` and `local_cluster.py`.
"""
