"""Experiments: run them over their grids, store every finished trial, resume interrupted runs."""

from unlazy.lab.runner.catalog import all_experiments, find, own_experiments
from unlazy.lab.runner.engines import open_engine
from unlazy.lab.runner.run import Interrupted, load, run
from unlazy.lab.runner.store import Store

__all__ = ["Interrupted", "Store", "all_experiments", "find", "load", "open_engine", "own_experiments", "run"]
