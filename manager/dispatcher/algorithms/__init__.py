"""The algorithms that a dispatcher hosts, and how they are found."""
