"""One verb a file: read facts, call a pure function, write facts. Every activity is safe to run twice at the same moment."""
