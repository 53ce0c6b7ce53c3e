"""From the bytes and the text of Postgres to changes and values, the same for the stream and for COPY. No I/O."""
