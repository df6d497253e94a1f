"""Programs on several devices of the CPU, in one process or two; they print "fine" at their end."""

import os
import socket
import subprocess
import sys


def environment(devices):
    """The caller's, with so many devices."""
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return kept | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}


def two_processes(program, timeout):
    """`program(start)` in two processes with a device each, which `start` joins; both must end well."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    start = f'jax.distributed.initialize("127.0.0.1:{port}", num_processes=2, process_id=int(sys.argv[1]))'
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program(start), str(i)], env=environment(1), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        for process in both:
            out, err = process.communicate(timeout=timeout)
            assert process.returncode == 0 and "fine" in out, err[-3000:]
    finally:
        for process in both:
            process.kill()
