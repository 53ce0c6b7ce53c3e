"""Decodes messages and values of Postgres, in the same way for the stream and for COPY. No I/O."""
