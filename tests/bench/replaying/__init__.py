"""The part `replay` of the bench: a store of many conversations, the floor, and replays at scale."""
