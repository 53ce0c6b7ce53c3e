"""The scaled set-up as processes on one machine: under load, while its parts are killed."""
