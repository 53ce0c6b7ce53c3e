"""Unit tests of sync rules without a server or a database: rows go in, and what a device would hold comes out.

The device's view is computed as the service computes it, through buckets and lookups; there is no second reading of
the rules that could be right where the service is wrong.
"""

from headwater_rules.testing.rules_test import Client, GivenBucket, RulesTest

__all__ = ["Client", "GivenBucket", "RulesTest"]
