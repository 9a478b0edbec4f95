"""LSTM layers of all workers and both directions at once."""
