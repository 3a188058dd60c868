"""The peers: a module for each library, which does what `peers.peer` says.

Each imports its library when it is made: a peer's process has no other.
"""
