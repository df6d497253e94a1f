"""Methods of `solve`, one file each, and the table that names them."""
