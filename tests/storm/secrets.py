"""Changes of tables that give one a past which is nobody's business: what a row says while no rule speaks of its table
must never reach a device, whoever has the public name by then. All they write in private holds the word below.

Each is several transactions. One that fails leaves its secrets where they are: under the private name.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.storm.changes import Table

SECRET = "secret"


def private_for_a_while(chance: random.Random, table: Table) -> str:
    """The table leaves the rules' reach, tells secrets, forgets them, and comes back."""
    name, number = table.name, table.number
    if (
        table.partitioned
    ):  # of a renamed root, published as such, Postgres goes on to send changes under its former name
        return ""
    out, private, back = chance.choice(
        [
            (f"alter table {name} rename to away_{number}", f"away_{number}", f"rename to {name}"),
            (
                f"create schema aside_{number}; alter table {name} set schema aside_{number}",
                f"aside_{number}.{name}",
                "set schema public",
            ),
        ]
    )
    return _transactions(out, *_past(chance, table, private), f"alter table {private} {back}")


def replaced_by_one_with_a_past(chance: random.Random, table: Table) -> str:
    """Another table with a history takes the name."""
    name, number = table.name, table.number
    if table.partitioned:
        return ""
    schema = chance.choice(["public", f"aside_{number}"])
    other = f"staging_{number}" if schema == "public" else name
    staging = f"{schema}.{other}"
    full = f"alter table {staging} replica identity full;" if not table.kind.key or name == "indexed" else ""
    made = (
        f"create schema if not exists {schema}; create table {staging} (like {name} including all); {full}"
        f" insert into {staging} select * from {name} where n % 2 = 0"
    )
    publish = f"alter publication headwater add table {staging}"
    early = chance.random() < 0.7  # so that the stream has its past
    enter = f"alter table {staging} " + (f"rename to {name}" if schema == "public" else "set schema public")
    leave = chance.choice([f"drop table {name}", f"alter table {name} rename to former_{number}"])
    steps = [made, *([publish] if early else []), *_past(chance, table, staging)]
    if not early:
        enter = f"{publish}; {enter}"
    steps += chance.choice([[f"{leave}; {enter}"], [leave, enter]])
    if "former" in leave:  # which goes on to tell secrets, and then goes
        steps += [*_told(chance, table, f"former_{number}"), f"drop table former_{number}"]
    return _transactions(*steps)


def _past(chance: random.Random, table: Table, name: str) -> list[str]:
    """Secrets, and how they are removed. What is left is clean."""
    steps = _told(chance, table, name)
    if chance.random() < 0.4:
        steps += [f"truncate {name}", *_told(chance, table, name)]
    shown = f"{name} set body = 'clean', owner = 'u0', big = null{', spec = null' * table.kind.heavy}"
    if table.kind.fixed:
        steps.append(f"truncate {name}")
    elif chance.random() < 0.3:
        steps.append(f"delete from {name} where body like '{SECRET}%'")
    else:
        steps.append(f"delete from {name} where id like '{SECRET}%'; update {shown} where body like '{SECRET}%'")
    return steps


def _told(chance: random.Random, table: Table, name: str) -> list[str]:
    keys, values = {"paired": ("a, b, ", f"{table.number + 1000}, prefix || i, "), "guests": ("room, ", "'r0', ")}.get(
        table.name, ("", "")
    )
    body, big = f"'{SECRET} ' || i", f"repeat('{SECRET}', {chance.choice([1, 2000])})"
    first = 1000 * table.number
    last = first + chance.randrange(1, 6)
    insert = f"insert into {name} ({keys}id, owner, n, body, big) select {values}prefix || i, 'u0', i, {body}, {big}"
    steps = [f"{insert} from generate_series({first}, {last}) i, (values ('{SECRET} '), ('1')) p (prefix)"]
    if not table.kind.fixed:
        where = chance.choice(["n % 3 = 0", "true"] if table.name != "crowd" else ["n < 5"])
        what = chance.choice([f"body = '{SECRET} still'", f"body = '{SECRET}', big = {big}"])
        owner = chance.choice(["", ", owner = 'u1'"])
        steps.append(f"update {name} set {what}{owner} where {where}")
    return steps


def _transactions(*steps: str) -> str:
    """Statements that commit each of these by itself, and stop at one that fails."""
    return "".join(f"begin; {step}; commit; " for step in steps)
