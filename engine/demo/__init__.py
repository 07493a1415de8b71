"""The embedded models, as package data."""
