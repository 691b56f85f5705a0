"""Launch files that people run, read: Megatron-LM scripts, torchtitan, DeepSpeed and NeMo files."""
