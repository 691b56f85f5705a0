"""Kernels that training software launches, counted one by one."""
