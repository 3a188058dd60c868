"""How items are found: the analysis of text, the query, the ranking. All memories share it."""
