"""Other ways to learn from data of several holders, to compare the travelling accelerator with.

``data`` sends the data to where the model is, ``model`` sends the model to where the data are, and
``gradient`` sends gradients, step by step. Each keeps its sessions open and asks ahead where it
can, so that what is compared is the way and not its neglect. No command offers them.
"""
