"""Sessions, the processes that host them, and their handles; inference. Of the rooms here, only `cluster` loads Ray.

Rooms build on each other in this order: inference, memory, session, dispatch, hosting, in_process, cluster, client;
`wire_version.py` is below all. Import a name from the module that defines it, such as
`turnwise.actors.session.state.state`.
"""
