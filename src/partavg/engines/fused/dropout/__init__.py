"""Dropout, with the masks that the other engines draw."""
