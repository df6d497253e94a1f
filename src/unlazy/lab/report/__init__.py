"""Tables, figures and HTML pages from stored records; nothing is run again."""
