-- Format 3: write checkpoints whose ids clients chose are forgotten when they were not asked for in a while.
alter table write_checkpoints add column if not exists requested_at double precision;  -- seconds since 1970
