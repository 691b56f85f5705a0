"""A block's operators, and a whole mapping by its decision variables."""
