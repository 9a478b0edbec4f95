"""Rotary positions: pairs of columns turned by an angle."""
