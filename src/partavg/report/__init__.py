"""Reports of runs."""
