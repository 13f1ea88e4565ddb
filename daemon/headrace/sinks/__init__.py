"""Sinks: one file each under one base."""
