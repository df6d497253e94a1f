"""Running experiments: sweeps, engines, the store of finished trials, resuming."""
