"""`VectorMemory`: items in a SQLite file, found by words and by vectors in Chroma."""
