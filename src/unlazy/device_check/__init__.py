"""Check of this machine: every program that it would choose, against float64 (`unlazy check`, `check_device`)."""

from unlazy.device_check.check import CheckRow, DeviceCheck, check_device

__all__ = ["CheckRow", "DeviceCheck", "check_device"]
