"""The pure core of Effect Ledger: what an operation is, which moves are legal, what may be done next.

No I/O and no clock, but for the package `store` inside it, which holds all the SQL.
"""
