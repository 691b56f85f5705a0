"""Branch and bound over chips: the order, the tasks, the certificate."""
