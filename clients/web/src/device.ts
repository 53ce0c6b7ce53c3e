// One device of one user: a database in this browser, what it holds, and what the user does to it.

import { PowerSyncDatabase, WASQLiteVFS, type CommonPowerSyncDatabase, type SyncStatus } from '@powersync/web';
import { schema, type Todo } from './schema';
import { connectorFor, type User } from './server';

const RETRY_DELAY_MS = 1000;
const SHOWN_TODOS = 200;

/** A list, and who sees it besides its owner. */
export interface SharedList {
  id: string;
  name: string;
  owner_id: string;
  guests: string[];
}

export class Device {
  private readonly db: CommonPowerSyncDatabase;
  private readonly connector;

  constructor(
    readonly user: User,
    onRefused: (reason: string) => void
  ) {
    this.db = new PowerSyncDatabase({
      schema,
      // A file system of the browser that works without cross-origin isolation headers.
      database: { dbFilename: `demo-${user.id}.db`, vfs: WASQLiteVFS.OPFSCoopSyncVFS }
    });
    this.connector = connectorFor(user, onRefused);
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

  onWaitingWrites(show: (count: number) => void): void {
    this.watch<{ waiting: number }>('select count(*) as waiting from ps_crud', [], (rows) =>
      show(rows[0]?.waiting ?? 0)
    );
  }

  // One query for both tables, so that a list never shows without its guests.
  onLists(show: (lists: SharedList[]) => void): void {
    const sql = `select id, name, owner_id,
                   (select json_group_array(distinct user_id) from list_members
                    where list_id = lists.id and user_id <> lists.owner_id) as guests
                 from lists order by name, id`;
    this.watch<Omit<SharedList, 'guests'> & { guests: string }>(sql, [], (rows) =>
      show(rows.map((row) => ({ ...row, guests: JSON.parse(row.guests) as string[] })))
    );
  }

  /** The to-dos of a list, open ones first; at most `SHOWN_TODOS`. Call the result to stop. */
  onTodos(listId: string, show: (todos: Todo[], total: number) => void): () => void {
    const sql = `select *, count(*) over () as total from todos where list_id = ?
                 order by coalesce(done, 0), created_at desc, id limit ${SHOWN_TODOS}`;
    return this.watch<Todo & { total: number }>(sql, [listId], (rows) => show(rows, rows[0]?.total ?? 0));
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

  async addTodo(listId: string, title: string): Promise<void> {
    await this.db.execute('insert into todos (id, list_id, title, done, created_at) values (?, ?, ?, 0, ?)', [
      crypto.randomUUID(),
      listId,
      title,
      now()
    ]);
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

  private watch<Row>(sql: string, args: string[], show: (rows: Row[]) => void): () => void {
    const stop = new AbortController();
    this.db.watchWithCallback(
      sql,
      args,
      { onResult: (result) => show(result.array as Row[]), onError: (error) => console.error(error) },
      { signal: stop.signal }
    );
    return () => stop.abort();
  }
}

const now = (): string => new Date().toISOString();
