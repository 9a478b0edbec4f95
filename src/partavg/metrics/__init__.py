"""What is measured during a run: the table of metrics, the moments they see, the meter."""
