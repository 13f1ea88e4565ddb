"""Throughput and memory of headrace on real servers, compared with a reference reader and the limits of the machine."""
