"""Adapters: one package a system, with every port that it serves."""
