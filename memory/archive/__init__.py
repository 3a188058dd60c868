"""Archives of sessions as lines of JSON: export, checked import, and archiving of expired sessions."""
