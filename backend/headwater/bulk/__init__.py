"""What bulk jobs are and how they are asked for, told between replication and the pipeline."""
