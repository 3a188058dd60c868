"""The part `prefix` of the bench: which share of their requests servers find in their caches."""
