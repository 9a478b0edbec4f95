"""Partial averaging in the frameworks people train with; see docs/frameworks.md.

Each module imports its framework, so none is imported here: take `PartialAveraging` from
`partavg.integrations.huggingface` or `partavg.integrations.accelerate`, `PartialAveragingStrategy`
from `partavg.integrations.lightning`.
"""
