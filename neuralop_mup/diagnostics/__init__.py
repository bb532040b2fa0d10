"""Is it right? What features and kernels do in a step, and at several sizes."""
