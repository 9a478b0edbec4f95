"""Where Triton's kernels run, how they are started, and those that are no part of an engine."""
