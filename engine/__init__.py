"""The engine: computes. It owns every array and is the only importer of mlx."""
