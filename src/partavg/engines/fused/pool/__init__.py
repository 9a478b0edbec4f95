"""Pooling: the samples of all workers are one batch."""
