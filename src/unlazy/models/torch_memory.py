"""How much memory can be used without raising the peak of the process."""

import sys

import torch

if sys.platform != "win32":
    import resource


def spare_bytes(device: torch.device) -> int:
    """Bytes by which the peak of memory so far exceeds what is in use now; any number where that is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu" and sys.platform == "linux":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[1]) * resource.getpagesize()
        return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - used)
    return sys.maxsize
