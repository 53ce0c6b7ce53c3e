// What a device can be told to do, whichever SDK it is of.

import { LogLevels, Schema, SyncStreamConnectionMethod, Table, column } from '@powersync/common';
import { encode } from './encode.mjs';

export const BSON = 'application/vnd.powersync.bson-stream';

// The SDK says that it takes NDJSON too, and so gets that.
export const takingOnly = (type, send) => async (resource, init) => {
  const headers = new Headers(init?.headers);
  const streams = headers.has('accept');
  if (streams) headers.set('accept', type);
  const response = await send(resource, { ...init, headers });
  const given = response.headers.get('content-type');
  if (streams && response.ok && given !== type) throw new Error(`asked for ${type}, got ${given}`);
  return response;
};

const schemaOf = (tables, localOnly = [], raw = {}) => {
  const schema = new Schema(
    Object.fromEntries(
      Object.entries(tables).map(([name, columns]) => [
        name,
        new Table(Object.fromEntries(Object.entries(columns).map(([name, type]) => [name, column[type]])), {
          localOnly: localOnly.includes(name)
        })
      ])
    )
  );
  schema.withRawTables(Object.fromEntries(Object.keys(raw).map((name) => [name, { schema: {} }])));
  return schema;
};

// Makes the app's own tables, and the triggers that put writes to them into the upload queue.
const makeRaw = async (db, { rawTables }, raw) => {
  for (const table of rawTables) {
    await db.execute(raw[table.name]);
    const described = JSON.stringify(Schema.rawTableToJson(table));
    for (const write of ['INSERT', 'UPDATE', 'DELETE'])
      await db.execute('SELECT powersync_create_raw_table_crud_trigger(?, ?, ?)', [described, `${table.name}_${write}`, write]);
  }
};

const streamKey = (stream, params) => JSON.stringify([stream, params ?? null]);

const same = (one, other) => {
  if (typeof one !== 'object' || typeof other !== 'object' || !one || !other) return Object.is(one, other);
  const names = Object.keys(one);
  return (
    names.length === Object.keys(other).length &&
    names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]))
  );
};

