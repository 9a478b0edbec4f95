"""Partial averaging on tensors: no modules, no files, no processes, no randomness of its own."""
