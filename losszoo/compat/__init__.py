"""Losses by the names and signatures that other libraries give them."""
