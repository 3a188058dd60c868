"""What the pages of the console are made of: the frame, the style sheet, dialogs, blocks, and texts as elements.

Pages import from here. `text.py` does not need NiceGUI, and the command line imports from it too.
"""
