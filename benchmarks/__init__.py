"""Scripts that measure, one per question; each prints one JSON line per measurement."""
