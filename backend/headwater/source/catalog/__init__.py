"""Reads a source's catalog: tables, publications, types, in the form in which the stream describes them."""
