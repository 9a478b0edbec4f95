"""Engines: the losses and gradients of all workers from their rows."""
