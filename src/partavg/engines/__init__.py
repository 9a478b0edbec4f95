"""Engines: the losses and gradients of all workers from their rows."""

ENGINES = ("auto", "looped", "vmapped")
