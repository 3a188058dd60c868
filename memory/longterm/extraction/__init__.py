"""`ExtractiveMemory`: facts that a model finds in what a user said, judged before they are kept."""
