"""Linear layers: products with a weight matrix for each worker."""
