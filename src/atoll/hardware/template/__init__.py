"""What a kind of chip is: types only; `hardware.silicon` has ours."""
