"""The scheduler: decides. Pure Python, standard library only; no arrays, no sockets, no clock."""
