"""Partial model averaging for federated learning and local SGD."""
