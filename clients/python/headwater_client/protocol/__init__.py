"""What server and device say to each other: lines, requests, and what a device does next. No input or output."""
