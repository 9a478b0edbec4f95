"""Convolutions of all workers: the operation, its reference, five ways to compute it."""
