"""Client-level differential privacy: its settings, what it costs, and what was spent."""
