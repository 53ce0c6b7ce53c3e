-- Format 5: of each user, the write checkpoints of so many clients are kept.
create index if not exists write_checkpoints_user on write_checkpoints (left(split_part(key, '/', 1), 500), seq);
