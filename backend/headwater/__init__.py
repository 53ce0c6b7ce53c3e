"""Headwater: data of Postgres on devices, in step with it."""
