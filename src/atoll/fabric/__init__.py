"""Who is near whom, and what collectives and sends take between them."""
