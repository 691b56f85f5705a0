"""The nouns: operators, tensors and layers; and the backward pass, which is derived from them."""
