"""A file per command: what it takes, what it says of itself, what it does.

Help, completion and mistyped options answer at once because nothing here imports torch: a command
imports what it works with when it is run. Long tables and texts have modules of their own in
`partavg.cli`.
"""
