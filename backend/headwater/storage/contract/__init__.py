"""The interfaces and data of a store, by subject. Users of a store import these modules and never a back end."""
