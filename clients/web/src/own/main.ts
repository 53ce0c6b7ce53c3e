// Somebody's own tables on two devices: `headwater dev --uri` serves this page in place of the to-do lists.

import { Schema, Table, column } from '@powersync/web';
import '../style.css';
import '../backstage/style.css';
import './style.css';
import { Backstage } from '../backstage/backstage';
import { h } from '../dom';
import type { Side } from '../panel';
import { fetchTables, fetchUsers, type User } from '../server';
import { TablesPanel } from './panel';

const panels = document.querySelector<HTMLElement>('#panels')!;
const asked = new URLSearchParams(location.search);

/** Who is on a side: whom the address names, or one of the first two. */
function person(side: Side, users: User[], index: number): User {
  const id = asked.get(side);
  return users.find((user) => user.id === id) ?? users[index] ?? users[0]!;
}

function chooseUser(side: Side, user: User, users: User[]): HTMLElement {
  const select = h('select', { 'aria-label': `User on the ${side}`, 'data-testid': `user-${side}` });
  select.append(...users.map(({ id, name }) => new Option(name, id, false, id === user.id)));
  select.addEventListener('change', () => {
    asked.set(side, select.value);
    location.search = asked.toString();
  });
  return select;
}

try {
  const [users, tables] = await Promise.all([fetchUsers(), fetchTables()]);
  if (users.length === 0) throw new Error('the table of users has no rows');
  const schema = new Schema(
    Object.fromEntries(
      Object.entries(tables).map(([name, columns]) => [
        name,
        new Table(Object.fromEntries(Object.entries(columns).map(([each, type]) => [each, column[type]])))
      ])
    )
  );
  const people = { left: person('left', users, 0), right: person('right', users, 1) };
  const table = Object.keys(tables)[0] ?? '';
  const example = `-- Any change of a row that a user has:\nupdate ${table} set … where id = …;`;
  const backstage = new Backstage(people, users, h('span', {}), example);
  const views = (['left', 'right'] as const).map(
    (side) => new TablesPanel(side, people[side], schema, backstage, chooseUser(side, people[side], users))
  );
  panels.append(...views.map(({ element }) => element), backstage.element);
} catch (error) {
  const reason = error instanceof Error ? error.message : String(error);
  panels.append(h('p', { class: 'failure', role: 'alert', 'data-testid': 'failure' }, `The page could not start: ${reason}`));
}
