"""LayerNorm and RMSNorm: every token by itself, with the addition before it."""
