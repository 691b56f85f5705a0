"""Models as operator graphs: built, differentiated, sharded and fused, free of any hardware."""
