"""Federated training with Flower: `client_app` and `server_app` make the two halves of an app.

See docs/flower.md; `partavg flower new DIR` writes an app to start from.
"""

import partavg.backends.flower  # noqa: F401  # says how to install Flower where it is missing
from partavg.flower.client import client_app
from partavg.flower.server import server_app

__all__ = ["client_app", "server_app"]
