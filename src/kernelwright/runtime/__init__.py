"""What serves kernels: Packs. Nothing here imports the search side."""
