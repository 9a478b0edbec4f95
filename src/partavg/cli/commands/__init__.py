"""What each command takes and says of itself.

Nothing here imports torch: help, completion and mistyped options answer at once. A command imports
the module that does its work, of the same name in `partavg.cli`, when it is run.
"""
