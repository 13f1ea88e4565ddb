"""Adapters: one package for each external system, with every port that it implements."""
