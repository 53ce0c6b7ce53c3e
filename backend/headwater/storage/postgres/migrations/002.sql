-- Format 2: why a table is being compared is a code with a detail, and no longer a sentence.
alter table tables add column resync_detail text not null default '';
update tables set
    resync = case
        when resync = '' then ''
        when resync = 'new in the source' then 'new'
        when resync like 'new in version %' then 'new_in_version'
        when resync = 'its definition changed' then 'redefined'
        when resync = 'the slot was lost' then 'slot_lost'
        when resync like 'a transaction was left out: %' then 'left_out'
        when resync = 'not all of its changes are published' then 'partly_published'
        when resync = 'its replica identity changed' then 'rekeyed'
        when resync = 'somebody keeps it locked' then 'locked'
        when resync = 'its rows can''t be told apart by its new replica identity' then 'ids_lost'
        when resync like 'partitions were attached: %' then 'attached'
        when resync = 'on command' then 'asked'
        when resync = 'audit' then 'audit'
        when resync = 'sampling audit' then 'sampled'
        else 'replaced'  -- which takes nothing for granted
    end,
    resync_detail = case
        when resync like 'new in version %' then substr(resync, length('new in version ') + 1)
        when resync like 'a transaction was left out: %' then substr(resync, length('a transaction was left out: ') + 1)
        when resync like 'partitions were attached: %' then substr(resync, length('partitions were attached: ') + 1)
        else ''
    end;
