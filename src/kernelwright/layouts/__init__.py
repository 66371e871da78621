"""Layouts of half-empty weights: what is stored, and how it is packed and unpacked. torch alone; docs/sparse.md has pictures."""
