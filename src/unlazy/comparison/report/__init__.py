"""The comparison in words and figures: summary, tables and a self-contained HTML page."""
