"""One physical model of chips on nodes of 28 to 3 nm: area, power and price of a die by part.

Every constant has a value, a range and a source (`constants`, `nodes`, `memories`); every function
takes columns, one value for each design. `atoll validate --chips` holds it against
published chips.
"""
