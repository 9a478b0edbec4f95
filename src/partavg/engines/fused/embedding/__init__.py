"""Embeddings: rows of a table for each worker."""
