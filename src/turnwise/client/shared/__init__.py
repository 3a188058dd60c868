"""What the two families of the client share: how requests are written, and how answers and errors are read.

The modules here ask nobody. Only `turnwise.client` imports from here.
"""
