"""The data of a store and what its readers promise, by subject. Users of a store import these modules, `storage.open`
and what is written once for both databases in `storage.sql` (StoreWriter, Flush, CompactionStore), never a back end."""
