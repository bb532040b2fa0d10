"""Is it right? What features and kernels do while a model trains, at several sizes or in one run."""
