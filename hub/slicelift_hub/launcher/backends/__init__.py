"""Backends that only a launcher can drive: those that need the rights of a cluster."""
