// One device of one user: a database in this browser, what it holds, and what the user does to it.

import { PowerSyncDatabase, WASQLiteVFS, type CommonPowerSyncDatabase, type SyncStatus } from '@powersync/web';
import { schema, type Todo } from './schema';
import { connectorFor, type User } from './server';

const RETRY_DELAY_MS = 1000;
const SHOWN_TODOS = 200;
const SHOWN_NOTES = 300;

/** A list, and who sees it besides its owner. */
export interface SharedList {
  id: string;
  name: string;
  owner_id: string;
  guests: string[];
}

/** A local write that the server does not have yet. */
export interface WaitingWrite {
  id: string;
  op: 'PUT' | 'PATCH' | 'DELETE';
  table: string;
  row: string;
  data: Record<string, unknown>;
}

/** A transaction of this device that the server refused. */
export interface Refusal {
  id: string;
  message: string;
  code: string;
  op: string | null;
  table: string | null;
  row: string | null;
  /** What the row is called on this device; null when it is not there. */
  name: string | null;
  writes: { type: string; id: string; data?: Record<string, unknown>; old?: Record<string, unknown> }[];
}

export interface Bucket {
  name: string;
  rows: number;
}

/** Everything that is shown of a device, as it was at one moment. */
export interface View {
  lists: SharedList[];
  /** Those of the chosen list, open ones first, at most `SHOWN_TODOS` of `total`. */
  todos: Todo[];
  total: number;
  waiting: WaitingWrite[];
  refusals: Refusal[];
  buckets: Bucket[];
  /** The tables contain every op of the buckets up to this one. */
  applied: number;
}

const LISTS = `select id, name, owner_id,
    (select json_group_array(distinct user_id) from list_members
     where list_id = lists.id and user_id <> lists.owner_id) as guests
  from lists order by name, id`;
const TODOS = `select id, list_id, title, substr(notes, 1, ${SHOWN_NOTES}) as notes, done, created_at, completed_at,
    count(*) over () as total
  from todos where list_id = ? order by coalesce(done, 0), created_at desc, id limit ${SHOWN_TODOS}`;
const WAITING = `select id, data ->> 'op' as op, data ->> 'type' as "table", data ->> 'id' as "row",
    coalesce(data ->> 'data', '{}') as data
  from ps_crud order by id`;
const REFUSALS = `select id, message, code, op, type as "table", row_id as "row", writes,
    coalesce((select name from lists where id = row_id), (select title from todos where id = row_id)) as name
  from upload_refusals order by at desc`;
export const BUCKETS = `select name, last_applied_op, (select count(*) from ps_oplog where bucket = ps_buckets.id) as rows
  from ps_buckets order by name`;
const TABLES = ['lists', 'todos', 'list_members', 'upload_refusals', 'ps_crud', 'ps_buckets', 'ps_oplog'];

type BucketRow = Bucket & { last_applied_op: number };

export class Device {
  private readonly db: CommonPowerSyncDatabase;
  private readonly connector;
  private chosen: string | undefined;
  private show: (view: View) => void = () => {};
  private reading = false;
  private stale = false;

  constructor(readonly user: User) {
    this.db = new PowerSyncDatabase({
      schema,
      // A file system of the browser that works without cross-origin isolation headers.
      database: { dbFilename: `demo-${user.id}.db`, vfs: WASQLiteVFS.OPFSCoopSyncVFS }
    });
    this.connector = connectorFor(user);
  }

  goOnline(): Promise<void> {
    return this.db.connect(this.connector, { retryDelayMs: RETRY_DELAY_MS, crudUploadThrottleMs: 100 });
  }

  goOffline(): Promise<void> {
    return this.db.disconnect();
  }

  /** Forget everything, also what was not uploaded yet. */
  reset(): Promise<void> {
    return this.db.disconnectAndClear();
  }

  onStatus(show: (status: SyncStatus) => void): void {
    show(this.db.currentStatus);
    this.db.registerListener({ statusChanged: show });
  }

  /** Show the device now and after each change. All of it is read together, so that no part is ahead of another. */
  onChange(show: (view: View) => void): void {
    this.show = show;
    this.db.onChangeWithCallback(
      { onChange: () => this.refresh() },
      { tables: TABLES, throttleMs: 1 }
    );
    void this.refresh();
  }

