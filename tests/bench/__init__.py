"""Benchmarks: `make bench`. Each prints figures of Headwater beside a yardstick measured in the same run."""
