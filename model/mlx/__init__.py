"""How MLX and mlx-audio store weights: names, files, layouts, packed integers and weight norms."""
