"""`turnwise doctor`: looks for what may be wrong, and says what to do.

`command` looks at each part in turn; `process_facts` are what a process finds where it runs, here or on a node of Ray.
Import from these modules.
"""
