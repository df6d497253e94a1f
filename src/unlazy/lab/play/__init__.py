"""An interactive page: training of a kernel machine, lazy and rich networks, sample complexity."""
