"""The commands of `headwater`, one file each."""
