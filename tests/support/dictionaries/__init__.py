"""A third back end, to see that nothing outside `headwater.storage` knows how many there are: dictionaries in memory,
for as long as the process lives. Simple where the others are quick."""
