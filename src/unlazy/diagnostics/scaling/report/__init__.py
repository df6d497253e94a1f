"""Figures and the page of a scaling check."""
