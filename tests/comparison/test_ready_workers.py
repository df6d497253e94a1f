"""Workers of a comparison are ready when its table is, and end with it."""

import os
import sys

import pytest

from unlazy.comparison.study.workers import PRELOADED_MODULES, start_workers


@pytest.mark.slow
def test_workers_import_before_their_first_task():
    """What cannot be imported is left to the trial that wants it; workers that were never asked end too."""
    with start_workers("local", 1) as engine:
        engine.prepare("colorsys", "no_such_module")
        modules, worker = engine.attempt([lambda: set(sys.modules), os.getpid], [0, 1], None)
        assert {"colorsys", *PRELOADED_MODULES} <= modules
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    with pytest.raises(ZeroDivisionError), start_workers("local", 2):
        1 / 0  # noqa: B018
    with start_workers(engine) as same:
        assert same is engine
