-- Sample data, the same each time. The setting demo.rows says about how many rows there are in all.
-- Statements are separated by empty lines and run one by one in one transaction.
-- People 1 and 2 are those of the demo app, with lists 1 to 11; the others own the rest.

create function pg_temp.key(text) returns uuid language sql immutable
  return md5($1)::uuid;

create function pg_temp.draw(seed text, below int) returns int language sql immutable
  return ((hashtextextended(seed, 0) & 9007199254740991) % below)::int;

create function pg_temp.pick(seed text, words text[]) returns text language sql immutable
  return words[1 + pg_temp.draw(seed, cardinality(words))];

create function pg_temp.at(seed text) returns timestamptz language sql immutable
  return timestamptz '2025-01-01 08:00Z' + make_interval(mins => pg_temp.draw(seed, 400000));

create temp view size as
  select n / 200 + 10 as users, n / 20 + 11 as lists, n / 8 as activity, n - (n * 51) / 200 as todos
  from (values (current_setting('demo.rows')::int)) as wanted (n);

insert into users
  select pg_temp.key('user ' || n),
         case n when 1 then 'Ada' when 2 then 'Ben' else
           pg_temp.pick('first ' || n, '{Alma,Bruno,Carla,Dario,Elsa,Felix,Greta,Hugo,Ida,Jonas,Klara,Leo,Mira,Nils,Olga,Paul,Rosa,Simon,Thea,Viktor}')
           || ' ' || pg_temp.pick('last ' || n, '{A.,B.,D.,F.,G.,H.,K.,L.,M.,N.,P.,R.,S.,T.,W.}') end,
         'user' || n || '@example.com',
         timestamptz '2024-01-01 08:00Z' + make_interval(mins => n)
  from size, generate_series(1, users) as n;

create temp table plan as  -- list n, its owner, its name
  select n, pg_temp.key('list ' || n) as id, 3 + pg_temp.draw('owner ' || n, users - 2) as owner,
         pg_temp.pick('list name ' || n, '{Groceries,Garden,Moving house,Holiday,Reading,Birthday,Kitchen,Bicycle,Office,School,Repairs,Camping,Allotment,Choir,Cellar,Taxes}')
         || pg_temp.pick('list part ' || n, '{"",""," in spring"," in autumn"," next year"," (old)"," with the neighbours"}') as name
  from size, generate_series(12, lists) as n
  union all
  select n, pg_temp.key('list ' || n), owner, name
  from (values
    (1, 1, 'Weekend together'), (2, 1, 'Groceries'), (3, 1, 'Balcony'), (4, 1, 'Reading'), (5, 1, 'Moving house'),
    (6, 2, 'Bicycle'), (7, 2, 'Groceries'), (8, 2, 'Office'), (9, 2, 'Holiday'),
    (10, 3, 'Choir'), (11, 4, 'Allotment')
  ) as ours (n, owner, name);

insert into lists
  select id, pg_temp.key('user ' || owner), name, pg_temp.at('list made ' || n) from plan;

create temp table seats as  -- the owner's own, and a guest in half of the lists
  select id, owner as person, 'owner' as role from plan
  union all
  select id, 3 + pg_temp.draw('guest ' || n, users - 2), 'member' from plan, size where n >= 12 and n % 2 = 0
  union all
  select pg_temp.key('list ' || n), person, 'member' from (values (1, 2), (3, 5), (8, 6), (10, 1), (11, 2)) as ours (n, person);

insert into list_members
  select pg_temp.key('seat ' || id || ' ' || person), id, pg_temp.key('user ' || person), max(role)
  from seats group by id, person;

