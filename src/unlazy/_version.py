"""The version of this package, stored with every record."""

VERSION = "0.1.0"
