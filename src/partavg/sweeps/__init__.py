"""Sweeps: each scheme with its own best settings, chosen on validation samples, then tested."""
