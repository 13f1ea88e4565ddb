"""Locks: one file each under one base."""
