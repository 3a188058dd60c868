"""What lives on the cluster: sessions, their actors and handles, inference. The only folder that imports ray.

Rooms build on each other in this order: inference, memory, session, cluster, hosting, client. Import a name from the
module that defines it, such as `turnwise.actors.session.state.state`.
"""
