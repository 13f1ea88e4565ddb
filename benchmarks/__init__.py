"""Throughput and memory of headrace on real servers, beside a reference reader and the limits of the machine."""
