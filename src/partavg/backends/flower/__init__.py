"""Real clients over a real network: one row per client, Flower carries the messages."""

try:
    import flwr as flwr
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        "partavg.flower needs Flower, which is not installed: pip install 'partavg[flower]'"
    ) from error
