"""One session: its state, its transactions, its runs, its window, its memories. Imports no Ray.

Words that this package uses:

- *change*: work that holds the session's lock. It decides, commits, and then changes the state in memory.
- *head*: the newest turn that has ended and was kept; the next turn continues it.
- *carried*: the compacted blocks that the next turn continues with, in place of the blocks that the turn was sent.
- *mark*: the index of the turn up to which every memory has all turns that it should have.
- *epoch*: a number of the session that each activation increases; the store refuses commits under an older one.
- *fenced*: a process is fenced once another one has activated the session; its calls raise `SessionFencedError`.
- *live event*: an event that is published to readers but not stored, such as a piece of the answer.
"""
