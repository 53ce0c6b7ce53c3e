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

// What the server refused, until the user has read it: the connector writes it, and it never leaves the device.
const upload_refusals = new Table(
  {
    at: column.text,
    message: column.text,
    code: column.text,
    op: column.text,
    type: column.text,
    row_id: column.text,
    writes: column.text
  },
  { localOnly: true }
);

export const schema = new Schema({ lists, todos, list_members, upload_refusals });

export type Todo = (typeof schema)['types']['todos'];
