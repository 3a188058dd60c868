"""One session: its state, its transactions, its runs, its window, its memories. Imports no Ray."""
