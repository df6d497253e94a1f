"""Reports of a comparison: summary, tables, figures and a self-contained HTML page."""
