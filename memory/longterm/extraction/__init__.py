"""`ExtractiveMemory`: facts that a model extracts from a user's messages, verified before they are stored."""
