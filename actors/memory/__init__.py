"""Long-term memory as one session uses it. Imports no Ray."""
