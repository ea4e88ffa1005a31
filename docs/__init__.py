"""The documents, and the program that writes the parts of them that follow from the code."""
