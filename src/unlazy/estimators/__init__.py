"""scikit-learn faces and safe persistence."""
