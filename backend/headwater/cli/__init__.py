"""The command `headwater`: each of its commands a file, each group of them a folder."""
