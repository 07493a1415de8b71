"""Named workloads, and what an engine makes of them in figures: the library of ``octavo bench``."""
