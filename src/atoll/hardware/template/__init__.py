"""What a kind of chip is: its parameters, its silicon, and the numbers that prices take."""
