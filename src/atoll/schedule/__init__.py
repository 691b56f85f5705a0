"""The exact makespan of a layer's operators on a chip's cores, with its proof."""
