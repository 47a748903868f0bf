"""Where the rows are: stores, and the registry that opens them."""
