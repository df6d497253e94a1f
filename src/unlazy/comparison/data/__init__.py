"""Input tables: file formats, column types, leakage checks and the table that a study runs on."""
