create table country (country_id serial primary key, country text not null);
create table city (city_id serial primary key, city text, country_id int not null references country);
create table address (address_id serial primary key, address text, city_id int not null references city, phone text);
create table store (store_id serial primary key, manager_staff_id int not null, address_id int not null references address);
create table staff (staff_id serial primary key, first_name text, email text, username text, password text, picture bytea,
  address_id int references address, store_id int references store);
alter table store add foreign key (manager_staff_id) references staff;
create table customer (customer_id serial primary key, store_id int not null references store, first_name text, email text,
  address_id int not null references address, activebool boolean not null default true);
create table film (film_id serial primary key, title text not null, rental_rate numeric(4, 2), special_features text[]);
create table actor (actor_id serial primary key, first_name text);
create table film_actor (actor_id int references actor, film_id int references film, primary key (actor_id, film_id));
create table inventory (inventory_id serial primary key, film_id int not null references film, store_id int not null references store);
create table rental (rental_id serial primary key, rental_date timestamptz, inventory_id int not null references inventory,
  customer_id int not null references customer, staff_id int not null references staff);
create table payment (payment_id serial, customer_id int not null references customer, staff_id int not null references staff,
  rental_id int not null references rental, amount numeric(5, 2), payment_date timestamptz not null,
  primary key (payment_date, payment_id)) partition by range (payment_date);
create table payment_2022 partition of payment for values from ('2022-01-01') to ('2023-01-01');
insert into country values (1, 'Peru'); insert into city values (1, 'Lima', 1); insert into address values (1, 'A', 1, '1'), (2, 'B', 1, '2');
begin; set constraints all deferred;
alter table store disable trigger all; insert into store values (1, 1, 1); alter table store enable trigger all; commit;
insert into staff values (1, 'Mike', 'mike@example.com', 'mike', 'digest', null, 1, 1);
insert into customer values (1, 1, 'Ann', 'ann@example.com', 1), (2, 1, 'Bob', 'bob@example.com', 2);
insert into film values (1, 'ACADEMY', 0.99, '{Trailers}'); insert into inventory values (1, 1, 1);
insert into rental values (1, '2022-02-01', 1, 1, 1), (2, '2022-02-02', 1, 2, 1);
insert into payment values (1, 1, 1, 1, 2.99, '2022-02-01'), (2, 2, 1, 2, 3.99, '2022-02-02');
