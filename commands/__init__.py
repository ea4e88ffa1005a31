"""The verbs of the command line: each module is the body of one group of commands; `starter.py` gives them their names."""