  /** Show the to-dos of another list. */
  choose(listId: string | undefined): void {
    this.chosen = listId;
    void this.refresh();
  }

  private async refresh(): Promise<void> {
    this.stale = true;
    if (this.reading) return;
    this.reading = true;
    try {
      while (this.stale) {
        this.stale = false;
        this.show(await this.read());
      }
    } catch (error) {
      console.error(error);
    } finally {
      this.reading = false;
    }
  }

  private read(): Promise<View> {
    return this.db.readTransaction(async (tx) => {
      const lists = await tx.getAll<Omit<SharedList, 'guests'> & { guests: string }>(LISTS);
      const todos = await tx.getAll<Todo & { total: number }>(TODOS, [this.chosen ?? '']);
      const waiting = await tx.getAll<Omit<WaitingWrite, 'data'> & { data: string }>(WAITING);
      const refusals = await tx.getAll<Omit<Refusal, 'writes'> & { writes: string }>(REFUSALS);
      const buckets = await tx.getAll<BucketRow>(BUCKETS);
      return {
        lists: lists.map((list) => ({ ...list, guests: JSON.parse(list.guests) as string[] })),
        todos,
        total: todos[0]?.total ?? 0,
        waiting: waiting.map((write) => ({ ...write, data: JSON.parse(write.data) as Record<string, unknown> })),
        refusals: refusals.map((each) => ({ ...each, writes: JSON.parse(each.writes) as Refusal['writes'] })),
        buckets,
        applied: Math.min(...buckets.map(({ last_applied_op }) => last_applied_op))
      };
    });
  }

  /** Returns when the server has everything that was written here. */
  sent(): Promise<void> {
    const stop = new AbortController();
    return new Promise<void>((resolve, reject) =>
      this.db.watchWithCallback(
        'select id from ps_crud limit 1',
        [],
        { onResult: (result) => result.array.length === 0 && resolve(), onError: reject },
        { tables: ['ps_crud'], signal: stop.signal }
      )
    ).finally(() => stop.abort());
  }

  async addList(name: string): Promise<string> {
    const id = crypto.randomUUID();
    await this.db.writeTransaction(async (tx) => {
      await tx.execute('insert into lists (id, owner_id, name, created_at) values (?, ?, ?, ?)', [
        id,
        this.user.id,
        name,
        now()
      ]);
      await tx.execute('insert into list_members (id, list_id, user_id, role) values (?, ?, ?, ?)', [
        crypto.randomUUID(),
        id,
        this.user.id,
        'owner'
      ]);
    });
    return id;
  }

  async deleteList(listId: string): Promise<void> {
    await this.db.execute('delete from lists where id = ?', [listId]);
  }

  async renameList(listId: string, name: string): Promise<void> {
    await this.db.execute('update lists set name = ? where id = ?', [name, listId]);
  }

  async addTodo(listId: string, title: string): Promise<void> {
    await this.db.execute('insert into todos (id, list_id, title, done, created_at) values (?, ?, ?, 0, ?)', [
      crypto.randomUUID(),
      listId,
      title,
      now()
    ]);
  }

  async setTitle(todoId: string, title: string): Promise<void> {
    await this.db.execute('update todos set title = ? where id = ?', [title, todoId]);
  }

  async setDone(todoId: string, done: boolean): Promise<void> {
    await this.db.execute('update todos set done = ?, completed_at = ? where id = ?', [
      done ? 1 : 0,
      done ? now() : null,
      todoId
    ]);
  }

  async deleteTodo(todoId: string): Promise<void> {
    await this.db.execute('delete from todos where id = ?', [todoId]);
  }

  /** Forget a refusal that the person has read. */
  async dismiss(refusalId: string): Promise<void> {
    await this.db.execute('delete from upload_refusals where id = ?', [refusalId]);
  }

  async share(listId: string, user: User): Promise<void> {
    await this.db.execute('insert into list_members (id, list_id, user_id, role) values (?, ?, ?, ?)', [
      crypto.randomUUID(),
      listId,
      user.id,
      'member'
    ]);
  }

  async unshare(listId: string, user: User): Promise<void> {
    await this.db.execute('delete from list_members where list_id = ? and user_id = ?', [listId, user.id]);
  }
}

const now = (): string => new Date().toISOString();
