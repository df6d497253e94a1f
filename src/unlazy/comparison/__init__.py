"""Does feature learning pay on my data? Tables in; a verdict with its evidence, a page and a saved model out."""
