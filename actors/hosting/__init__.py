"""The processes of sessions: dedicated actors, packed hosts, and what the sessions of a process share."""
