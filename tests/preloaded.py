"""What processes that are forked for tests begin with, or each would do it for itself."""

import gc
import os

import numpy.ma  # noqa: F401
import pydantic.fields  # noqa: F401
import torch._dynamo  # by optimizers
import torch.fx.experimental.symbolic_shapes  # by vmap
import torch.utils.serialization.config  # noqa: F401

import partavg.backends.stragglers
import partavg.cli.drive
import partavg.cli.job
import partavg.cli.reproduce_report
import partavg.cli.sweeping
import partavg.flower.run
import partavg.report
import partavg.sinks.progress
import partavg.sweeps.of_recipe  # noqa: F401
from partavg.data.fashion_subset import unpacked
from partavg.engines import race

unpacked()
race._MOMENT = 0.02  # these two as in conftest.py
os.fsync = lambda descriptor: None
gc.freeze()
