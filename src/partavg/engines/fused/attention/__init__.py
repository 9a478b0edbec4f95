"""Attention: alone, with heads of its own, and in an encoder's layer."""
