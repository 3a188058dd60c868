"""What is remembered: blocks, turns, events, and the stores that keep them. Imports nothing above `turnwise.errors`."""
