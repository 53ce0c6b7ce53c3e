"""What every store promises, part by part. Whoever uses a store knows these pages and no back end."""
