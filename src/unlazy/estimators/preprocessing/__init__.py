"""Input validation, encoding and scaling shared by the estimators."""
