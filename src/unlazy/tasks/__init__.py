"""Distributions that know their answer."""
