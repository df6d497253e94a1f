"""Test workers share the cores: one thread of PyTorch each."""

import importlib.util

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)
