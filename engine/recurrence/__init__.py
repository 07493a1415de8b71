"""Recurrent layers over slots."""
