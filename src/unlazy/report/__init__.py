"""Records to figures, tables and one page."""
