import { Schema, Table, column } from '@powersync/web';

// Every table also has the text column `id`.
const lists = new Table({
  owner_id: column.text,
  name: column.text,
  created_at: column.text
});

const todos = new Table(
  {
    list_id: column.text,
    title: column.text,
    notes: column.text,
    done: column.integer,
    created_at: column.text,
    completed_at: column.text
  },
  // The title that a change of it began from goes along, so that the server sees whether somebody else was faster.
  { indexes: { by_list: ['list_id'] }, trackPrevious: { columns: ['title'], onlyWhenChanged: true } }
);

const list_members = new Table(
  {
    list_id: column.text,
    user_id: column.text,
    role: column.text
  },
  { indexes: { by_list: ['list_id'] } }
);

export const schema = new Schema({ lists, todos, list_members });

export type Todo = (typeof schema)['types']['todos'];
