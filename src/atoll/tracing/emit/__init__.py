"""From the nodes of a captured layer to an `atoll-model` file: what is kept, kernels, names."""
