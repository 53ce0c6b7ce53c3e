"""What a process lets operators see: its log, its metrics, its traces."""