create temp table sentences as
  select n, pg_temp.pick('a' || n, '{The shop,The neighbour,The manual,The plumber,The letter from March,The old receipt,Everyone,The second box,The timetable,The man at the counter}')
    || ' ' || pg_temp.pick('b' || n, '{says,shows,claims,did not know,repeats,writes,thinks,promised,forgot,confirms}')
    || ' that ' || pg_temp.pick('c' || n, '{the blue one,the delivery,the cheaper version,the spare key,the last train,the appointment,the wide shelf,the other half,the guarantee,the recipe}')
    || ' ' || pg_temp.pick('d' || n, '{comes on Thursday,is still in the cellar,fits after all,was never ordered,costs twice as much,needs a second person,can wait until autumn,is under the stairs,has been moved twice,is out of stock}')
    || ', ref. ' || substr(md5('ref' || n), 1, 12) || '. ' as words
  from generate_series(0, 1999) as n;

create temp table notes as  -- of to-do n: every 100th has about 20 kB, which Postgres stores apart; so has one of list 1
  select n, (select string_agg(words, '' order by line) from generate_series(1, 245) as line
             join sentences on sentences.n = pg_temp.draw('note ' || todo.n || ' ' || line, 2000)) as words
  from (select generate_series(5, todos, 100) from size union select 11) as todo (n);

insert into todos
  select pg_temp.key('todo ' || n), pg_temp.key('list ' || list),
         case n % 3
           when 0 then pg_temp.pick('t' || n, '{Fix,Clean,Paint,Replace,Measure,Return,Sort out,Put away}') || ' '
             || pg_temp.pick('u' || n, '{the kitchen tap,the bicycle chain,the balcony door,the big shelf,the garden chairs,the curtains,the tool box,the bread machine,the letter box,the attic window}')
           when 1 then pg_temp.pick('t' || n, '{Call,Write to,Meet,Thank,Ask,Visit}') || ' '
             || pg_temp.pick('u' || n, '{the landlord,the dentist,the school,the insurance,the neighbours,the library,the plumber,the town hall}')
             || pg_temp.pick('v' || n, '{""," about the invoice"," about Saturday"," about the keys"," before noon"," once more"}')
           else pg_temp.pick('t' || n, '{Buy,Pick up,Look for,Order,Borrow}') || ' '
             || pg_temp.pick('u' || n, '{oat flakes,light bulbs,stamps,a map of the hills,flower pots,coffee,batteries,a birthday card,screws,wool socks,olive oil,a tent}')
             || pg_temp.pick('v' || n, '{""," for the weekend"," for the office"," for everybody"," again"}')
         end,
         coalesce(words, case when n % 4 = 0 then
           pg_temp.pick('w' || n, '{Ask for the discount.,Not the small one.,The receipt is in the drawer.,Takes an hour.,Not urgent.,Bring the measuring tape.}') end),
         done, made, case when done then made + make_interval(mins => 30 + pg_temp.draw('x' || n, 20000)) end
  from (
    select n, words, pg_temp.draw('done ' || n, 5) < 2 as done, pg_temp.at('todo made ' || n) as made,
           case when n <= 220 then 1 + n % 11 else 12 + pg_temp.draw('todo list ' || n, lists - 11) end as list
    from size, generate_series(1, todos) as n left join notes using (n)
  ) as drawn;

insert into activity  -- each 10th three times
  select pg_temp.key('user ' || case when n < 60 then 1 + n % 2 else 3 + pg_temp.draw('who ' || n, users - 2) end),
         pg_temp.pick('action ' || n, '{opened a list,ticked a to-do,added a to-do,shared a list,edited the notes}'),
         pg_temp.at('activity ' || n)
  from size, generate_series(0, activity - 1) as line,
       lateral (select case when line % 30 < 6 then line / 6 * 6 + line % 2 else line end) as same (n);

insert into announcements
  select pg_temp.pick('news ' || n, '{Maintenance on Sunday,New colours,Lists can be shared,Faster search,Your data in a file}'),
         'Nothing to do on your side.', timestamptz '2025-01-01 08:00Z' + make_interval(days => 7 * n)
  from generate_series(1, 40) as n;
