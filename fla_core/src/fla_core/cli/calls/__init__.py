"""What commands compute: random problems, their error, checks and warm-up. Loads torch."""
