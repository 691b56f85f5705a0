"""From a configuration to the operators of every layer, forward and backward."""
