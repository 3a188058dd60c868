"""What turnwise needs at which load: `make scale`, which writes docs/scale.md.

`measure.py` measures turns of packed sessions on this machine, in the environment of the tests. `model.py` says what a
turn costs each part, and simulates that, with what was measured at one host as its constants. `page.py` compares it
with the other measurements, and carries it to larger machines.
"""
