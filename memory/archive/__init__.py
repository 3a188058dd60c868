"""Sessions as lines of JSON: export, import with all checks, and the archive of sessions that have expired."""
