"""Unit tests of sync rules without a server or a database: insert rows and check what a device would get.

The device's view is computed as the service does, through buckets and lookups, by the same code.
"""

from headwater_rules.testing.rules_test import Client, GivenBucket, RulesTest

__all__ = ["Client", "GivenBucket", "RulesTest"]
