"""What is measured of a model's outputs: sums and counts of batches, which add up to one number."""
