"""BatchNorm and GroupNorm of all workers, with the addition and the ReLU that follow them."""
