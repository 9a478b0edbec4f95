"""Backends: where the workers are."""
