"""Reading tables: file formats, column types, leakage and the encoded table a study runs on."""
