"""Federated training with Flower: `client_app` and `server_app` make the two halves of an app.

See docs/flower.md; `partavg flower new DIR` writes an app to start from.
"""

try:
    import flwr as flwr
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        "partavg.flower needs Flower, which is not installed: pip install 'partavg[flower]'"
    ) from error

from partavg.flower.app import client_app, server_app
from partavg.flower.own_loop import LocalWork

__all__ = ["LocalWork", "client_app", "server_app"]
