"""A linear layer and the cross-entropy of its outputs, without all of them at once."""