// `database({ schema, logger, ...options })` makes the SDK's database; `uploader(module)` reads an app's connector.
export function deviceCommands({ database, uploader, log }) {
  let db;
  let options;
  let following;
  let fetched = 0;
  const watches = new Map();
  const subscriptions = new Map();

  const logger = {
    log: ({ level, message, error }) => {
      if (level >= LogLevels.info) log(`${message}${error ? ` (${error.message ?? error})` : ''}`);
    }
  };

  const connector = {
    fetchCredentials: async () => {
      const { endpoint, token } = options;
      fetched += 1;
      options.token = following ?? token;
      return { endpoint, token };
    },

    uploadData: async (database) => {
      if (options.connector) return (await appConnector()).uploadData(database);
      if (!options.upload_url) throw new Error('this device was opened without an upload_url');
      const transaction = await database.getNextCrudTransaction();
      if (!transaction) return;
      const batch = transaction.crud.map(({ op, table, id, opData }) => ({ op, type: table, id, data: opData ?? null }));
      const response = await fetch(options.upload_url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer ${options.token}` },
        body: JSON.stringify({ batch })
      });
      if (!response.ok) throw new Error(`the upload answered ${response.status}: ${await response.text()}`);
      await transaction.complete();
    }
  };

  // The app's own connector, with the test's tokens.
  const appConnector = async () => {
    const { prototype } = await uploader(options.connector);
    return Object.assign(Object.create(prototype), { fetchCredentials: connector.fetchCredentials });
  };

  const status = () => {
    const { connected, connecting, downloading, uploading, hasSynced, lastSyncedAt, downloadError, uploadError } =
      db.currentStatus;
    return {
      connected,
      connecting,
      downloading,
      uploading,
      has_synced: hasSynced ?? false,
      last_synced_at: lastSyncedAt?.toISOString() ?? null,
      download_error: downloadError?.message ?? null,
      upload_error: uploadError?.message ?? null
    };
  };

  // Looks again at every table update and status change until `look` says done or the time is over.
  // Answers what the last look saw.
  const until = (look, timeout_ms) =>
    new Promise((resolve, reject) => {
      let looking = false;
      let again = false;
      let seen;
      const stop = (settle, value) => {
        clearTimeout(timer);
        disposers.forEach((dispose) => dispose());
        settle(value);
      };
      const check = async () => {
        again = true;
        if (looking) return;
        looking = true;
        try {
          while (again) {
            again = false;
            seen = await look();
            if (seen.done) return stop(resolve, seen);
          }
        } catch (error) {
          stop(reject, error);
        } finally {
          looking = false;
        }
      };
      const disposers = [
        db.database.registerListener({ tablesUpdated: check }),
        db.registerListener({ statusChanged: check })
      ];
      const timer = setTimeout(() => stop(resolve, seen ?? { done: false }), timeout_ms);
      void check();
    });

  return {
    open: async ({ schema, local_only, raw = {}, ...rest }) => {
      options = rest;
      const declared = schemaOf(schema, local_only, raw);
      db = await database({ schema: declared, logger, ...options });
      await db.init();
      await makeRaw(db, declared, raw);
    },

    // Answers at the first outcome, good or bad: `status` tells which.
    connect: async () => {
      await db.connect(connector, {
        params: options.params ?? {},
        includeDefaultStreams: options.include_default_streams ?? true,
        connectionMethod:
          options.transport === 'websocket' ? SyncStreamConnectionMethod.WEB_SOCKET : SyncStreamConnectionMethod.HTTP,
        checkpointMode: options.checkpoint_mode,
        retryDelayMs: options.retry_delay_ms,
        crudUploadThrottleMs: options.upload_throttle_ms
      });
      return status();
    },

    check_refusals: async () => void (await (await appConnector()).checkRefusals(db)),
    disconnect: () => db.disconnect(),
    clear: () => db.disconnectAndClear(),
    set_token: ({ token }) => void (options.token = token),
    // The token for whoever asks after the next one.
    set_following_token: ({ token }) => void (following = token),
    credentials_fetched: () => fetched,
    status: () => status(),
    client_id: () => db.getClientId(),

    query: ({ sql, args = [] }) => db.getAll(sql, args),
    execute: async ({ sql, args = [] }) => void (await db.execute(sql, args)),

    // Several statements in one local transaction, which the upload queue keeps together.
    transaction: ({ statements }) =>
      db.writeTransaction(async (tx) => {
        for (const [sql, args = []] of statements) await tx.execute(sql, args);
      }),

    wait_first_sync: async ({ timeout_ms }) => {
      const { done } = await until(() => ({ done: db.currentStatus.hasSynced === true }), timeout_ms);
      return { done, status: status() };
    },

    wait_rows: ({ sql, args = [], rows, timeout_ms }) =>
      until(async () => {
        const seen = JSON.parse(JSON.stringify(await db.getAll(sql, args), encode));
        return { done: same(seen, rows), rows: seen };
      }, timeout_ms),

    wait_status: ({ fields, timeout_ms }) =>
      until(() => {
        const seen = status();
        return { done: Object.entries(fields).every(([name, value]) => seen[name] === value), status: seen };
      }, timeout_ms),

    // Keeps every result the SDK gives to the watcher, in order, until the device closes.
    watch: ({ name, sql, args = [] }) =>
      new Promise((resolve, reject) => {
        const results = [];
        watches.set(name, results);
        db.watchWithCallback(
          sql,
          args,
          {
            onResult: ({ array }) => {
              results.push(array);
              resolve();
            },
            onError: reject
          },
          { throttleMs: 0 }
        );
      }),

    watch_results: ({ name }) => {
      const results = watches.get(name);
      if (!results) throw new Error(`no watch is called ${name}`);
      return results;
    },

    subscribe: async ({ stream, params, priority, ttl }) => {
      subscriptions.set(streamKey(stream, params), await db.syncStream(stream, params).subscribe({ priority, ttl }));
    },

    unsubscribe: ({ stream, params }) => {
      const subscription = subscriptions.get(streamKey(stream, params));
      if (!subscription) throw new Error(`${stream} is not subscribed with these parameters`);
      subscription.unsubscribe();
      subscriptions.delete(streamKey(stream, params));
    },

    close: async () => {
      await db?.close({ disconnect: true });
      db = undefined;
    }
  };
}
